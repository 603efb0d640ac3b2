"""make test-mutants: which failures a change touches, and when it runs none."""

from __future__ import annotations

import importlib

import pytest
from installed import CHECKOUT


@pytest.fixture
def touched(monkeypatch):
    monkeypatch.syspath_prepend(CHECKOUT / "requirements")
    return importlib.import_module("touched_mutants")


@pytest.mark.parametrize(
    ("files", "touched_by_them"),
    [
        (["scenarios/batch/dataset_null_fill/test_dataset_null_fill.py"], ["batch/dataset-null-fill"]),
        (["scenarios/batch/dataset_null_fill/mutants.py", "scenarios/batch/masks.py"], ["batch/"]),
        (
            ["pytest_rlregress/remedies/weight_sync.py", "scenarios/tokens/pad_is_eos/logs.toml"],
            ["tokens/pad-is-eos", "weight_sync/"],
        ),
        (["pytest_rlregress/plugin.py", "docs/stacks.md", "scenarios/component_checks.py"], []),
        (["scenarios/launch/trainer_not_found/logs.toml"], []),  # without mutants: pytest would find no tests
    ],
)
def test_failures_of_changed_files(touched, files, touched_by_them):
    assert touched.find_touched(files) == touched_by_them


def test_more_areas_than_fit_are_left_to_the_nightly(touched, monkeypatch, capsys):
    names = ["batch", "tokens", "weight_sync"]
    monkeypatch.setattr(touched, "changed_files", lambda: [f"scenarios/{name}/conftest.py" for name in names])
    assert touched.main([]) == 0
    assert "more than 2 areas differ (batch, tokens, weight_sync)" in capsys.readouterr().out
