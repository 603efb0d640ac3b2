"""Find the names and calls of a trainer that no longer bind in another engine, by a type checker that runs twice."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from importlib import metadata, util
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pytest_rlregress.commands.moved.facts import Facts
from pytest_rlregress.commands.moved.guards import decide_guards
from pytest_rlregress.commands.moved.index import NotRead
from pytest_rlregress.commands.moved.wheels import Release

_SECONDS = 300.0
#: What the checker says of names, calls and attributes; all else is about types.
_RULES = {
    "missing-module-member": "is gone",
    "import-not-found": "is gone",
    "missing-attribute": "is gone",
    "unknown-argument": "takes no such argument",
    "missing-argument": "wants an argument that isn't given",
    "too-many-positional-arguments": "takes fewer positional arguments",
}
# What a trainer catches that expects it; a call that fails under "except Exception" is a call that fails.
_CAUGHT = {
    "missing-module-member": r"ImportError|\bException\b",
    "import-not-found": r"ImportError|ModuleNotFoundError|\bException\b",
    "missing-attribute": r"AttributeError",
}
_LINE = re.compile(r"(.*?):(\d+):(\d+): (?:error|warning)\[([\w-]+)\] (.*)")
# Without them every dataclass of pydantic takes no argument.
_TYPED = ("pydantic", "pydantic_core", "annotated_types", "typing_inspection", "msgspec", "typing_extensions")


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


def find_checker() -> str:
    """Return the type checker's program.

    Raises:
        NotRead: It isn't installed here.
    """
    beside = Path(sysconfig.get_path("scripts"), "ty")
    found = str(beside) if beside.is_file() else shutil.which("ty")
    if not found:
        raise NotRead("names and calls: the type checker ty isn't installed here: pip install pytest-rlregress[moved]")
    return found


def find_unbound(trainer: Release, ends: tuple[Release, Release], module: str, facts: Facts) -> list[Broken]:
    """Find what binds in the first release of a package and not in the second.

    Raises:
        NotRead: The checker isn't installed here, or failed.
    """
    program = find_checker()

    def check(engine: Release) -> Any:
        key = ["bound", trainer.key, engine.key, module, _version_of_checker()]
        known = key if trainer.key and engine.key else None
        return facts.find(known, partial(_check, program, trainer, engine, module))

    with ThreadPoolExecutor(2) as threads:
        found = [*threads.map(check, ends)]
    before = {tuple(_identify(one)) for one in found[0]}
    return [Broken(**one) for one in found[1] if tuple(_identify(one)) not in before]


def _identify(one: dict[str, Any]) -> Iterator[Any]:
    """Yield what says that two findings are the same: the name that the checker gives, and not where it stands."""
    yield from (one["path"], one["line"], one["rule"])
    yield from re.findall(r"`([^`]+)`", one["text"])[:1]


@cache
def _version_of_checker() -> str:
    try:
        return metadata.version("ty")
    except metadata.PackageNotFoundError:
        return ""


def list_importing(trainer: Release, module: str) -> list[str]:
    """List the trainer's files that import a module."""
    imports = re.compile(rf"^\s*(?:from|import) {re.escape(module)}\b", re.MULTILINE)
    package = trainer.package.replace("-", "_")
    return [
        path
        for path in sorted(trainer.paths)
        if path.startswith(f"{package}/") and path.endswith(".py") and imports.search(trainer.read(path))
    ]


def _check(program: str, trainer: Release, engine: Release, module: str) -> list[dict[str, Any]]:
    """Check the trainer's files against one engine."""
    files = list_importing(trainer, module)
    if not files:
        return []
    with TemporaryDirectory(prefix="rlregress-") as name:
        top = Path(name).resolve()
        package = trainer.package.replace("-", "_")
        trainer.unpack(top / "trainer", lambda path: path.startswith(f"{package}/") and path.endswith(".py"))
        engine.unpack(top / "engine", lambda path: path.startswith(f"{module}/") and path.endswith((".py", ".pyi")))
        for path in files:
            decided = decide_guards(trainer.read(path), module, engine.version)
            (top / "trainer" / path).write_text(decided, encoding="utf-8")
        environment = _make_environment(top / "environment")
        search = [f"--extra-search-path={top / folder}" for folder in ("engine", "trainer")]
        command = [program, "check", "--output-format=concise", "--exit-zero", f"--python={environment}", *search]
        rules = [f"--error={rule}" for rule in _RULES]
        process = subprocess.run(
            [*command, *rules, "--no-progress", *(str(top / "trainer" / path) for path in files)],
            cwd=top,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_SECONDS,
            check=False,
            env={**os.environ, "NO_COLOR": "1"},
        )
        if process.returncode:
            last = process.stderr.strip().rpartition("\n")[2]
            raise NotRead(f"names and calls: the type checker ended with exit code {process.returncode}: {last}")
        found = []
        for line in process.stdout.splitlines():
            said = _LINE.match(line)
            if said and said[4] in _RULES:
                path = str((top / said[1]).resolve().relative_to(top / "trainer"))
                if _is_about(said[5], said[4], module, trainer.read(path), int(said[2])):
                    found.append(_place(trainer, path, int(said[2]), said[4], said[5].replace(f"{top}/", "")))
        return found


def _make_environment(folder: Path) -> Path:
    """Make an environment that has nothing but what types of dataclasses need."""
    packages = folder / f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    packages.mkdir(parents=True)
    (folder / "pyvenv.cfg").write_text(f"home = {Path(sys.base_prefix, 'bin')}\n")
    (folder / "bin").mkdir()
    (folder / "bin/python").symlink_to(sys.executable)
    for name in _TYPED:
        spec = util.find_spec(name)
        if spec and spec.origin:
            origin = Path(spec.origin)
            target = origin.parent if origin.stem == "__init__" else origin
            (packages / target.name).symlink_to(target)
    return folder


def _is_about(text: str, rule: str, module: str, source: str, line: int) -> bool:
    """Return whether a finding may be about the engine: an import that names another package isn't."""
    if rule not in ("missing-module-member", "import-not-found"):
        return True
    lines = source.splitlines()
    near = " ".join(lines[max(0, line - 25) : line])
    names = re.findall(r"`([\w.]+)`", text)
    if any(name == module or name.startswith(f"{module}.") for name in names):
        return True
    froms = re.findall(r"(?:from|import) ([\w.]+)", near)
    return bool(froms) and (froms[-1] == module or froms[-1].startswith(f"{module}.")) and "member" in text


def _place(trainer: Release, path: str, line: int, rule: str, text: str) -> dict[str, Any]:
    """Say in which function a place is, and whether its failure is expected."""
    function, guarded = "", False
    tree = trainer.parse(path)
    for node in ast.walk(tree) if tree else ():
        begin, end = getattr(node, "lineno", 0), getattr(node, "end_lineno", 0) or 0
        if not begin <= line <= end:
            continue
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            function = node.name
        elif isinstance(node, ast.Try) and node.handlers and line < node.handlers[0].lineno:
            caught = " ".join(ast.unparse(one.type) if one.type else "Exception" for one in node.handlers)
            expected = _CAUGHT.get(rule, "")
            guarded = guarded or bool(expected and re.search(expected, caught))
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            guarded = True
    return {"path": path, "line": line, "rule": rule, "text": text, "function": function, "guarded": guarded}


def describe_rule(rule: str) -> str:
    """Describe what a rule says, in words."""
    return _RULES[rule]
