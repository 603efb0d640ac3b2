"""Imports point down, those for annotations and inside of functions included."""

from __future__ import annotations

import ast
import graphlib
from pathlib import Path

import pytest

import pytest_rlregress

PACKAGE = Path(pytest_rlregress.__file__).parent
#: From the top. Not in it: commands, which may import all of these, and scenarios, which are tests.
LAYERS = (
    {"plugin"},
    {"goldens", "records"},
    {"agreement", "fixtures"},
    {"harness"},
    {"containment"},
    {"diagnosis"},
    {"failures"},
    {"remedies"},
    {"hardware", "logs", "stack"},
    {"util"},
)
LEVELS = {part: level for level, parts in enumerate(LAYERS) for part in parts}


def level_of(module):
    """The level of the nearest part that a module is in, or None."""
    while module and module not in LEVELS:
        module = module.rpartition(".")[0]
    return LEVELS.get(module)


def find_modules(part):
    """The modules of a part, by dotted name without the package's, less those that are parts of their own."""
    path = PACKAGE / part.replace(".", "/")
    files = [*path.rglob("*.py")] if path.is_dir() else [path.with_suffix(".py")]
    dotted = {".".join(file.relative_to(PACKAGE).with_suffix("").parts): file for file in files}
    names = {name.removesuffix(".__init__"): file for name, file in dotted.items()}
    return {name: file for name, file in names.items() if level_of(name) == LEVELS[part]}


def read_imports(file):
    """What a file imports of the package, as dotted names; of ``from a import b`` both a and a.b."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        else:
            continue
        yield from (name.partition(".")[2] for name in names if name.startswith(f"{PACKAGE.name}."))


@pytest.mark.parametrize("part", sorted(LEVELS))
def test_a_part_imports_only_what_is_below_it(part):
    modules = find_modules(part)
    assert modules
    up = [
        f"{module} imports {name}"
        for module, file in modules.items()
        for name in read_imports(file)
        if (above := level_of(name)) is not None and above < LEVELS[part]
    ]
    assert up == []


def test_harness_modules_have_no_import_cycle():
    modules = find_modules("plugin") | find_modules("harness") | find_modules("containment")
    packages = {"harness", "containment"}  # their __init__ has what the modules share
    graph = {
        module: {name for name in read_imports(file) if name in modules and name not in packages}
        for module, file in modules.items()
        if module not in packages
    }
    graphlib.TopologicalSorter(graph).prepare()
