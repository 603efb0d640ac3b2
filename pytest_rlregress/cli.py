"""The command ``rlregress``: each sub-command is imported when it is asked for."""

from __future__ import annotations

import argparse
import io
import os
import signal
import sys
import traceback
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pytest_rlregress.util import ends
from pytest_rlregress.util.surroundings import working_folder
from pytest_rlregress.util.terminal import line_width, takes_colours
from pytest_rlregress.util.text import CleanStream, columns

#: The sub-commands, each a package with a module ``NAME_command``, and what ``rlregress --help`` says of it.
COMMANDS = {
    "list": "every documented failure, with cause and remedy",
    "new": "write the skeleton of a scenario from an error text",
    "diagnose": "the documented failures that logs show",
    "preflight": "check a trainer's configuration for the documented failures, before a GPU is rented",
    "rehearse": "your own training run in miniature, watched, before it costs anything",
    "audit": "check a batch that a trainer dumped: masks, log-probabilities, rewards, groups",
    "moved": "what a release changes for a run: keys that are gone, defaults that moved, calls that no longer bind",
    "upgrade": "may I upgrade? What would change, before it is done",
    "bisect": "which upgrade broke a test",
    "expect": "write down which bad verdicts are known, so that red means new",
    "report": "what changed between runs: a page, and a gate for CI",
    "run": "the tests on several kinds of hardware of a Ray cluster",
}
#: Where pytest looks for its settings, in the working directory and above.
INI_FILES = ("pytest.toml", ".pytest.toml", "pytest.ini", ".pytest.ini", "pyproject.toml", "tox.ini", "setup.cfg")


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return its exit code.

    2 stands for bad input, for a file that cannot be read or written and, after its traceback, for an error of our own;
    128 and the number of a signal for one that ended it, such as 130 for Ctrl-C; 141 if the reader closed the pipe.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        with ends.raising(), _clean_streams():
            try:
                return _run(arguments)
            finally:
                print(end="", flush=True)
    except BrokenPipeError:  # as in: rlregress list | head
        _drop_output()
        return 128 + signal.SIGPIPE
    except ends.Ended as end:
        return end.exit_code
    except OSError as error:  # with its file's name, where it has one
        _drop_output()
        print(f"rlregress {' '.join(arguments[:1])}: {error}", file=sys.stderr)
        return 2
    except Exception:  # Python's exit code for it is 1, by which a command says that it found something
        traceback.print_exc()
        return 2


@contextmanager
def _clean_streams() -> Generator[None]:
    """Let commands print texts of any origin on any terminal, in lines that fit it."""
    before = sys.stdout, sys.stderr
    if sys.stdin is None:  # closed by whoever started this
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115 (for as long as the process lives)
    for stream in before:
        if isinstance(stream, io.TextIOWrapper):  # a terminal without Unicode, a name that isn't UTF-8
            stream.reconfigure(errors="backslashreplace")
    # None where it was closed
    clean: list[Any] = [stream and CleanStream(stream, colours=takes_colours(stream)) for stream in before]
    sys.stdout, sys.stderr = clean
    width = columns.set(line_width(before[0]))
    try:
        yield
    finally:
        columns.reset(width)
        sys.stdout, sys.stderr = before


