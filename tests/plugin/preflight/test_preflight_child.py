"""``rlregress preflight -- COMMAND``: nothing of the command begins before its configuration is composed."""

from __future__ import annotations

import os
import socket
import sys
from contextlib import closing

import pytest

from pytest_rlregress.cli import main
from pytest_rlregress.commands.preflight import command

BEGINS = {
    "subprocess": ("import subprocess; subprocess.run(['touch', 'out'])", "subprocess.Popen"),
    "system": ("import os; os.system('touch out')", "os.system"),
    "fork": ("import os; os.fork() or open('out', 'w')", "os.fork"),
    "connection": ("import socket; socket.create_connection(('127.0.0.1', {port}))", "socket.connect"),
    "file": ("open('out', 'w')", "out written"),
    "appended": ("open('kept', 'a')", "kept written"),
    "descriptor": ("import os; os.open('out', os.O_CREAT | os.O_WRONLY)", "out written"),
    "folder": ("import os; os.makedirs('out')", "out written"),
    "removed": ("import os; os.remove('kept')", "kept written"),
    "renamed": ("import os; os.rename('kept', 'out')", "kept written"),
}


@pytest.fixture
def refused(tmp_path, monkeypatch, capsys):
    """Run a script's command: what was said of it, once it ended with an error and had changed nothing."""
    monkeypatch.chdir(tmp_path)

    def refused(text):
        (tmp_path / "train.py").write_text(f"{text}\n", encoding="utf-8")
        (tmp_path / "kept").touch()
        assert main(["preflight", "--hw=h100", "--", sys.executable, "train.py"]) == 2
        assert sorted(os.listdir(tmp_path)) == ["kept", "train.py"]
        assert (tmp_path / "kept").stat().st_size == 0
        return capsys.readouterr().err

    return refused


@pytest.mark.parametrize(("text", "told"), BEGINS.values(), ids=BEGINS)
def test_command_may_not_write_or_connect_before_its_configuration(refused, text, told):
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        listener.settimeout(0.05)
        said = refused(text.format(port=listener.getsockname()[1]))
        with pytest.raises(TimeoutError):
            listener.accept()
    assert "train.py:1: PermissionError" in said
    assert told in said


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("print(1)", "the command ended"),
        ("raise SystemExit(3)", "the command ended with exit code 3"),
        ("import os; os._exit(4)", "the command ended with exit code 4"),
        ("\n1 / 0", "train.py:2: ZeroDivisionError: division by zero"),
        ("import no_such_module", "train.py:1: ModuleNotFoundError: No module named 'no_such_module'"),
        ("from hydra_missing import main", "No module named 'hydra_missing'"),
    ],
)
def test_names_a_command_that_composes_no_configuration(refused, text, told):
    said = refused(text)
    assert "no configuration was composed: " in said
    assert told in said


def test_stops_a_command_that_does_not_end(refused, monkeypatch):
    monkeypatch.setattr(command, "SECONDS", 1.0)
    assert "took more than 1 seconds" in refused("while True: print('still here')")


def test_command_sees_no_gpu_and_may_read_files(refused):
    text = "import os; open('kept').read(); raise ValueError(os.environ['CUDA_VISIBLE_DEVICES'] or 'no GPU')"
    assert "ValueError: no GPU" in refused(text)
