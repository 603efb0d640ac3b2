"""Names that a trainer takes from an engine, and the installed engine doesn't have."""

from __future__ import annotations

import ast
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TypeGuard

from packaging.version import InvalidVersion, Version

from pytest_rlregress.stack import versions

__all__ = ["missing_engine_names"]

_COMPARISONS = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}


@dataclass(frozen=True)
class _Wanted:
    """A name that a line imports; ``name`` is empty for ``import module``."""

    line: int
    module: str
    name: str


def missing_engine_names(package: str, engine: str = "vllm", in_functions: bool = False) -> list[str]:
    """List the imports of an engine's names in a trainer's source that the installed engine can't satisfy.

    Both are read, not imported, except modules of the engine that make their names at run time. What stands in ``try``
    is left out, for its author expects it to fail, unless each ``except`` raises. So is what ``TYPE_CHECKING`` guards.
    Of an ``if`` that compares the engine's version, the branch for the installed one counts. If several branches of
    another ``if`` import, one that can be satisfied is enough.

    Args:
        package: Top-level package that imports, such as ``verl``, ``trl`` or your own.
        engine: Top-level package that is imported from.
        in_functions: List the imports inside functions instead, which fail only when a setting leads there.

    Returns:
        Each as "path:line: module.name", the path relative to the folder that the package is in.

    Raises:
        ValueError: One of the two isn't installed.
    """
    trainer = _folder(package)
    _folder(engine)
    missing = []
    for file in sorted(trainer.rglob("*.py")):
        source = file.read_text(encoding="utf-8", errors="replace")
        if engine not in source:
            continue
        body = _functions(ast.parse(source)) if in_functions else ast.parse(source).body
        where = file.relative_to(trainer.parent)
        missing += [
            f"{where}:{one.line}: {one.module}{one.name and '.'}{one.name}" for one in _unsatisfied(body, engine)
        ]
    return missing


def _folder(package: str) -> Path:
    spec = find_spec(package)
    if not spec or not spec.submodule_search_locations:
        raise ValueError(f"{package} isn't an installed package. Allowed: the name of one, such as verl or vllm.")
    return Path(next(iter(spec.submodule_search_locations)))


def _functions(tree: ast.Module) -> list[ast.stmt]:
    found = (one for one in ast.walk(tree) if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef)))
    return [statement for function in found for statement in function.body]


def _unsatisfied(body: Sequence[ast.stmt], engine: str) -> list[_Wanted]:
    """Return what these statements import from the engine and don't get, without functions inside them."""
    missing: list[_Wanted] = []
    for statement in body:
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            missing += [one for one in _wanted(statement, engine) if not _has(one.module, one.name)]
        elif isinstance(statement, ast.If):
            missing += _unsatisfied_branches(statement, engine)
        elif isinstance(statement, (ast.ClassDef, ast.With, ast.For, ast.While)) or _passes_nothing(statement):
            missing += _unsatisfied(statement.body, engine)
    return missing


def _passes_nothing(statement: ast.stmt) -> TypeGuard[ast.Try]:
    """Return whether this is a ``try`` that lets no missing name pass: without handlers, or all of them raise."""
    return isinstance(statement, ast.Try) and all(
        isinstance(handler.body[-1], ast.Raise) for handler in statement.handlers
    )


def _unsatisfied_branches(statement: ast.If, engine: str) -> list[_Wanted]:
    if "TYPE_CHECKING" in ast.unparse(statement.test):
        return _unsatisfied(statement.orelse, engine)
    decided = _compare_version(statement.test, engine)
    if decided is not None:
        return _unsatisfied(statement.body if decided else statement.orelse, engine)
    branches = [branch for branch in (statement.body, statement.orelse) if _imports(branch, engine)]
    found = [_unsatisfied(branch, engine) for branch in branches]
    if len(found) > 1 and not all(found):
        return []
    return [one for missing in found for one in missing]


def _compare_version(test: ast.expr, engine: str) -> bool | None:
    """Evaluate a condition such as ``_VLLM_VERSION > version.parse("0.11.0")``; None for any other."""
    if not isinstance(test, ast.Compare) or len(test.ops) != 1 or engine not in versions():
        return None
    compare = _COMPARISONS.get(type(test.ops[0]))
    [limit] = test.comparators
    name = ast.unparse(test.left).lower()
    if compare is None or engine not in name or "version" not in name or not isinstance(limit, ast.Call):
        return None
    match limit.args:
        case [ast.Constant(value=str(text))]:
            try:
                return bool(compare(Version(versions()[engine]), Version(text)))
            except InvalidVersion:
                return None
    return None


def _imports(body: Sequence[ast.stmt], engine: str) -> bool:
    every = (node for statement in body for node in ast.walk(statement))
    return any(_wanted(node, engine) for node in every if isinstance(node, (ast.Import, ast.ImportFrom)))


def _wanted(statement: ast.Import | ast.ImportFrom, engine: str) -> list[_Wanted]:
    line = statement.lineno
    if isinstance(statement, ast.Import):
        return [_Wanted(line, one.name, "") for one in statement.names if one.name.partition(".")[0] == engine]
    module = statement.module or ""
    if statement.level or module.partition(".")[0] != engine:
        return []
    return [_Wanted(line, module, one.name) for one in statement.names]


def _has(module: str, name: str) -> bool:
    file = _file(module)
    if file is None:
        return False
    if name in ("", "*") or _file(f"{module}.{name}"):
        return True
    names = _bound(file)
    if "__getattr__" not in names and "*" not in names:
        return name in names
    try:
        return name in names or hasattr(import_module(module), name)
    except Exception:  # it can't be imported on this machine: that says nothing about the name
        return True


@cache
def _file(module: str) -> Path | None:
    """Return a module's source, a folder without one, or a compiled module."""
    top, *inner = module.split(".")
    path = _folder(top).joinpath(*inner)
    candidates = (
        path / "__init__.py",
        path.with_name(f"{path.name}.py"),
        path,
        *path.parent.glob(f"{path.name}.*.so"),
    )
    return next((one for one in candidates if one.exists()), None)


@cache
def _bound(file: Path) -> frozenset[str]:
    """Return the names that a module binds at its top level; "*" for those that can't be read from its source."""
    if file.suffix != ".py":
        return frozenset("*")
    return frozenset(_names(ast.parse(file.read_text(encoding="utf-8")).body))


def _names(body: Sequence[ast.stmt]) -> Iterator[str]:
    for statement in body:
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield statement.name
        elif isinstance(statement, (ast.Import, ast.ImportFrom)):
            yield from ((one.asname or one.name).partition(".")[0] for one in statement.names)
        elif isinstance(statement, (ast.If, ast.Try, ast.With, ast.For, ast.While)):
            handlers = [one.body for one in getattr(statement, "handlers", [])]
            blocks = [getattr(statement, part, []) for part in ("body", "orelse", "finalbody")]
            for block in (*blocks, *handlers):
                yield from _names(block)
        else:
            stores = (node for node in ast.walk(statement) if isinstance(node, ast.Name))
            yield from (node.id for node in stores if isinstance(node.ctx, ast.Store))
