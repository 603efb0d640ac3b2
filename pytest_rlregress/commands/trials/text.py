"""Texts that may be shown to anyone: no credentials, no home folder, nothing that moves a terminal's cursor."""

from __future__ import annotations

import os
import re
import shlex
import unicodedata
from collections.abc import Sequence

from pytest_rlregress.logs.ansi import stripped

_CREDENTIALS = re.compile(r"(?<!ssh)://[^/\s]*@|://[^/\s]*:[^/\s]*@")


def redact(text: str) -> str:
    """Make a text fit to be shown to anyone: no credentials in URLs, no control characters, paths as seen from here.

    Those below the current folder are relative to it; of others the home folder is ``~``.
    """
    text = stripped(text.replace("\r\n", "\n").replace("\r", "\n"))
    text = "".join(character if _is_shown(character) else "\ufffd" for character in text)
    return _find_home().sub("~", _find_here().sub("", _CREDENTIALS.sub("://***@", text)))


def _find_here() -> re.Pattern[str]:
    folder = os.getcwd().rstrip("/")
    return re.compile(rf"(?<![\w.~/-]){re.escape(folder)}/(?=\w)" if folder else "(?!)")


def _find_home() -> re.Pattern[str]:
    home = os.path.expanduser("~")
    folders = {folder.rstrip("/") for folder in (home, os.path.realpath(home))} - {"", "~"}
    return re.compile(rf"(?<![\w.~-])(?:{'|'.join(map(re.escape, folders))})(?![\w.-])" if folders else "(?!)")


def _is_shown(character: str) -> bool:
    if character in "\n\t":
        return True
    turns = "\u202a" <= character <= "\u202e" or "\u2066" <= character <= "\u2069"  # the direction of what follows
    return not turns and unicodedata.category(character) not in ("Cc", "Cs", "Zl", "Zp")


def quote_command(command: Sequence[str]) -> str:
    """Write a command as it is typed into a shell, without credentials; the home folder as ``~``."""
    return " ".join(map(_quote_word, command))


def _quote_word(word: str) -> str:
    first, *inside = (_quote_part(redact(part)) for part in _find_home().split(word))
    if not inside:
        return first or "''"
    return '"$HOME"'.join([first, *inside]) if first else "~" + '"$HOME"'.join(inside)


def _quote_part(part: str) -> str:
    rest = part.removeprefix("/")  # a slash after ~ has to be seen
    return part[: len(part) - len(rest)] + (rest and shlex.quote(rest))
