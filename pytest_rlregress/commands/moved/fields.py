"""Read dataclasses of releases: found by name, defaults through ``__post_init__``, values refused."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pytest_rlregress.commands.moved.wheels import Release
from pytest_rlregress.stack.class_sources import UNKNOWN, ClassSource, Field


def find_class(name: str, releases: Sequence[Release], near: str = "") -> ClassSource | None:
    """Find a class by its name, in the first release that has it; of several the one whose path is nearest."""
    for at, release in enumerate(releases):
        for path in sorted(
            release.classes.get(name, ()),
            key=lambda one: (-len(_share(one, near)), "experimental" in one, len(one), one),
        ):
            module = release.parse(path)
            nodes = (one for one in module.body if isinstance(one, ast.ClassDef)) if module else ()
            node = next((one for one in nodes if one.name == name), None)
            if node is not None and module is not None:
                found = ClassSource(node, module, release.package)
                bases = [ast.unparse(one).rpartition(".")[2] for one in node.bases]
                later = releases[at:]
                found.bases = [one for base in bases if base != name and (one := find_class(base, later, path))]
                return found
    return None


def _share(path: str, other: str) -> str:
    at = next((at for at, pair in enumerate(zip(path, other, strict=False)) if pair[0] != pair[1]), len(other))
    return path[:at].rpartition("/")[0]


def find_defaults(source: ClassSource, fields: Mapping[str, Field], given: Mapping[str, Any]) -> dict[str, Any]:
    """Find the values that an object has which is made with some arguments, as far as ``__post_init__`` tells."""
    values = {name: one.value for name, one in fields.items()} | {
        name: value for name, value in given.items() if name in fields
    }
    fixed = {name for name in given if given[name] is not None}
    _run_post_init(source.lineage(), values, fixed)
    return values


def _run_post_init(lineage: Sequence[ClassSource], values: dict[str, Any], fixed: set[str]) -> None:
    for at, cls in enumerate(lineage):
        methods = (one for one in cls.node.body if isinstance(one, ast.FunctionDef))
        if method := next((one for one in methods if one.name == "__post_init__"), None):
            _run(method.body, lineage[at + 1 :], values, fixed)
            return


def _run(body: Sequence[ast.stmt], above: Sequence[ClassSource], values: dict[str, Any], fixed: set[str]) -> None:
    """Run the statements that can be followed; what another one may assign isn't known if it was None."""
    for node in body:
        if isinstance(node, ast.Expr) and ast.unparse(node.value).startswith("super().__post_init__"):
            _run_post_init(above, values, fixed)
        elif isinstance(node, ast.If):
            test = _evaluate(node.test, values)
            if test != UNKNOWN:
                _run(node.body if test else node.orelse, above, values, fixed)
            else:
                _forget([*node.body, *node.orelse], values, fixed)
        elif isinstance(node, ast.Assign) and (name := _own(node.targets[0])) in values and name not in fixed:
            value = _evaluate(node.value, values)
            if value != UNKNOWN or values[name] in (None, "auto"):
                values[name] = value
        elif not isinstance(node, ast.Assign):
            _forget([node], values, fixed)


def _forget(nodes: Sequence[ast.stmt], values: dict[str, Any], fixed: set[str]) -> None:
    """Take what some statements may assign for unknown, where it isn't set: ``auto`` may mean None again."""
    for node in nodes:
        for one in ast.walk(node):
            name = _own(one.targets[0]) if isinstance(one, ast.Assign) else ""
            if name in values and name not in fixed and values[name] in (None, "auto"):
                values[name] = UNKNOWN


def _own(node: ast.AST) -> str:
    """Return the name of ``self.name``; "" for anything else."""
    return node.attr if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "self" else ""


def _evaluate(node: ast.expr, values: Mapping[str, Any]) -> Any:
    """Evaluate an expression of constants and fields; ``???`` for what has anything else in it."""
    if isinstance(node, ast.Constant):
        return node.value
    if name := _own(node):
        return values.get(name, UNKNOWN)
    if isinstance(node, ast.IfExp):
        test = _evaluate(node.test, values)
        return UNKNOWN if test == UNKNOWN else _evaluate(node.body if test else node.orelse, values)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        value = _evaluate(node.operand, values)
        return UNKNOWN if value == UNKNOWN else not value
    if isinstance(node, ast.BoolOp):
        return _evaluate_all(node, values)
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        return _compare(node, values)
    called = node.func if isinstance(node, ast.Call) else None
    if isinstance(called, ast.Attribute) and called.attr == "get" and isinstance(called.value, ast.Dict):
        return _look_up(node, called.value, values)  # type: ignore[arg-type]
    return UNKNOWN


def _evaluate_all(node: ast.BoolOp, values: Mapping[str, Any]) -> Any:
    found = [_evaluate(one, values) for one in node.values]
    ends = isinstance(node.op, ast.Or)
    decided = next((one for one in found if one != UNKNOWN and bool(one) is ends), UNKNOWN)
    return found[-1] if decided == UNKNOWN and UNKNOWN not in found else decided


def _compare(node: ast.Compare, values: Mapping[str, Any]) -> Any:
    left, right = _evaluate(node.left, values), _evaluate(node.comparators[0], values)
    if UNKNOWN in (left, right):
        return UNKNOWN
    if isinstance(node.ops[0], (ast.Is, ast.Eq)):
        return left == right
    return left != right if isinstance(node.ops[0], (ast.IsNot, ast.NotEq)) else UNKNOWN


def _look_up(call: ast.Call, table: ast.Dict, values: Mapping[str, Any]) -> Any:
    key = _evaluate(call.args[0], values)
    for name, value in zip(table.keys, table.values, strict=True):
        if name is not None and key != UNKNOWN and _evaluate(name, values) == key:
            return _evaluate(value, values)
    return _evaluate(call.args[1], values) if len(call.args) > 1 and key != UNKNOWN else None


def find_refused_values(source: ClassSource) -> Iterator[tuple[str, tuple[str, ...], tuple[str, ...], str]]:
    """Find the texts that a dataclass refuses or allows alone, by the checks that it makes itself.

    Yields:
        The field, the texts that it refuses, those that it allows if it lists them, and what it says.
    """
    for cls in source.lineage():
        for node in ast.walk(cls.node):
            if not isinstance(node, ast.If) or not isinstance(node.test, ast.Compare) or len(node.test.ops) != 1:
                continue
            raised = next((one for one in node.body if isinstance(one, ast.Raise)), None)
            if raised is None:
                continue
            name, right = _own(node.test.left), node.test.comparators[0]
            texts = [str(one.value) for one in getattr(right, "elts", [right]) if isinstance(one, ast.Constant)]
            texts = [one for one in texts if one != "None"]
            said = " ".join(_say(raised).split())
            if name and texts and isinstance(node.test.ops[0], (ast.Eq, ast.In)):
                yield name, tuple(texts), (), said
            elif name and texts and isinstance(node.test.ops[0], (ast.NotIn, ast.NotEq)):
                yield name, (), tuple(texts), said


def _say(node: ast.Raise) -> str:
    """Return the text of an exception that is raised, with what varies left out."""
    parts = (one.value for one in ast.walk(node) if isinstance(one, ast.Constant) and isinstance(one.value, str))
    return "".join(parts)[:200]