def _drop_output() -> None:
    """Let what standard output still holds go nowhere if it cannot be written, as the interpreter would try again."""
    try:
        print(end="", flush=True)
    except (OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read a command line.

    Raises:
        SystemExit: It asks for help, or is not allowed, which was said.
    """
    parser, commands = _make_parser(arguments[:1])
    own, behind = arguments, arguments[:0]
    if "--" in arguments and getattr(_load_command(arguments[0]), "TAKES_A_COMMAND", False):
        at = arguments.index("--")
        own, behind = arguments[:at], arguments[at + 1 :]
    if arguments and (meant := get_close_matches(arguments[0], COMMANDS, 1)) and arguments[0] not in COMMANDS:
        parser.error(f"no command {arguments[0]!r}: did you mean {meant[0]}? Commands: {', '.join(COMMANDS)}")
    # argparse lets the words of a command end where its options begin: those after them come back as rest.
    options, rest = parser.parse_known_args(own)
    if options.command is None:
        parser.print_help()
        parser.exit(2)
    words = [word for word in rest if word != "--"]
    if words and (not hasattr(options, "words") or any(word.startswith("-") for word in words)):
        of_command = commands.choices.get(options.command, parser)
        of_command.error(f"unrecognized arguments: {' '.join(rest)}")
    if words:
        options.words += words
    options.arguments = arguments
    options.behind = behind
    return options


def _make_parser(declared: Iterable[str]) -> tuple[argparse.ArgumentParser, Any]:
    """Return the parser, and its sub-commands; only those that are named have their arguments."""
    parser = argparse.ArgumentParser(
        prog="rlregress",
        description="Documented failures of the stack that trains LLMs with RL. To run them: pytest --hw=PROFILE",
    )
    parser.add_argument("--version", action=_PrintVersion)
    parser.add_argument(
        "--print-completion",
        action=_PrintCompletion,
        metavar="SHELL",
        help="print the completion for a shell, such as bash, zsh or tcsh",
    )
    commands = parser.add_subparsers(dest="command")
    for name, summary in COMMANDS.items():
        if name in declared:
            _load_command(name).declare(SimpleNamespace(add_parser=partial(commands.add_parser, help=summary)))
        else:
            commands.add_parser(name, help=summary)
    return parser, commands


def _load_command(name: str) -> Any:
    """Import the module of a command; None if there is no such command."""
    return import_module(f"pytest_rlregress.commands.{name}.{name}_command") if name in COMMANDS else None


def _run(arguments: list[str]) -> int:
    options = parse(arguments)
    from pytest_rlregress.failures.catalogue import CatalogueError

    try:
        if getattr(options, "scenarios", ()) is None:
            options.scenarios = _scenarios_here()
        return int(options.run(options))
    except CatalogueError as error:
        said = str(error)
        print(said if said.startswith("rlregress ") else f"rlregress: {said}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as end:
        print(f"rlregress {options.command}: {str(end) or 'interrupted'}", file=sys.stderr)
        return end.exit_code if isinstance(end, ends.Ended) else 130


class _PrintVersion(argparse.Action):
    """Print the installed version; reading it is left until it is asked for."""

    def __init__(self, option_strings: list[str], dest: str) -> None:
        super().__init__(option_strings, dest, nargs=0, help="print the installed version")

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        print(f"pytest-rlregress {version('pytest-rlregress')}")
        parser.exit()


class _PrintCompletion(argparse.Action):
    """Print a shell's completion of all commands, which are imported for it."""

    def __call__(self, parser: argparse.ArgumentParser, _: object, shell: Any, *__: object) -> None:
        from pytest_rlregress.util.completion import make_completion

        try:
            print(make_completion(_make_parser(COMMANDS)[0], shell))
        except ValueError as error:
            parser.error(str(error))
        parser.exit()


def _scenarios_here() -> list[Path]:
    """Return the folders that pytest would take scenarios from, for a command that was given none.

    pytest takes its time to import: it is asked only where the environment or a file that may be its ini file names
    them.
    """
    here = working_folder()
    above = (folder / name for folder in (here, *here.parents) for name in INI_FILES)
    files = (path for path in above if os.access(path, os.R_OK) and path.is_file())
    if "RLREGRESS_SCENARIOS" not in os.environ and not any(
        b"rlregress_scenarios" in path.read_bytes() for path in files
    ):
        return []
    import pytest

    from pytest_rlregress.failures.catalogue import CatalogueError
    from pytest_rlregress.harness import settings

    try:
        return [*settings.scenario_folders()]
    except pytest.UsageError as error:
        raise CatalogueError(str(error)) from None


if __name__ == "__main__":
    sys.exit(main())
