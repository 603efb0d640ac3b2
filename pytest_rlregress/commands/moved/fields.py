"""Read the fields of dataclasses from source: defaults through inheritance and ``__post_init__``, values refused."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pytest_rlregress.commands.moved.findings import UNKNOWN
from pytest_rlregress.commands.moved.wheels import Release

_DOCUMENTED = re.compile(r"^\s*(\w+) \(.*?defaults? to (?:`{1,2}(.+?)`{1,2}|([\w.'\"-]+))\)", re.MULTILINE)
_FIELDS = ("field", "Field")
_MAKES: dict[str, Any] = {"list": [], "dict": {}, "set": []}


@dataclass(frozen=True)
class Field:
    """A field of a dataclass.

    Attributes:
        value: Its default, ``???`` where it isn't known.
        package: The package that has the default.
        allowed: The texts that it takes, if its type lists them.
        choices: Those that a command line takes, if its metadata list them.
    """

    value: Any
    package: str
    allowed: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()


@dataclass
class ClassSource:
    """A class, where it is and what it inherits.

    Attributes:
        node: Its tree.
        module: That of its file.
        package: Whose it is.
        bases: The classes that it inherits, as far as they are found.
    """

    node: ast.ClassDef
    module: ast.Module
    package: str
    bases: list[ClassSource] = field(default_factory=list)

    def lineage(self) -> list[ClassSource]:
        """Return it and what it inherits, the nearest first."""
        found = [self]
        for base in self.bases:
            found += [one for one in base.lineage() if one not in found]
        return found


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


def find_fields(source: ClassSource) -> dict[str, Field]:
    """Find the fields of a dataclass, those that it inherits among them, with the defaults that the source states."""
    found: dict[str, Field] = {}
    for cls in reversed(source.lineage()):
        documented = _read_documented(cls.node)
        for node in cls.node.body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                name = node.target.id
                if "ClassVar" in ast.unparse(node.annotation):
                    continue
                value = _read_default(node.value, cls.module)
                found[name] = Field(value, cls.package, _read_literal(node.annotation), _read_choices(node.value))
        for name, value in documented.items():
            if name in found and found[name].value in (None, UNKNOWN) and value is not None:
                found[name] = replace(found[name], value=value)
    return found


def _read_documented(node: ast.ClassDef) -> dict[str, Any]:
    """Read the defaults that a docstring states."""
    found = {}
    for name, quoted, plain in _DOCUMENTED.findall(ast.get_docstring(node) or ""):
        try:
            found[name] = ast.literal_eval(quoted or plain)
        except (ValueError, SyntaxError):
            continue
    return found


def _read_default(node: ast.expr | None, module: ast.Module) -> Any:
    """Read a default as a plain value; ``???`` for what is computed."""
    if isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) in _FIELDS:
        given: dict[str | None, ast.expr] = {word.arg: word.value for word in node.keywords}
        if node.args:  # pydantic's
            given["default"] = node.args[0]
        if "default" in given:
            return _read_default(given["default"], module)
        factory = given.get("default_factory")
        if isinstance(factory, ast.Lambda):
            return _read_default(factory.body, module)
        return _MAKES.get(getattr(factory, "id", ""), UNKNOWN)
    if isinstance(node, ast.Name):
        for one in module.body:
            if isinstance(one, ast.Assign) and getattr(one.targets[0], "id", "") == node.id:
                return _read_default(one.value, module)
    try:
        value = ast.literal_eval(node) if node is not None else UNKNOWN
    except (ValueError, SyntaxError, TypeError):
        return UNKNOWN
    return sorted(value) if isinstance(value, (set, frozenset)) else value


def _read_literal(node: ast.expr) -> tuple[str, ...]:
    for one in ast.walk(node):
        if isinstance(one, ast.Subscript) and ast.unparse(one.value).endswith("Literal"):
            inside = one.slice.elts if isinstance(one.slice, ast.Tuple) else [one.slice]
            return tuple(str(text.value) for text in inside if isinstance(text, ast.Constant))
    return ()


def _read_choices(node: ast.expr | None) -> tuple[str, ...]:
    """Read the choices in a field's metadata."""
    for one in ast.walk(node) if node is not None else ():
        for key, value in zip(one.keys, one.values, strict=True) if isinstance(one, ast.Dict) else ():
            if isinstance(key, ast.Constant) and key.value == "choices" and isinstance(value, (ast.List, ast.Tuple)):
                return tuple(str(text.value) for text in value.elts if isinstance(text, ast.Constant))
    return ()


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
