"""Here no trainer is installed and no command has an interpreter: what is read then is what is written."""

from __future__ import annotations

import pytest

from pytest_rlregress.commands.preflight import command


@pytest.fixture(autouse=True)
def no_trainer(monkeypatch, tmp_path_factory):
    monkeypatch.setattr(command, "find_spec", lambda package: None)
    monkeypatch.setenv("PATH", str(tmp_path_factory.mktemp("no-programs")))
