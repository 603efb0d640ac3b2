"""``rlregress upgrade`` on the installed stack, with packages from where uv and pip are configured to look."""

from __future__ import annotations

import json

import pytest

from pytest_rlregress import cli


@pytest.mark.nightly
def test_upgrades_a_dependency_of_transformers_on_the_installed_stack(tmp_path):
    """The real stack and index: one package moves below transformers, and the tests of its scenario say the same."""
    output, answer = tmp_path / "lock.txt", tmp_path / "answer.json"
    words = ["huggingface-hub<1.33", "mask-length-drift", f"--output={output}", f"--json={answer}"]
    assert cli.main(["upgrade", *words, f"--cache-dir={tmp_path / 'cache'}"]) == 0
    found = json.loads(answer.read_text())
    assert found["summary"].startswith("Safe (1 package moves")
    (moved,) = found["asked_for"]
    assert found["changes"] == []
    assert found["unchanged"] > 10
    name, _, _, version = moved.split()
    assert f"{name}=={version}\n" in output.read_text()
