"""Tables of TOML files, checked key by key: every error names file, table and key, and says what is allowed."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

#: Turns what a file has for a key into the key's value, or raises a ValueError that says what is allowed.
Rule = Callable[[Any], Any]


def load(path: Path, error: type[Exception]) -> dict[str, Any]:
    """Read a file.

    Raises:
        error: It is missing, or not TOML.
    """
    return parse(read(path, error), path, error)


def read(path: Path, error: type[Exception]) -> str:
    """Return the text of a file; raise ``error`` if it is missing or not a text."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as problem:
        raise error(f"{path}: not readable as TOML: {problem}") from None


def parse(text: str, path: Path, error: type[Exception]) -> dict[str, Any]:
    """Return the document that a file's text is; raise ``error`` if it isn't TOML."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        raise error(f"{path}: not readable as TOML: {problem}") from None


def check(
    table: Mapping[str, Any],
    place: str,
    error: type[Exception],
    required: Mapping[str, Rule],
    optional: Mapping[str, Rule] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return the values of a table, each as its rule makes it; keys that are not given are left out.

    Args:
        table: As read from the file.
        place: The file, and which of its tables, for messages.
        error: What is raised.
        required: The rules of the keys that must be there.
        optional: The rules of the others.

    Raises:
        error: A key is unknown, missing or wrong.
    """
    rules = {**required, **optional}
    for key in table:
        if key not in rules:
            raise error(f"{place}: key {key!r}: unknown; allowed: {', '.join(rules)}")
    values = {}
    for key, rule in rules.items():
        if key in optional and key not in table:
            continue
        try:
            values[key] = rule(table.get(key))  # TOML has no None: every rule refuses it
        except ValueError as allowed:
            what = f"{table[key]!r} is not allowed" if key in table else "missing"
            raise error(f"{place}: key {key!r}: {what}; allowed: {allowed}") from None
    return values


def rule(right: Callable[[Any], Any], allowed: str) -> Rule:
    """Return a rule that accepts the values for which ``right`` is true, as they are."""

    def keep(value: Any) -> Any:
        if not right(value):
            raise ValueError(allowed)
        return value

    return keep


def one_of(*allowed: str) -> Rule:
    """Make a rule for one of some texts."""
    return rule(lambda value: value in allowed, ", ".join(allowed))


text = rule(lambda value: isinstance(value, str) and value.strip(), "a text that is not empty")
table = rule(lambda value: isinstance(value, dict), "a table")
tables = rule(lambda value: isinstance(value, list) and all(isinstance(one, dict) for one in value), "tables")


def texts(value: Any) -> tuple[str, ...]:
    """Read a list of texts."""
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise ValueError("a list of texts")
    return tuple(value)
