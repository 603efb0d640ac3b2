"""The completion of ``rlregress`` in a shell, which shtab writes from the parser."""

from __future__ import annotations

import argparse
from collections.abc import Iterator


def make_completion(parser: argparse.ArgumentParser, shell: str) -> str:
    """Return the script that a shell completes the parser's commands, options and files by.

    Raises:
        ValueError: shtab is missing, or doesn't know the shell; the message says what to do.
    """
    try:
        import shtab
    except ImportError as error:
        raise ValueError(f"{error}: pip install 'pytest-rlregress[completion]'") from None
    if shell not in shtab.SUPPORTED_SHELLS:
        raise ValueError(f"{shell!r} isn't a known shell. Known: {', '.join(shtab.SUPPORTED_SHELLS)}")
    for action in _list_actions(parser):
        if action.nargs != 0 and not action.choices:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    return shtab.complete(parser, shell)


def _list_actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _list_actions(command)
