"""Tell under which conditions a line of a trainer runs: what always runs from what the trainer expects to fail."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import cached_property

from pytest_rlregress.commands.moved.checker import Diagnostic
from pytest_rlregress.commands.moved.guards import Guards
from pytest_rlregress.commands.moved.wheels import Release

#: The rules about a name that is imported.
IMPORTS = ("missing-module-member", "import-not-found")
# A call that fails under "except Exception" is a call that fails.
_CAUGHT = {
    "missing-module-member": r"ImportError|ModuleNotFoundError|\bException\b",
    "import-not-found": r"ImportError|ModuleNotFoundError|\bException\b",
    "missing-attribute": r"AttributeError",
}
_CALL_CAUGHT = r"TypeError"
# A condition that asks what the package is or has.
_ASKS = re.compile(
    r"hasattr\(|getattr\(|signature\(|\.parameters\b(?!\()|_available\b|find_spec|TYPE_CHECKING|version", re.IGNORECASE
)
_ASKS_ONCE = re.compile(r"hasattr\(|signature\(|_available\b|find_spec|version", re.IGNORECASE)
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Seen:
    """One release of a package, as the checker saw it.

    Attributes:
        version: The release.
        failing: Path and line of every import that fails: of two imports one of which replaces the other, the second is
            reached only if the first fails.
    """

    version: str
    failing: Collection[tuple[str, int]] = ()


@dataclass
class Conditions:
    """Reads the conditions of a trainer's lines.

    Attributes:
        trainer: The trainer.
        module: The package's.
    """

    trainer: Release
    module: str
    _around: dict[tuple[str, int], list[ast.AST]] = field(default_factory=dict)
    _flags: dict[str, frozenset[str]] = field(default_factory=dict)
    _guards: dict[tuple[str, str], Guards] = field(default_factory=dict)
    _uses: dict[str, list[tuple[str, int]]] = field(default_factory=dict)

    @cached_property
    def sources(self) -> dict[str, str]:
        """The trainer's Python files, by path: each is searched for many names."""
        return {path: self.trainer.read(path) for path in sorted(self.trainer.paths) if path.endswith(".py")}

    def find(self, one: Diagnostic, seen: Seen) -> str:
        """Say what the trainer asks or catches before it gets to a place; "" where nothing is asked."""
        condition = self._find_condition(one.path, one.line, _CAUGHT.get(one.rule, _CALL_CAUGHT), seen)
        names = [node.name for node in self.list_around(one.path, one.line) if isinstance(node, _Function)]
        if condition or not names:
            return condition
        uses = self._list_uses(one.path, names[0])
        if uses and all(self._find_condition(*use, "-", seen) for use in uses):
            return f"{names[0]} is called under a condition"
        return ""

    def list_around(self, path: str, line: int) -> list[ast.AST]:
        """List the nodes of a file that a line is in, the outermost first."""
        key = (path, line)
        if key not in self._around:
            tree = self.trainer.parse(path)
            rest: list[ast.AST] = [tree] if tree else []
            found: list[ast.AST] = []
            while rest:
                node = rest.pop()
                begin, end = getattr(node, "lineno", None), getattr(node, "end_lineno", None)
                if begin is None or end is None or begin <= line <= end:
                    found.append(node)
                    rest += ast.iter_child_nodes(node)
            self._around[key] = sorted(found, key=lambda node: getattr(node, "lineno", 0))
        return self._around[key]

    def _find_condition(self, path: str, line: int, caught: str, seen: Seen) -> str:
        for node in self.list_around(path, line):
            found = ""
            if isinstance(node, ast.Try):
                found = _read_try(node, path, line, caught, seen.failing)
            elif isinstance(node, ast.If):
                found = self._read_branch(path, node, line, seen)
            elif isinstance(node, (ast.IfExp, ast.While)):
                found = self._read_test(path, node.test)
            elif isinstance(node, ast.BoolOp):
                found = self._read_test(path, node.values[0])
            elif isinstance(node, ast.With):
                asked = " ".join(ast.unparse(item.context_expr) for item in node.items)
                found = "its failure is suppressed" if "suppress(" in asked else ""
            elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Module)):
                found = self._find_early_end(path, node.body, line, seen)
            if found:
                return found
        return ""

    def _read_branch(self, path: str, node: ast.If, line: int, seen: Seen) -> str:
        """Say what a condition asks; a condition that the release decides asks nothing in the branch that runs."""
        decided = self._decide(path, node.test, seen.version)
        if decided is None:
            return self._read_test(path, node.test)
        runs = decided == (line <= (node.body[-1].end_lineno or line))
        return "" if runs else "not with this release"

    def _decide(self, path: str, test: ast.expr, version: str) -> bool | None:
        key = (path, version)
        tree = self.trainer.parse(path)
        if key not in self._guards and tree:
            self._guards[key] = Guards(self.module, version, tree)
        return self._guards[key].decide(test) if key in self._guards else None

    def _read_test(self, path: str, test: ast.expr) -> str:
        text = ast.unparse(test)
        named = {node.id for node in ast.walk(test) if isinstance(node, ast.Name)}
        return f"if {text}" if _ASKS.search(text) or named & self._list_flags(path) else ""

    def _find_early_end(self, path: str, body: list[ast.stmt], line: int, seen: Seen) -> str:
        """Find a condition above a line that ends the function."""
        for statement in body:
            if (statement.end_lineno or line) >= line:
                break
            if isinstance(statement, ast.If) and isinstance(statement.body[-1], (ast.Return, ast.Raise)):
                decided = self._decide(path, statement.test, seen.version)
                found = self._read_test(path, statement.test) if decided is None else ""
                if found or decided:
                    return f"unless {found.removeprefix('if ')}" if found else "not with this release"
        return ""

    def _list_flags(self, path: str) -> frozenset[str]:
        """List the names of a file that say whether an import succeeded, or what the package's version is."""
        if path not in self._flags:
            found: set[str] = set()
            tree = self.trainer.parse(path)
            for node in ast.walk(tree) if tree else ():
                if isinstance(node, ast.Try) and any("ImportError" in _read_caught(one) for one in node.handlers):
                    inside = [*node.body, *(one for handler in node.handlers for one in handler.body), *node.orelse]
                    constants = [one for one in inside if isinstance(getattr(one, "value", None), ast.Constant)]
                    found |= {name for statement in constants for name in _list_assigned(statement)}
                elif isinstance(node, ast.Assign) and _ASKS_ONCE.search(ast.unparse(node.value)):
                    found |= {*_list_assigned(node)}
            self._flags[path] = frozenset(found)
        return self._flags[path]

    def _list_uses(self, path: str, name: str) -> list[tuple[str, int]]:
        """List where the trainer names a module's function; a method isn't looked for."""
        tree = self.trainer.parse(path)
        if tree is None or not any(isinstance(node, _Function) and node.name == name for node in tree.body):
            return []
        if name not in self._uses:
            word = re.compile(rf"\b{re.escape(name)}\b")
            found = []
            for file in (file for file, text in self.sources.items() if name in text and word.search(text)):
                named = self.trainer.parse(file)
                for node in ast.walk(named) if named else ():
                    is_name = isinstance(node, ast.Name) and node.id == name
                    if is_name or (isinstance(node, ast.Attribute) and node.attr == name):
                        found.append((file, getattr(node, "lineno", 0)))
            self._uses[name] = found
        return self._uses[name]


def _read_try(node: ast.Try, path: str, line: int, caught: str, failing: Collection[tuple[str, int]]) -> str:
    """Say that the failure of a line is caught, or that it stands in for another one, which doesn't fail."""
    if not node.handlers:
        return ""
    first = node.handlers[0].lineno
    if line < first:
        names = " ".join(map(_read_caught, node.handlers))
        raises = all(isinstance(handler.body[-1], ast.Raise) for handler in node.handlers)
        return f"{names} is caught" if re.search(caught, names) and not raises else ""
    handler = next((one for one in node.handlers if one.lineno <= line <= (one.end_lineno or one.lineno)), None)
    if handler is None or not re.search("ImportError|AttributeError|Exception", _read_caught(handler)):
        return ""
    fails = any(other == path and node.lineno <= at < first for other, at in failing)
    return "" if fails else f"only after {_read_caught(handler)}"


def _read_caught(handler: ast.ExceptHandler) -> str:
    return ast.unparse(handler.type) if handler.type else "Exception"


def _list_assigned(statement: ast.AST) -> Iterator[str]:
    if isinstance(statement, ast.Assign):
        yield from (target.id for target in statement.targets if isinstance(target, ast.Name))
