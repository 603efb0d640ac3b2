"""What the source of an installed package says, read without importing it: fields of dataclasses, allowed texts."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class FieldSource:
    """A field of a dataclass: its default and its choices, as far as they are written as constants."""

    default: Any
    choices: tuple[str, ...]


def folder_of(package: str) -> Path | None:
    """Return the folder of a top-level package that is installed, without importing it."""
    try:
        spec = find_spec(package)
    except (ImportError, ValueError):
        return None
    return Path(spec.submodule_search_locations[0]) if spec and spec.submodule_search_locations else None


def release_of(package: str) -> str:
    """Return a package with its version: ``verl 0.9.1``."""
    try:
        return f"{package} {metadata.version(package)}"
    except metadata.PackageNotFoundError:  # a checkout on the path
        return package


def classes_in(files: Sequence[Path]) -> dict[str, ast.ClassDef]:
    """Return the classes that files define, by name."""
    return {node.name: node for file in files for node in _tree(file).body if isinstance(node, ast.ClassDef)}


def fields_of(name: str, classes: Mapping[str, ast.ClassDef]) -> dict[str, FieldSource]:
    """Return the fields of a dataclass and of its bases, as far as those are among the classes."""
    found: dict[str, FieldSource] = {}
    if node := classes.get(name):
        for base in reversed(node.bases):
            found |= fields_of(name_of(base), classes)
        for line in node.body:
            if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                found[line.target.id] = _field(line)
    return found


def texts_of(file: Path, name: str) -> set[str]:
    """Return the texts that a file gives a name as choices.

    They are the values of an enumeration of that name, what a list or Literal of that name holds, the first argument of
    its calls, what is given for an argument of that name, and what a variable or attribute is compared with.
    """
    return {
        constant.value
        for node in ast.walk(_tree(file))
        for part in _choices(node, name)
        for constant in ast.walk(part)
        if isinstance(constant, ast.Constant) and isinstance(constant.value, str)
    }


def _choices(node: ast.AST, name: str) -> Iterator[ast.AST]:
    if isinstance(node, ast.ClassDef) and node.name == name:
        yield from (line.value for line in node.body if isinstance(line, ast.Assign))
    elif isinstance(node, ast.Assign) and any(name_of(target) == name for target in node.targets):
        literal = isinstance(node.value, ast.Subscript) and name_of(node.value.value) == "Literal"
        if literal or isinstance(node.value, (ast.List, ast.Tuple, ast.Set)):
            yield node.value
    elif isinstance(node, ast.Call):
        yield from node.args[:1] if name in (name_of(node.func), _dotted(node.func)) else ()
        yield from (keyword.value for keyword in node.keywords if keyword.arg == name)
    elif isinstance(node, ast.Compare) and name_of(node.left) == name:
        yield from (part for part in node.comparators if isinstance(part, (ast.Constant, ast.List, ast.Tuple, ast.Set)))


def name_of(node: ast.expr) -> str:
    """Return the name, or an attribute's last; nothing of another expression."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _dotted(node: ast.expr) -> str:
    return f"{name_of(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else ""


def _field(line: ast.AnnAssign) -> FieldSource:
    default: ast.expr | None = line.value
    choices: list[Any] = []
    if isinstance(default, ast.Call):  # field(default=…, metadata={"choices": […]})
        given = {keyword.arg: keyword.value for keyword in default.keywords}
        default, metadata_given = given.get("default"), given.get("metadata")
        if isinstance(metadata_given, ast.Dict):
            for key, value in zip(metadata_given.keys, metadata_given.values, strict=True):
                if isinstance(key, ast.Constant) and key.value == "choices":
                    choices = _constant(value) or []
    for part in ast.walk(line.annotation):
        if isinstance(part, ast.Subscript) and name_of(part.value) == "Literal":
            values = _constant(part.slice)
            choices = [*values] if isinstance(values, tuple) else [values]
    return FieldSource(_constant(default), tuple(str(one) for one in choices))


def _constant(node: ast.expr | None) -> Any:
    try:
        return ast.literal_eval(node) if node else None
    except ValueError:
        return None


@cache
def _tree(file: Path) -> ast.Module:
    try:
        return ast.parse(file.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return ast.Module([], [])
