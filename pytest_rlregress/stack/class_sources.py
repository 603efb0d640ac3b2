"""Read classes from source: what one inherits, the fields of a dataclass with their defaults. Nothing is imported."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field, replace
from typing import Any

#: A value that isn't known here.
UNKNOWN = "???"
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
        is_partial: Whether one of them isn't found.
        is_made_of_fields: Whether one of them, such as pydantic's BaseModel, makes its constructor of its fields.
    """

    node: ast.ClassDef
    module: ast.Module
    package: str
    bases: list[ClassSource] = field(default_factory=list)
    is_partial: bool = False
    is_made_of_fields: bool = False

    def lineage(self) -> list[ClassSource]:
        """Return it and what it inherits, the nearest first."""
        found = [self]
        for base in self.bases:
            found += [one for one in base.lineage() if one not in found]
        return found


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
