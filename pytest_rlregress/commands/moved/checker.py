"""Run the type checker over files of a trainer with one release of a package below it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata, util
from pathlib import Path
from tempfile import TemporaryDirectory

from pytest_rlregress.commands.moved.guards import decide_guards
from pytest_rlregress.commands.moved.index import NotRead
from pytest_rlregress.commands.moved.wheels import Release

_SECONDS = 300.0
#: What the checker says of names, calls and attributes; all else is about types.
RULES = {
    "missing-module-member": "is gone",
    "import-not-found": "is gone",
    "missing-attribute": "is gone",
    "unknown-argument": "takes no such argument",
    "missing-argument": "wants an argument that isn't given",
    "too-many-positional-arguments": "takes fewer positional arguments",
}
_TITLE = re.compile(r"(?:error|warning)\[([\w-]+)\]: (.*)")
_PLACE = re.compile(r" *--> (.*?):(\d+):\d+")
# Without them every dataclass of pydantic takes no argument.
_TYPED = ("pydantic", "pydantic_core", "annotated_types", "typing_inspection", "msgspec", "typing_extensions")


@dataclass(frozen=True)
class Diagnostic:
    """What the checker says about a place.

    Attributes:
        path: The trainer's file.
        line: In it.
        rule: The checker's rule.
        text: Its sentence.
        declared: The file in which what is called is declared, from the package's folder on; "" where it isn't named.
    """

    path: str
    line: int
    rule: str
    text: str
    declared: str = ""


@cache
def read_version_of_checker() -> str:
    """Return the checker's version; "" where it isn't installed as a package."""
    try:
        return metadata.version("ty")
    except metadata.PackageNotFoundError:
        return ""


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


def list_importing(trainer: Release, module: str) -> list[str]:
    """List the trainer's files that import a module."""
    imports = re.compile(rf"^\s*(?:from|import) {re.escape(module)}\b", re.MULTILINE)
    package = trainer.package.replace("-", "_")
    return [
        path
        for path in sorted(trainer.paths)
        if path.startswith(f"{package}/") and path.endswith(".py") and imports.search(trainer.read(path))
    ]


@contextmanager
def open_checker() -> Iterator[Checker]:
    """Yield a checker whose unpacked releases are removed at the end.

    Raises:
        NotRead: The type checker isn't installed here.
    """
    program = find_checker()
    with TemporaryDirectory(prefix="rlregress-") as name:
        yield Checker(program, Path(name).resolve())


@dataclass
class Checker:
    """Checks trainers with releases of a package; a release is unpacked once.

    Attributes:
        program: The type checker.
        top: A folder of its own.
    """

    program: str
    top: Path
    _unpacked: dict[int, Path] = field(default_factory=dict)
    _releases: list[Release] = field(default_factory=list)

    def check(self, trainer: Release, engine: Release, module: str) -> list[Diagnostic]:
        """Check the trainer's files that import a module with one release of it.

        Raises:
            NotRead: The checker failed.
        """
        files = list_importing(trainer, module)
        if not files:
            return []
        package = trainer.package.replace("-", "_")
        sources = self._unpack(trainer, package)
        below = self._unpack(engine, module)
        for path in files:
            decided = decide_guards(trainer.read(path), module, engine.version)
            (sources / path).write_text(decided, encoding="utf-8")
        text = self._run(sources, below, [str(sources / path) for path in files])
        return [*read_diagnostics(text, self.top, sources, below)]

    def forget(self, release: Release) -> None:
        """Remove what is unpacked of a release that isn't checked again."""
        folder = self._unpacked.pop(id(release), None)
        if folder:
            shutil.rmtree(folder)

    def _unpack(self, release: Release, package: str) -> Path:
        if id(release) not in self._unpacked:
            self._releases.append(release)  # so that its id stays its own
            folder = self.top / f"release-{len(self._releases)}"
            folder.mkdir()
            release.unpack(folder, lambda path: path.startswith(f"{package}/") and path.endswith((".py", ".pyi")))
            self._unpacked[id(release)] = folder
        return self._unpacked[id(release)]

    def _run(self, sources: Path, below: Path, files: list[str]) -> str:
        environment = self.top / "environment"
        if not environment.exists():
            _make_environment(environment)
        search = [f"--extra-search-path={folder}" for folder in (below, sources)]
        options = ["--output-format=full", "--exit-zero", "--no-progress", f"--python={environment}"]
        rules = [f"--error={rule}" for rule in RULES]
        try:
            process = subprocess.run(
                [self.program, "check", *options, *search, *rules, *files],
                cwd=self.top,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=_SECONDS,
                check=False,
                env={**os.environ, "NO_COLOR": "1"},
            )
        except subprocess.TimeoutExpired:
            raise NotRead(f"names and calls: the type checker took more than {_SECONDS:.0f} s") from None
        if process.returncode:
            last = process.stderr.strip().rpartition("\n")[2]
            raise NotRead(f"names and calls: the type checker ended with exit code {process.returncode}: {last}")
        return process.stdout


def read_diagnostics(text: str, top: Path, sources: Path, below: Path) -> Iterator[Diagnostic]:
    """Read what the checker says in its full format: a title, its place, and places of what is declared elsewhere."""
    for block in re.split(r"^(?=(?:error|warning)\[)", text, flags=re.MULTILINE):
        title = _TITLE.match(block)
        places = [(top / path, int(line)) for path, line in _PLACE.findall(block)]
        if not title or title[1] not in RULES or not places or not places[0][0].is_relative_to(sources):
            continue
        path, line = places[0]
        declared = [other.relative_to(below) for other, _ in places[1:] if other.is_relative_to(below)]
        said = title[2].replace(f"{top}/", "")
        name = declared[0].as_posix() if declared else ""
        yield Diagnostic(path.relative_to(sources).as_posix(), line, title[1], said, name)


def _make_environment(folder: Path) -> None:
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
