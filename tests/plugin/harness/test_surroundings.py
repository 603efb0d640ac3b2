"""Every command in odd surroundings: it answers, or says in a sentence what it lacks, and shows no traceback."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from patience import PATIENCE

COMMANDS = {
    "help": ["--help"],
    "version": ["--version"],
    "list": ["list", "mask-length-drift"],
    "new": ["new", "my-failure", "--folder", "made/area"],
    "diagnose": ["diagnose", "train.log"],
    "preflight": ["preflight", "run.yaml", "--hw=h100"],
    "preflight of a script": ["preflight", "--hw=h100", "--", "bash", "run.sh"],
    "audit": ["audit", "batch.jsonl"],
    "report": ["report", "records"],
    "expect": ["expect", "records", "--because=a", "--issue=b"],
    "moved": ["moved", "verl==0.9.0..0.9.1", "--offline"],
    "completion": ["--print-completion", "bash"],
    "bisect": ["bisect", "--help"],
    "upgrade": ["upgrade", "--help"],
    "run": ["run", "--help"],
    "rehearse": ["rehearse", "--help"],
}
# Without an entry in passwd for this user, as in a container with --user 12345.
NOBODY = """
import pwd
def no_entry(_): raise KeyError("uid not found")
pwd.getpwuid = pwd.getpwnam = no_entry
"""
NAMES = ("HOME", "USER", "LOGNAME", "LNAME", "USERNAME", "XDG_CACHE_HOME", "RLREGRESS_CACHE_DIR")


def gone(folder):
    """A working folder that is deleted."""
    here = folder / "gone"
    here.mkdir()
    return {"preexec_fn": lambda: (os.chdir(here), here.rmdir()), "cwd": None}


SURROUNDINGS = {
    "nobody": lambda folder: {"nobody": True},
    "no home": lambda folder: {"env": {"HOME": str(folder / "none")}},
    "home is a file": lambda folder: {"env": {"HOME": str(folder / "train.log")}},
    "folder is gone": gone,
    "ascii": lambda folder: {"env": {"PYTHONIOENCODING": "ascii:strict", "LC_ALL": "C", "PYTHONUTF8": "0"}},
    "closed output": lambda folder: {"preexec_fn": lambda: os.close(1)},
    "closed input": lambda folder: {"preexec_fn": lambda: os.close(0)},
    "full disk": lambda folder: {"stdout": "/dev/full"},
    "optimized": lambda folder: {"env": {"PYTHONOPTIMIZE": "2"}},
    "no temporary folder": lambda folder: {"env": {"TMPDIR": str(folder / "none")}},
    "odd numbers": lambda folder: {"env": {"COLUMNS": "0", "RLREGRESS_TIMEOUT": "never", "RLREGRESS_SCENARIOS": ""}},
    "no path": lambda folder: {"env": {"PATH": ""}},
}


@pytest.fixture
def folder(tmp_path):
    """A folder with something for every command."""
    (tmp_path / "train.log").write_text("ValueError: something long enough\n")
    (tmp_path / "run.yaml").write_text("data: {train_batch_size: 256}\nactor_rollout_ref: {model: {path: a/b-7B}}\n")
    (tmp_path / "run.sh").write_text("python3 -c 'print(1)'; rm -rf records\n")
    (tmp_path / "batch.jsonl").write_text('{"input": "a", "output": "b", "score": 1.0}\n' * 4)
    (tmp_path / "records").mkdir()
    (tmp_path / "site").mkdir()
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
@pytest.mark.parametrize("make", SURROUNDINGS.values(), ids=SURROUNDINGS)
def test_command_ends_without_a_traceback(folder, command, make):
    odd = {"cwd": folder, "env": {}, "stdout": os.devnull, **make(folder)}
    variables = {**os.environ, "RLREGRESS_CACHE_DIR": str(folder / "cache"), **odd.pop("env")}
    if odd.pop("nobody", False):
        (folder / "site/sitecustomize.py").write_text(NOBODY)
        variables = {name: value for name, value in variables.items() if name not in NAMES}
        variables["PYTHONPATH"] = str(folder / "site")
    with open(odd.pop("stdout"), "w") as out:
        done = subprocess.run(
            [sys.executable, "-m", "pytest_rlregress.cli", *command],
            env=variables,
            stdout=out,
            stderr=subprocess.PIPE,
            input=b"" if command[0] == "new" else None,
            **odd,
        )
    assert b"Traceback" not in done.stderr, done.stderr.decode()
    assert done.returncode in (0, 1, 2, 3), done.stderr.decode()


def test_contained_test_of_a_user_without_name_and_after_a_folder_is_gone(run, monkeypatch, pytester):
    (site := pytester.mkdir("site")).joinpath("sitecustomize.py").write_text(NOBODY)
    monkeypatch.setenv("PYTHONPATH", str(site))
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    result = run(
        "import os, tempfile, pytest\n"
        "def test_leaves(): os.chdir(folder := tempfile.mkdtemp()), os.rmdir(folder)\n"
        "@pytest.mark.isolated\n"
        "def test_contained(): pass\n"
    )
    result.assert_outcomes(passed=2)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGKILL])
def test_preflight_that_is_ended_ends_its_command(folder, number):
    (folder / "loop.py").write_text(
        "import os, pathlib, time\nopen('/dev/null'); print(os.getpid(), flush=True)\nwhile True: time.sleep(0.1)\n"
    )
    run = subprocess.Popen(
        [sys.executable, "-m", "pytest_rlregress.cli", "preflight", "--hw=cpu", "--", sys.executable, "loop.py"],
        cwd=folder,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    children = Path(f"/proc/{run.pid}/task/{run.pid}/children")
    while not (child := children.read_text().split()):
        time.sleep(0.05)
    time.sleep(0.3)
    run.send_signal(number)
    _, err = run.communicate(timeout=PATIENCE)
    assert run.returncode == (-9 if number == signal.SIGKILL else 128 + number)
    assert b"Traceback" not in err
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until and is_running(int(child[0])):
        time.sleep(0.05)
    assert not is_running(int(child[0]))


def is_running(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False
