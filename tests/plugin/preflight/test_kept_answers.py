"""The installed trainer's answer is used again until a file of the trainer, a package or the environment changes."""

from __future__ import annotations

import pytest

from pytest_rlregress.commands.preflight import command

PROGRAM = """
import hydra


@hydra.main(config_path=".", config_name="run", version_base=None)
def main(config):
    pass


main()
"""


@pytest.fixture
def keys(tmp_path, monkeypatch):
    """Ask a program of Hydra's for its keys: they, and how often it was run so far."""
    (tmp_path / "toy_trainer").mkdir()
    (tmp_path / "toy_trainer" / "__init__.py").touch()
    (tmp_path / "toy_trainer" / "program.py").write_text(PROGRAM)
    (tmp_path / "toy_trainer" / "run.yaml").write_text("lr: 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("RLREGRESS_CACHE_DIR", str(tmp_path / "cache"))
    ask, runs = command._ask, []
    monkeypatch.setattr(command, "_ask", lambda *words: runs.append(words) or ask(*words))

    def keys():
        command.ask_installed.cache_clear()  # as in a process of its own
        answer = command.ask_installed("toy_trainer", "python", str(tmp_path / "toy_trainer" / "program.py"))
        return answer.get("keys"), len(runs)

    return keys


def test_answer_is_cached_until_a_file_changes(keys, tmp_path, monkeypatch):
    assert [keys(), keys()] == [(["lr"], 1)] * 2
    (tmp_path / "toy_trainer" / "run.yaml").write_text("lr: 1\nn: 8\n")
    assert [keys(), keys()] == [(["lr", "n"], 2)] * 2
    monkeypatch.setenv("VERL_USE_EXTERNAL_MODULES", "mine")
    assert keys() == (["lr", "n"], 3)
    monkeypatch.setattr(command, "distributions", list)
    assert keys() == (["lr", "n"], 4)
    (file,) = (tmp_path / "cache" / "preflight").iterdir()
    file.write_text("{")
    assert keys() == (["lr", "n"], 5)


def test_cache_holds_no_environment_variables(keys, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "s3cr3t-key")
    keys()
    (file,) = (tmp_path / "cache" / "preflight").iterdir()
    assert b"s3cr3t" not in file.read_bytes()


def test_errors_are_not_cached(keys, tmp_path):
    (tmp_path / "toy_trainer" / "run.yaml").write_text("a: [\n")
    assert keys() == (None, 1)
    (tmp_path / "toy_trainer" / "run.yaml").write_text("lr: 1\n")
    assert keys() == (["lr"], 2)
