"""Conditions on versions, as people write them."""

from __future__ import annotations

from packaging.specifiers import InvalidSpecifier, SpecifierSet


def parse_condition(value: object) -> SpecifierSet:
    """Read a condition on a version, such as ``<0.9`` or ``>=0.8,<0.9``.

    Raises:
        ValueError: The text isn't one; the message says what is allowed.
    """
    text = str(value).strip()
    try:
        if isinstance(value, str) and text:
            return SpecifierSet(text)
    except InvalidSpecifier:
        pass
    number = text if text[:1].isdigit() else "5"
    raise ValueError(f"a condition such as '<0.9', '=={number}.*' or '>={number}'")
