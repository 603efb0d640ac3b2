"""Imports point down, those for annotations and inside of functions included: each package has a level of its own."""

from __future__ import annotations

import ast
import graphlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from installed import CHECKOUT

import pytest_rlregress

PACKAGE = Path(pytest_rlregress.__file__).parent
#: What imports no pytest, and what nobody needs an installed stack for.
GROUND = ("audit", "agreement", "records", "diagnosis", "failures", "remedies", "hardware", "logs", "stack", "util")
#: What runs tests.
PLUGIN = ("plugin", "goldens", "fixtures", "harness", "containment")
#: What asks the ground, and starts the plugin as a process.
TOOLS = ("cli", "commands", "trials", "environments")
#: From the top; the scenarios are tests, which may drive all of it.
LEVELS = {part: level for level, part in enumerate(("scenarios", *TOOLS, *PLUGIN, *GROUND))}
#: What runs in the process of pytest though it belongs to a tool: the plugin of a trial.
IN_PYTEST = ("trials.trial_plugin",)
#: What watches in a trainer's process: the recorder of the steps that tests run.
IN_TRAINER = "commands.rehearse."
#: What a tool may read of the plugin: the declaration of its options.
OF_OPTIONS = "harness.settings"


def part_of(module):
    """Return the package or module below the top that a module is in."""
    part = module.partition(".")[0]
    return part if part in LEVELS else None


def find_modules(part):
    """Return the files of a part, by the dotted name of the module without the package's."""
    path = PACKAGE / part
    files = [path.with_suffix(".py")]
    if path.is_dir():
        # scenarios and fixtures are links.
        files = [Path(folder, name) for folder, _, names in os.walk(path, followlinks=True) for name in names]
    dotted = {".".join(file.relative_to(PACKAGE).with_suffix("").parts): file for file in files if file.suffix == ".py"}
    return {name.removesuffix(".__init__"): file for name, file in dotted.items()}


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


def test_every_package_has_a_level():
    found = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    assert found - {"__init__", "hardware_markers"} == LEVELS.keys()


def test_the_document_has_the_same_walls_in_the_same_order():
    tree = (CHECKOUT / "docs" / "architecture.md").read_text().split("```")[1]
    named = [word.removesuffix("/").removesuffix(".py") for word in re.findall(r"^(\S+)", tree, re.MULTILINE)]
    assert named == [*LEVELS, "hardware_markers"]


@pytest.mark.parametrize("part", LEVELS)
def test_a_part_imports_only_what_is_below_it(part):
    modules = find_modules(part)
    assert modules
    up = [
        f"{module} imports {name}"
        for module, file in modules.items()
        for name in read_imports(file)
        if (other := part_of(name)) is not None and LEVELS[other] < LEVELS[part]
    ]
    assert up == []


@pytest.mark.parametrize("part", GROUND)
def test_the_ground_imports_no_pytest(part):
    importing = [
        module
        for module, file in find_modules(part).items()
        for node in ast.walk(ast.parse(file.read_text()))
        if (isinstance(node, ast.Import) and any(alias.name == "pytest" for alias in node.names))
        or (isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in ("pytest", "_pytest"))
    ]
    assert importing == []


@pytest.mark.parametrize("part", TOOLS)
def test_a_tool_starts_the_plugin_as_a_process(part):
    inside = [
        f"{module} imports {name}"
        for module, file in find_modules(part).items()
        if module not in IN_PYTEST
        for name in read_imports(file)
        if part_of(name) in PLUGIN and not name.startswith(OF_OPTIONS) and name != OF_OPTIONS.partition(".")[0]
        if not (module.startswith(IN_TRAINER) and part_of(name) == "fixtures")
    ]
    assert inside == []


@pytest.mark.process
def test_what_watches_a_trainer_imports_no_pytest():
    code = "import sys, pytest_rlregress.commands.rehearse.watch; sys.exit('pytest' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_harness_modules_have_no_import_cycle():
    modules = find_modules("plugin") | find_modules("harness") | find_modules("containment")
    packages = {"harness", "containment"}  # their __init__ has what the modules share
    graph = {
        module: {name for name in read_imports(file) if name in modules and name not in packages}
        for module, file in modules.items()
        if module not in packages
    }
    graphlib.TopologicalSorter(graph).prepare()
