"""make test-mutants: which scenario folders a change touches, and when it runs none."""

from __future__ import annotations

import importlib

import pytest
from installed import CHECKOUT


@pytest.fixture
def touched(monkeypatch):
    monkeypatch.syspath_prepend(CHECKOUT / "requirements")
    return importlib.import_module("touched_mutants")


@pytest.mark.parametrize(
    ("files", "folders"),
    [
        (["scenarios/batch/dataset_null_fill/test_dataset_null_fill.py"], ["batch"]),
        (
            ["pytest_rlregress/remedies/weight_sync.py", "scenarios/tokens/a/failure.toml"],
            ["tokens", "weight_sync"],
        ),
        (["tests/mutants/batch_columns.py"], ["batch"]),
        (["pytest_rlregress/plugin.py", "docs/scenarios.md", "scenarios/component_checks.py"], []),
    ],
)
def test_folders_of_changed_files(touched, files, folders):
    assert touched.find_touched(files) == folders


def test_more_folders_than_fit_are_left_to_the_nightly(touched, monkeypatch, capsys):
    names = ["batch", "tokens", "weight_sync"]
    monkeypatch.setattr(touched, "changed_files", lambda: [f"scenarios/{name}/it_fails/failure.toml" for name in names])
    assert touched.main([]) == 0
    assert "more than 2 folders differ (batch, tokens, weight_sync)" in capsys.readouterr().out
