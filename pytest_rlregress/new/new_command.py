"""``rlregress new``: write the skeleton of a scenario from the text of an error."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pytest_rlregress import catalogue
from pytest_rlregress.catalogue import SHIPPED, CatalogueError
from pytest_rlregress.new import error_text, skeleton
from pytest_rlregress.util import files

_SHOWN = 100  # characters of a headline
_USAGE = "rlregress new my-failure --folder scenarios/batch < error.txt"


def declare(commands: Any) -> None:
    """Add the command to argparse's sub-commands."""
    parser = commands.add_parser(
        "new",
        usage="rlregress new ID --folder FOLDER [--subject NAME] [--scenarios FOLDER] < ERROR",
        description="Write the skeleton of a scenario from the text of an error on standard input, a traceback or the "
        "log around a crash: the entry in the folder's failures.toml, with a signature made of exception and message, "
        "and a test file with both sides. What is to be written by hand says so, and fails until it is. In a checkout "
        "of pytest-rlregress also the remedy's place and its mutants. Nothing is overwritten. The exit code is 2 for "
        "bad input.",
        epilog=f"{_USAGE}, or pipe it in: tail -50 train.log | rlregress new my-failure --folder scenarios/batch. "
        "Is the failure documented already? rlregress diagnose train.log.",
    )
    parser.add_argument("id", help="of the failure: lower-case words with dashes, such as weights-only-resume")
    parser.add_argument(
        "--folder",
        type=Path,
        required=True,
        help="the scenario folder it belongs to, with its failures.toml; one that does not exist is made",
    )
    parser.add_argument(
        "--subject",
        metavar="NAME",
        help="the remedy: your function, as package.module:function; in a checkout a name for the new one",
    )
    catalogue.declare(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Write the files; returns the exit code.

    Raises:
        CatalogueError: An id, folder or subject that cannot be, or an entry that exists.
    """
    if sys.stdin.isatty():
        print(f"rlregress new: no error text; pipe one in: {_USAGE}", file=sys.stderr)
        return 2
    text = sys.stdin.buffer.read()
    known = _known(options)
    _check(options, known)
    try:
        error = error_text.read(text)
    except error_text.ErrorTextError as problem:
        print(f"rlregress new: standard input: {problem}", file=sys.stderr)
        return 2
    documented = error_text.named_in(text, known.values())
    if documented:
        print(f"rlregress new: documented already, it seems: {', '.join(documented)}", file=sys.stderr)
    added, fresh = _texts(options, error)
    for path in fresh:
        if path.exists():
            raise CatalogueError(f"{path} exists, and nothing is overwritten")
    for path, content in {**fresh, **added}.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_whole(path, content)
    _say(options.id, error, [*added, *fresh], error_text.named_in(text, catalogue.load([options.folder]).values()))
    folder, seen = options.folder.resolve(), [root.resolve() for root in (SHIPPED, *options.scenarios)]
    if not any(map(folder.is_relative_to, seen)):
        root = folder if folder.parent == Path.cwd() else folder.parent
        print("pytest sees it once pyproject.toml has:")
        print(f'  [tool.pytest.ini_options]\n  rlregress_scenarios = "{os.path.relpath(root)}"')
    return 0


def _known(options: argparse.Namespace) -> catalogue.Catalogue:
    """Every failure that is documented: shipped, of the folders that were named, and beside the new one."""
    roots = {SHIPPED.resolve(), *(folder.resolve() for folder in options.scenarios)}
    beside = [path.parent for path in options.folder.resolve().parent.glob("*/failures.toml")]
    beside = [folder for folder in beside if not any(folder.is_relative_to(root) for root in roots)]
    return catalogue.load([SHIPPED, *options.scenarios, *sorted(beside)])


def _check(options: argparse.Namespace, known: catalogue.Catalogue) -> None:
    """Refuse an id, a folder or a subject that cannot be.

    Raises:
        CatalogueError: The message says which, and what is allowed.
    """
    if not catalogue.ID.fullmatch(options.id):
        raise CatalogueError(f"id {options.id!r} is not allowed; allowed: {catalogue.ID_ALLOWED}")
    if options.id in known:
        raise CatalogueError(f"failure {options.id} exists, in {known[options.id].source}")
    folder, checkout = options.folder, _checkout(options.folder)
    if folder.is_dir():
        inside = sorted(path.parent.name for path in folder.glob("*/failures.toml"))
        if inside:
            raise CatalogueError(
                f"{folder} holds folders of scenarios; give one of them or a new one: {', '.join(inside)}"
            )
        if not (folder / "failures.toml").exists() and any(folder.iterdir()):
            raise CatalogueError(f"{folder} has files, and no failures.toml: give a folder of scenarios, or a new one")
    elif not next(path for path in (folder, *folder.resolve().parents) if path.exists()).is_dir():
        raise CatalogueError(f"{folder} is no folder, and none can be made there")
    if checkout is None and folder.resolve().is_relative_to(SHIPPED.resolve()):
        raise CatalogueError(f"{folder} is of the installed package: give a folder of your own repository")
    own = options.subject and catalogue.OWN_FUNCTION.fullmatch(options.subject)
    if options.subject and not (options.subject.isidentifier() if checkout else own):
        allowed = "a name for the new function" if checkout else "package.module:function"
        raise CatalogueError(f"subject {options.subject!r} is not allowed; allowed: {allowed}")


def _checkout(folder: Path) -> Path | None:
    """The checkout of this project that a folder of scenarios belongs to."""
    root = SHIPPED.resolve().parent
    return root if folder.resolve().parent == SHIPPED.resolve() and (root / "tests" / "mutants").is_dir() else None


def _texts(options: argparse.Namespace, error: error_text.ErrorText) -> tuple[dict[Path, str], dict[Path, str]]:
    """What to write, by path: files that are added to, and new ones.

    Raises:
        CatalogueError: The remedy's module cannot be added to.
    """
    folder, checkout = options.folder, _checkout(options.folder)
    underscored = options.id.replace("-", "_")
    subject = options.subject or (f"without_{underscored}" if checkout else None)
    entries = folder / "failures.toml"
    before = files.text_or_nothing(entries).rstrip("\n")
    entry = skeleton.entry(options.id, error, subject)
    added = {entries: f"{before}\n{entry}" if before else entry.lstrip("\n")}
    fresh = {folder / f"test_{underscored}.py": skeleton.tests(options.id, error, subject)}
    if checkout is None:
        return added, fresh
    if not folder.exists():
        fresh[folder / "__init__.py"] = f'"""{skeleton.MARK.capitalize()}: what goes wrong here, in a line."""\n'
    name = folder.resolve().name
    fresh[checkout / "tests" / "mutants" / f"{underscored}.py"] = skeleton.mutants(options.id, name)
    package = checkout / "pytest_rlregress" / "remedies" / "__init__.py"
    module = package.with_name(f"{name}.py")
    code = f'"""{skeleton.MARK.capitalize()}: remedies for what, in a line."""\n\n__all__ = []\n'
    if module.exists():
        code = module.read_text()
    else:
        added[package] = _importing(package.read_text(), name)
    try:
        added[module] = skeleton.with_remedy(code, str(subject))
    except ValueError as problem:
        raise CatalogueError(f"{module}: {problem}") from None
    return added, fresh


def _importing(package: str, module: str) -> str:
    """Add a module to those that the package of the remedies takes up."""
    lines = package.splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("from "))
    line = f"from pytest_rlregress.remedies.{module} import *  # noqa: F403"
    return "\n".join([*lines[:first], *sorted([*lines[first:], line])]) + "\n"


def _say(failure_id: str, error: error_text.ErrorText, paths: Iterable[Path], named: list[str]) -> None:
    print(f"{failure_id}: {_short(error.headline)}")
    for path in paths:
        print(f"  {os.path.relpath(path)}")
    for other in error.others:
        print(f"not taken, another error of the text: {_short(other)}")
    if failure_id in named:
        print("rlregress diagnose names it in this text: the signature is right.")
    else:
        print("rlregress diagnose does not name it in this text: look at the signature.")
    print(f"Write what says {skeleton.MARK!r}, the act first, until it is REPRODUCED and HELD:")
    print(f"  pytest --hw=cpu -k {failure_id}")


def _short(headline: str) -> str:
    return headline if len(headline) <= _SHOWN else f"{headline[:_SHOWN].rpartition(' ')[0]} …"
