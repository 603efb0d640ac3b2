"""What the installed trainer said of its configuration is used again until anything changes that it was read from."""

from __future__ import annotations

import pytest

from pytest_rlregress.commands.preflight import schema
from pytest_rlregress.commands.preflight.command import ask

PROGRAM = """
import hydra
import settings


@hydra.main(config_path=".", config_name="run", version_base=None)
def main(config):
    pass


main()
"""


class Asked(list):
    """What was asked, and the file that keeps the answer."""


@pytest.fixture
def asked(tmp_path, tmp_path_factory, monkeypatch):
    """A program of Hydra's in a folder; how often it is asked, and what of."""
    kept = tmp_path_factory.mktemp("cache")  # not in a folder that the program searches
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "settings.py").touch()
    (tmp_path / "run.yaml").write_text("lr: 1\n")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.setenv("RLREGRESS_CACHE_DIR", str(kept))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "elsewhere"))
    asked = Asked()

    def noted(*arguments):
        asked.append(arguments)
        return ask(*arguments)

    monkeypatch.setattr(schema, "ask", noted)
    asked.file = kept / "preflight" / "program.json"
    return asked


def keys(folder):
    schema.ask_installed.cache_clear()  # as in a process of its own
    return schema.ask_installed("program", "python", str(folder / "program.py"))["keys"]


def test_is_asked_once_and_again_after_a_change(asked, tmp_path, monkeypatch):
    assert keys(tmp_path) == keys(tmp_path) == ["lr"]
    assert len(asked) == 1
    (tmp_path / "run.yaml").write_text("lr: 1\nn: 8\n")
    assert keys(tmp_path) == keys(tmp_path) == ["lr", "n"]
    assert len(asked) == 2
    (tmp_path / "settings.py").write_text("# what the program imports\n")
    keys(tmp_path)
    assert len(asked) == 3
    (tmp_path / "elsewhere" / "a_package").mkdir()
    keys(tmp_path)
    assert len(asked) == 4
    monkeypatch.setenv("VERL_USE_EXTERNAL_MODULES", "mine")
    keys(tmp_path)
    assert len(asked) == 5
    asked.file.write_text("{")
    assert keys(tmp_path) == ["lr", "n"]
    assert len(asked) == 6


def test_an_environment_is_not_written_down(asked, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "s3cr3t-key")
    keys(tmp_path)
    assert b"s3cr3t" not in asked.file.read_bytes()


def test_an_error_is_not_kept(asked, tmp_path):
    (tmp_path / "run.yaml").write_text("a: [\n")
    words = "program", "python", str(tmp_path / "program.py")
    assert "error" in schema.ask_installed(*words)
    (tmp_path / "run.yaml").write_text("lr: 1\n")
    assert keys(tmp_path) == ["lr"]
