"""``rlregress preflight``: the interpreter that a command starts, and Ray's address."""

from __future__ import annotations

import json
import shlex
import socket
import sys
import venv
from contextlib import closing
from pathlib import Path

import pytest
from commands import START, with_start

from pytest_rlregress.cli import main

# With --installed the stack is imported, and with it what changes the path that the other tests' packages are found by.
pytestmark = pytest.mark.isolated(group="preflight-environment")


@pytest.fixture(autouse=True)
def environment(monkeypatch, tmp_path):
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "DATA", "RAY_ADDRESS", "PYTHONPATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def checked(capsys):
    """Check the toy run with another start: the findings of one failure, and what of it was not checked."""

    def checked(failure, start, *arguments):
        options = ["--hw=rtx-5070-ti", "--json", *(arguments or ["--installed"])]
        main(["preflight", *options, "--", *with_start(start)])
        report = json.loads(capsys.readouterr().out)
        doubts = [one["why"] for one in report["not_checked"] if one["failure"] == failure]
        assert doubts or failure in report["checked"]
        return [one for one in report["findings"] if one["failure"] == failure], doubts

    return checked


@pytest.fixture
def bare(tmp_path):
    venv.create(tmp_path / "bare", with_pip=False, symlinks=True)
    return str(tmp_path / "bare" / "bin" / "python")


@pytest.fixture
def verl(tmp_path):
    """A folder with the part of verl that is looked for."""
    (tmp_path / "clone" / "verl" / "trainer").mkdir(parents=True)
    (tmp_path / "clone" / "verl" / "trainer" / "main_ppo.py").write_text("import hydra\n", encoding="utf-8")
    return tmp_path / "clone"


@pytest.mark.slow
def test_names_an_interpreter_without_verl(checked, bare):
    ((finding,), _) = checked("trainer-not-found", f"{bare} -u -m verl.trainer.main_ppo")
    assert finding["argument"] == f"{bare} -u -m verl.trainer.main_ppo"
    assert f"{bare} has no module verl" in finding["why"]
    assert "interpreter that has verl" in finding["instead"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "start",
    [
        "env PATH={folder} nohup python -m verl.trainer.main_ppo",
        "env PYTHONPATH=/nowhere {bare} -m verl.trainer.main_ppo",
    ],
    ids=["path", "pythonpath"],
)
def test_resolves_the_interpreter_as_the_command_does(checked, bare, start):
    start = start.format(bare=shlex.quote(bare), folder=Path(bare).parent)
    ((finding,), _) = checked("trainer-not-found", start)
    assert "has no module verl" in finding["why"]


@pytest.mark.slow
def test_finds_verl_on_pythonpath(checked, bare, verl):
    start = f"env PYTHONPATH={verl} {bare} -m verl.trainer.main_ppo"
    assert checked("trainer-not-found", start) == ([], [])
    (verl / "verl" / "__init__.py").touch()
    (verl / "verl" / "trainer" / "main_ppo.py").unlink()
    ((finding,), _) = checked("trainer-not-found", start)
    assert "verl.trainer.main_ppo" in finding["why"]


@pytest.mark.parametrize(
    "start",
    ["torchrun -m verl.trainer.main_ppo", "ray job submit -- python3 -m verl.x"],
)
def test_other_programs_are_not_run(checked, start):
    assert checked("trainer-not-found", start) == ([], [])


@pytest.mark.slow
def test_names_the_workers_interpreter(checked, bare):
    key = "ray_kwargs.ray_init.runtime_env.py_executable"
    ((finding,), _) = checked("trainer-not-found", f"{sys.executable} -m verl.trainer.main_ppo +{key}={bare}")
    assert (finding["key"], finding["why"]) == (key, f"{bare} has no module verl")
    command = f"{sys.executable} -m verl.trainer.main_ppo '+{key}=uv run'"
    assert checked("trainer-not-found", command) == ([], [])


def test_checks_the_environment_only_with_installed(checked, bare):
    for failure in ("trainer-not-found", "stale-ray-session"):
        findings, (doubt,) = checked(failure, f"{bare} -m verl.trainer.main_ppo", "--prompt-tokens=9")
        assert findings == []
        assert "--installed" in doubt


def test_finds_a_ray_address_without_an_answer(checked, monkeypatch, tmp_path):
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", address)
        assert checked("stale-ray-session", START) == ([], [])
    ((finding,), _) = checked("stale-ray-session", START)
    assert (finding["argument"], finding["instead"]) == ("environment", "unset RAY_ADDRESS")
    assert f"{address}, as RAY_ADDRESS says" in finding["why"]
    monkeypatch.delenv("RAY_ADDRESS")
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text(address, encoding="utf-8")
    ((finding,), _) = checked("stale-ray-session", START)
    assert finding["instead"].startswith("ray stop ")
    assert str(tmp_path / "ray" / "ray_current_cluster") in finding["why"]
    ((finding,), _) = checked("stale-ray-session", f"env RAY_ADDRESS={address} {START}")
    assert finding["argument"] == f"RAY_ADDRESS={address}"
    assert checked("stale-ray-session", f"env RAY_ADDRESS=local {START}") == ([], [])


def test_looks_up_verl_in_this_interpreter(checked):
    findings, _ = checked("trainer-not-found", f"{sys.executable} -m verl.trainer.main_ppo")
    from importlib.util import find_spec

    assert bool(findings) == (find_spec("verl") is None)
