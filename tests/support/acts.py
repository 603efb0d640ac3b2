"""Whether a test of a failure's side marks where its act begins, as far as its text says."""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Iterator
from dataclasses import dataclass

#: What a test may do before its act without driving the stack, besides what Python brings along.
_OWN_MODULES = {*sys.stdlib_module_names, "pytest", "hypothesis"}
_OWN_NAMES = {*dir(builtins), "silent", "act", "tmp_path", "monkeypatch", "request", "caplog", "capsys", "capfd"}
#: Functions of those that reach into the stack all the same.
_REACHING = ("setattr", "delattr", "syspath_prepend", "import_module")
MISSING = "drives the stack before its act: set the act apart, `with act():`"
HIDDEN = "imports inside its act: an import prepares, it stands before `with act():`"


@dataclass(frozen=True)
class SidedTest:
    """A test function of a failure's side."""

    side: str
    function: ast.FunctionDef
    constants: frozenset[str]


def find_sided(text: str) -> Iterator[SidedTest]:
    """Find the tests of both sides in the text of a test file: each is marked itself, or the whole file is."""
    tree = ast.parse(text)
    of_file = [_side(node.value) for node in tree.body if isinstance(node, ast.Assign) and _is_mark(node)]
    names = frozenset(_constants(tree))
    marks = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            marks[node.targets[0].id] = _side(node.value)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test"):
            own = [_side(one) or marks.get(getattr(one, "id", ""), "") for one in node.decorator_list]
            side = next(filter(None, [*own, *of_file]), "")
            if side:
                yield SidedTest(side, node, names)


def find_fault(test: SidedTest) -> str:
    """Say how a test hides where its act begins; "" if it doesn't.

    Without ``with act():`` the whole body has to be the act: nothing of the stack is imported, and either one call
    alone drives it, or the first one that does is the remedy's, ``subject(…)``.
    """
    acts = [one for one in ast.walk(test.function) if isinstance(one, ast.With) and _is_act(one)]
    if any(_imports(statement) for one in acts for statement in one.body):
        return HIDDEN
    if acts:
        return ""
    calls = [*_driving_calls(test)]
    whole = len(calls) <= 1 or (test.side == "guards" and calls[0] == "subject")
    return "" if whole and not _imports(test.function) else MISSING


def _side(node: ast.expr) -> str:
    text = ast.unparse(node)
    return next((side for side in ("reproduces", "guards") if f"mark.{side}(" in text), "")


def _is_mark(node: ast.Assign) -> bool:
    return any(isinstance(target, ast.Name) and target.id == "pytestmark" for target in node.targets)


def _is_act(node: ast.With) -> bool:
    return any(ast.unparse(item.context_expr) == "act()" for item in node.items)


def _imports(node: ast.AST) -> bool:
    """Return whether a statement imports other modules than Python's own."""
    modules = []
    for one in ast.walk(node):
        if isinstance(one, ast.Import):
            modules += [alias.name for alias in one.names]
        elif isinstance(one, ast.ImportFrom):
            modules.append(one.module or "")
    return any(module.partition(".")[0] not in _OWN_MODULES for module in modules)


def _constants(tree: ast.Module) -> Iterator[str]:
    """Yield the module's names that drive nothing: its constants, and what it imports of Python's own."""
    for node in tree.body:
        if isinstance(node, ast.Assign):
            yield from (name.id for name in ast.walk(node) if isinstance(name, ast.Name))
        elif isinstance(node, (ast.Import, ast.ImportFrom)) and not _imports(node):
            yield from _imported(node)


def _imported(node: ast.Import | ast.ImportFrom) -> list[str]:
    return [alias.asname or alias.name.partition(".")[0] for alias in node.names]


def _driving_calls(test: SidedTest) -> Iterator[str]:
    """Yield the names of the functions that the body calls, in order, but for those of Python and on plain values."""
    function = test.function
    plain = {*_OWN_NAMES, *test.constants, *_parameters_given(function)}
    inner = [one for one in ast.walk(function) if isinstance(one, ast.FunctionDef) and one is not function]
    later = {id(node) for one in inner for statement in one.body for node in ast.walk(statement)}
    for statement in function.body:
        if isinstance(statement, (ast.Import, ast.ImportFrom)) and not _imports(statement):
            plain |= {*_imported(statement)}
        driven = False
        for call in _calls(statement):
            name = _root(call.func)
            reaches = getattr(call.func, "attr", name) in _REACHING
            if id(call) in later or not name or (name in plain and not reaches):
                continue
            driven = True
            yield name
        if not driven:
            plain |= {one.id for one in ast.walk(statement) if isinstance(one, ast.Name) and _is_stored(one)}


def _is_stored(name: ast.Name) -> bool:
    return isinstance(name.ctx, ast.Store)


def _parameters_given(function: ast.FunctionDef) -> set[str]:
    """Return the parameters that a decorator names: of ``parametrize``, of ``given``."""
    text = " ".join(ast.unparse(one) for one in function.decorator_list)
    return {one.arg for one in function.args.args if one.arg != "subject" and one.arg in text}


def _calls(node: ast.AST) -> Iterator[ast.Call]:
    """Yield the calls of a statement in the order in which they are made."""
    for child in ast.iter_child_nodes(node):
        yield from _calls(child)
    if isinstance(node, ast.Call):
        yield node


def _root(function: ast.expr) -> str:
    """Return the name that a call begins with; "" where it goes on from another call, which counts by itself."""
    while isinstance(function, (ast.Attribute, ast.Subscript)):
        function = function.value
    return function.id if isinstance(function, ast.Name) else ""
