"""Find the names and calls of a trainer that no longer bind in another engine, by a type checker that runs twice."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pytest_rlregress.commands.moved.checker import (
    RULES,
    Checker,
    Diagnostic,
    find_checker,
    open_checker,
    read_version_of_checker,
)
from pytest_rlregress.commands.moved.facts import Facts
from pytest_rlregress.commands.moved.wheels import Release

# What a trainer catches that expects it; a call that fails under "except Exception" is a call that fails.
_CAUGHT = {
    "missing-module-member": r"ImportError|\bException\b",
    "import-not-found": r"ImportError|ModuleNotFoundError|\bException\b",
    "missing-attribute": r"AttributeError",
}


@dataclass(frozen=True)
class Broken:
    """A place of a trainer that doesn't bind.

    Attributes:
        path: The trainer's file.
        line: In it.
        rule: The checker's rule.
        text: What the checker says, without its file.
        function: The function that the place is in; "" for the module itself, which every run reaches.
        guarded: Whether the trainer expects that it may fail: within ``try`` with ``except ImportError``, or for types.
    """

    path: str
    line: int
    rule: str
    text: str
    function: str = ""
    guarded: bool = False


def find_unbound(trainer: Release, ends: tuple[Release, Release], module: str, facts: Facts) -> list[Broken]:
    """Find what binds in the first release of a package and not in the second.

    Raises:
        NotRead: The checker isn't installed here, or failed.
    """
    find_checker()
    with open_checker() as checker:
        found = [find_diagnostics(checker, trainer, engine, module, facts) for engine in ends]
    before = {tuple(_identify(one)) for one in found[0]}
    return [place(trainer, one) for one in found[1] if tuple(_identify(one)) not in before]


def find_diagnostics(
    checker: Checker, trainer: Release, engine: Release, module: str, facts: Facts
) -> list[Diagnostic]:
    """Find what the checker says of a trainer's names and calls with one release of a package, kept in the cache.

    Raises:
        NotRead: The checker failed.
    """

    def check() -> list[dict[str, Any]]:
        found = checker.check(trainer, engine, module)
        return [vars(one) for one in found if _is_about(one, module, trainer)]

    key = ["bound", trainer.key, engine.key, module, read_version_of_checker()]
    kept = facts.find(key if trainer.key and engine.key else None, check)
    return [Diagnostic(**one) for one in kept]


def _identify(one: Diagnostic) -> Iterator[Any]:
    """Yield what says that two findings are the same: the name that the checker gives, and not where it stands."""
    yield from (one.path, one.line, one.rule)
    yield from re.findall(r"`([^`]+)`", one.text)[:1]


def _is_about(one: Diagnostic, module: str, trainer: Release) -> bool:
    """Return whether a finding may be about the engine: an import that names another package isn't."""
    if one.text.startswith("Unresolved attribute"):  # is set here, which any object takes
        return False
    if one.rule not in ("missing-module-member", "import-not-found"):
        return True
    names = re.findall(r"`([\w.]+)`", one.text)
    if any(name == module or name.startswith(f"{module}.") for name in names):
        return True
    lines = trainer.read(one.path).splitlines()
    near = " ".join(lines[max(0, one.line - 25) : one.line])
    froms = re.findall(r"(?:from|import) ([\w.]+)", near)
    return bool(froms) and (froms[-1] == module or froms[-1].startswith(f"{module}.")) and "member" in one.text


def place(trainer: Release, one: Diagnostic) -> Broken:
    """Say in which function a place is, and whether its failure is expected."""
    function, guarded = "", False
    tree = trainer.parse(one.path)
    for node in ast.walk(tree) if tree else ():
        begin, end = getattr(node, "lineno", 0), getattr(node, "end_lineno", 0) or 0
        if not begin <= one.line <= end:
            continue
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            function = node.name
        elif isinstance(node, ast.Try) and node.handlers and one.line < node.handlers[0].lineno:
            caught = " ".join(ast.unparse(handler.type) if handler.type else "Exception" for handler in node.handlers)
            expected = _CAUGHT.get(one.rule, "")
            guarded = guarded or bool(expected and re.search(expected, caught))
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            guarded = True
    return Broken(one.path, one.line, one.rule, one.text, function, guarded)


def describe_rule(rule: str) -> str:
    """Describe what a rule says, in words."""
    return RULES[rule]
