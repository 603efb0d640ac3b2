"""Decide the conditions on an engine's version in a trainer's source, so that a checker skips what isn't reached."""

from __future__ import annotations

import ast

from packaging.version import InvalidVersion, Version


def decide_guards(source: str, module: str, version: str) -> str:
    """Return a file with the conditions on the engine's version decided, each line where it was."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return source
    guards = Guards(module, version, tree)
    lines = source.splitlines(keepends=True)
    tests = [node.test for node in ast.walk(tree) if isinstance(node, (ast.If, ast.IfExp))]
    for test in sorted(tests, key=lambda one: (-one.lineno, -one.col_offset)):
        decided = guards.decide(test)
        if decided is not None:
            _replace(lines, test, str(decided))
    return "".join(lines)


def _replace(lines: list[str], node: ast.expr, text: str) -> None:
    """Replace an expression in its lines; the line breaks in it stay, in brackets."""
    first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
    begin = lines[first].encode()[: node.col_offset].decode()
    end = lines[last].encode()[node.end_col_offset :].decode()
    written = text if first == last else f"({text}"
    if first == last:
        lines[first] = f"{begin}{written}{end}"
        return
    lines[first] = f"{begin}{written}\n"
    for at in range(first + 1, last):
        lines[at] = "\n"
    lines[last] = f"){end}"


class Guards:
    """Decides conditions on the version of a package."""

    def __init__(self, module: str, version: str, tree: ast.Module) -> None:
        self._module, self._version = module, Version(version)
        self._names: dict[str, bool | Version] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                value = self._read(node.value)
                if value is not None:
                    self._names[node.targets[0].id] = value

    def decide(self, node: ast.expr) -> bool | None:
        """Return whether a condition holds; None for one that isn't on the version alone."""
        value = self._read(node)
        return value if isinstance(value, bool) else None

    def _read(self, node: ast.expr) -> bool | Version | None:
        if isinstance(node, ast.Name):
            return self._names.get(node.id)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            value = self._read(node.operand)
            return not value if isinstance(value, bool) else None
        if isinstance(node, ast.BoolOp):
            return self._read_all(node)
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            return self._compare(node)
        if isinstance(node, ast.Attribute):
            return self._version if ast.unparse(node) == f"{self._module}.__version__" else None
        return self._call(node) if isinstance(node, ast.Call) else None

    def _read_all(self, node: ast.BoolOp) -> bool | None:
        values = [self._read(one) for one in node.values]
        ends = isinstance(node.op, ast.Or)
        if ends in values:
            return ends
        return None if not all(isinstance(one, bool) for one in values) else not ends

    def _compare(self, node: ast.Compare) -> bool | None:
        left, right = self._read(node.left), self._read(node.comparators[0])
        if not isinstance(left, Version) or not isinstance(right, Version):
            return None
        compared = {
            ast.Lt: left < right,
            ast.LtE: left <= right,
            ast.Gt: left > right,
            ast.GtE: left >= right,
            ast.Eq: left == right,
            ast.NotEq: left != right,
        }
        return compared.get(type(node.ops[0]))

    def _call(self, node: ast.Call) -> bool | Version | None:
        called = ast.unparse(node.func).rpartition(".")[2]
        texts = [one.value for one in node.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
        if called in ("parse", "Version") and node.args:
            return self._parse(texts[0]) if texts else _as_version(self._read(node.args[0]))
        if called in ("get_version", "version") and texts == [self._module]:
            return self._version
        if called == f"is_{self._module}_available":
            bounds = {word.arg: word.value for word in node.keywords}
            least = bounds.get("min_version")
            wanted = self._parse(least.value) if isinstance(least, ast.Constant) else None
            return not bounds or (isinstance(wanted, Version) and self._version >= wanted)
        return None

    def _parse(self, text: object) -> Version | None:
        try:
            return Version(str(text))
        except InvalidVersion:
            return None


def _as_version(value: bool | Version | None) -> Version | None:
    return value if isinstance(value, Version) else None
