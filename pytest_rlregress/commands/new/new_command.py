"""``rlregress new``: write the skeleton of a scenario from the text of an error."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pytest_rlregress.commands.new import error_text, skeleton
from pytest_rlregress.failures import catalogue
from pytest_rlregress.failures.catalogue import ENTRY, SHIPPED, CatalogueError, Failure
from pytest_rlregress.util import arguments, files
from pytest_rlregress.util.surroundings import working_folder

_SHOWN = 100  # characters of a headline
_USAGE = "rlregress new my-failure --folder scenarios/batch < error.txt"


def declare(commands: Any) -> None:
    """Add the command to argparse's sub-commands."""
    parser = commands.add_parser(
        "new",
        formatter_class=arguments.ManualFormatter,
        usage="rlregress new ID --folder FOLDER [--subject NAME] [--scenarios FOLDER] < ERROR",
        description="Write the folder of a failure from the text of an error on standard input, a traceback or the log "
        "around a crash: its failure.toml, with a signature made of exception and message, and a test file with both "
        "sides; in a checkout of pytest-rlregress also its mutants. What is to be written by hand says so, and fails "
        "until it is. Nothing is overwritten. The exit code is 2 for bad input.",
        epilog=f"examples:\n  {_USAGE}\n  tail -50 train.log | rlregress new my-failure --folder scenarios/batch\n\n"
        "Is the failure documented already?\n  rlregress diagnose train.log",
    )
    parser.add_argument("id", help="of the failure: lower-case words with dashes, such as weights-only-resume")
    parser.add_argument(
        "--folder",
        type=arguments.path,
        required=True,
        help="the area it belongs to, in which its folder is made; an area that does not exist is made too",
    )
    parser.add_argument(
        "--subject",
        metavar="NAME",
        help="the remedy: your function, as package.module:function, or a function of pytest_rlregress.remedies",
    )
    catalogue.declare(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Write the files; returns the exit code.

    Raises:
        CatalogueError: An id, folder or subject that cannot be, or a failure that exists.
    """
    if sys.stdin.isatty():
        print(f"rlregress new: no error text; pipe one in: {_USAGE}", file=sys.stderr)
        return 2
    text = sys.stdin.buffer.read()
    known = _load_known(options)
    area = options.folder.resolve()
    _refuse_untested(one for one in known.values() if one.folder.parent.resolve() == area)
    folder = options.folder / options.id.replace("-", "_")
    _check(options, known, folder)
    try:
        error = error_text.read(text)
    except error_text.ErrorTextError as problem:
        print(f"rlregress new: standard input: {problem}", file=sys.stderr)
        return 2
    documented = error_text.named_in(text, known.values())
    if documented:
        print(f"rlregress new: documented already, it seems: {', '.join(documented)}", file=sys.stderr)
    written = _texts(options, error, folder)
    for path, content in written.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_whole(path, content)
    _say(options.id, error, written, error_text.named_in(text, catalogue.load([folder]).values()))
    seen = [root.resolve() for root in (SHIPPED, *options.scenarios)]
    if not any(map(area.is_relative_to, seen)):
        root = area if area.parent == working_folder() else area.parent
        print("pytest sees it once pyproject.toml has:")
        print(f'  [tool.pytest.ini_options]\n  rlregress_scenarios = "{os.path.relpath(root)}"')
    return 0


def _load_known(options: argparse.Namespace) -> catalogue.Catalogue:
    """Read every failure that is documented: shipped, of the folders that were named, and beside the new one."""
    roots = {SHIPPED.resolve(), *(folder.resolve() for folder in options.scenarios)}
    area = options.folder.resolve()
    beside = [path.parent for pattern in ("*", "*/*") for path in area.parent.glob(f"{pattern}/{ENTRY}")]
    beside = [folder for folder in beside if not any(folder.is_relative_to(root) for root in roots)]
    return catalogue.load([SHIPPED, *options.scenarios, *sorted(beside)])


def _refuse_untested(failures: Iterable[Failure]) -> None:
    """Refuse to add to an area with a failure that lacks a test of a side.

    Raises:
        CatalogueError: The message names the first, and what to write.
    """
    for failure in failures:
        if missing := failure.missing_sides():
            marker = f'pytest.mark.{missing[0]}("{failure.id}")'
            raise CatalogueError(
                f"{failure.source}: no test of its folder {missing[0]} it; a failure has a test of each "
                f"side: write one with {marker} first"
            )


def _check(options: argparse.Namespace, known: catalogue.Catalogue, folder: Path) -> None:
    """Refuse an id, an area or a subject that cannot be.

    Raises:
        CatalogueError: The message says which, and what is allowed.
    """
    if not catalogue.ID.fullmatch(options.id):
        raise CatalogueError(f"id {options.id!r} is not allowed; allowed: {catalogue.ID_ALLOWED}")
    if options.id in known:
        raise CatalogueError(f"failure {options.id} exists, in {known[options.id].source}")
    area = options.folder
    if folder.exists():
        raise CatalogueError(f"{folder} exists, and nothing is overwritten")
    if (area / ENTRY).exists():
        raise CatalogueError(f"{area} is the folder of a failure: give the one above it")
    if inside := sorted({path.parts[-3] for path in area.glob(f"*/*/{ENTRY}")}):
        raise CatalogueError(f"{area} holds areas; give one of them or a new one: {', '.join(inside)}")
    if not next(path for path in (area, *area.resolve().parents) if path.exists()).is_dir():
        raise CatalogueError(f"{area} isn't a folder, and none can be made there")
    if not _is_of_checkout(area) and area.resolve().is_relative_to(SHIPPED.resolve()):
        raise CatalogueError(f"{area} is inside the installed package: give a folder of your own repository")
    if options.subject and not catalogue.is_subject(options.subject):
        raise CatalogueError(f"subject {options.subject!r} is not allowed; allowed: {catalogue.SUBJECT_ALLOWED}")


def _is_of_checkout(area: Path) -> bool:
    """Return whether an area is one of this project's, in a checkout."""
    shipped = SHIPPED.resolve()
    return area.resolve().parent == shipped and (shipped.parent / "tests" / "support" / "mutants.py").exists()


def _texts(options: argparse.Namespace, error: error_text.ErrorText, folder: Path) -> dict[Path, str]:
    """Return what to write, by path."""
    texts = {
        folder / ENTRY: skeleton.entry(error, options.subject),
        folder / f"test_{folder.name}.py": skeleton.tests(options.id, error, options.subject),
    }
    area = options.folder
    if _is_of_checkout(area):
        texts |= {folder / "__init__.py": "", folder / "mutants.py": skeleton.mutants(options.id, options.subject)}
        if not area.exists():
            texts[area / "__init__.py"] = f'"""{skeleton.MARK.capitalize()}: what goes wrong here, in a line."""\n'
    return texts


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
    print(f"Replace each {skeleton.MARK!r}, the act first, until the run says REPRODUCED and HELD:")
    print(f"  pytest --hw=cpu --rl-failure {failure_id}")


def _short(headline: str) -> str:
    return headline if len(headline) <= _SHOWN else f"{headline[:_SHOWN].rpartition(' ')[0]} …"
