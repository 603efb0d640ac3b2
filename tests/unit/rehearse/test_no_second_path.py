"""The user's trainer trains: a rehearsal has no loss, no sampler, no loop and no optimizer step of its own."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import pytest_rlregress
from pytest_rlregress.commands.rehearse import hook, ways_in

PACKAGE = Path(pytest_rlregress.__file__).parent / "commands" / "rehearse"
TRAINS = {
    "backward",
    "step",
    "zero_grad",
    "clip_grad_norm_",
    "multinomial",
    "log_softmax",
    "create_optimizer",
}


@pytest.mark.parametrize("file", sorted(PACKAGE.glob("*.py")), ids=lambda file: file.stem)
def test_no_trainer_logic(file):
    tree = ast.parse(file.read_text(encoding="utf-8"))
    calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    called = {one.attr for one in calls if isinstance(one, ast.Attribute)}
    assert called & TRAINS == set()
    names = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not any(name and name.startswith("torch.optim") for name in names)


def test_the_hook_names_functions_that_there_are():
    assert all(callable(getattr(ways_in, name)) for name in hook.WATCHED.values())


def test_the_hook_imports_the_standard_library_alone():
    import sys

    tree = ast.parse((PACKAGE / "hook.py").read_text(encoding="utf-8"))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert {name.partition(".")[0] for name in names} <= sys.stdlib_module_names
