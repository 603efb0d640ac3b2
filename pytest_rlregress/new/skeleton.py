"""The files of a new scenario: what is to be written by hand says so, and fails until it is."""

from __future__ import annotations

import ast
import json

from pytest_rlregress.new.error_text import ErrorText

#: Marks what is to be written.
MARK = "to be written"
_LONGEST_LINE = 120


def entry(failure_id: str, error: ErrorText, subject: str | None) -> str:
    """Write the failure's table for ``failures.toml``, with an empty line before it."""
    components = ", ".join(f'{name} = "any"' for name in error.components)
    keys = {
        "exception": error.exception,
        "message": error.message,
        "signal": error.signal,
    }
    lines = [
        "",
        "[[failure]]",
        f'id = "{failure_id}"',
        f'title = "{MARK}: what happens, in a line"',
        'seen_on = "any"',
        f'seen = "{MARK}: versions, links to those who met it"',
        'fidelity = "real"',
        f"components = {{ {components} }}" if components else "components = {}",
        f'cause = "{MARK}: why it happens"',
        f'remedy = "{MARK}: what to do instead"',
        *([f'subject = "{subject}"'] if subject else []),
        f'measured = "{MARK}: what the tests showed, with versions"',
        "",
        "  [[failure.signature]]",
        *(f"  {key} = {_quoted(value)}" for key, value in keys.items() if value),
        *([f"  frames = [{_quoted(error.frame)}]"] if error.frame else []),
    ]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    literal = "\\" in text and "'" not in text and text.isprintable()
    return f"'{text}'" if literal else json.dumps(text, ensure_ascii=False)


def tests(failure_id: str, error: ErrorText, subject: str | None) -> str:
    """Write the test file: both sides."""
    asked = "subject" if subject else ""
    headline = error.exception or error.signal
    return f'''"""{MARK.capitalize()}: what was done and what came of it, in a line."""

from __future__ import annotations

import pytest


@pytest.mark.reproduces("{failure_id}")
def test_the_act():
    """{MARK.capitalize()}: do to the real component what fails, without the trainer around it.

    No pytest.raises: {headline} must come out of it, and is compared with the entry's signature. Where
    the failure is silent, assert what should be, with a message that the signature names.
    """
    pytest.fail("{MARK}: the act that fails")


@pytest.mark.guards("{failure_id}")
def test_what_holds_with_the_remedy({asked}):
    """{MARK.capitalize()}: the same act with the remedy{", which is the subject" if subject else ""}.

    State what holds then, not that nothing is raised; it must hold where the failure is gone, too.
    """
    pytest.fail("{MARK}: what holds with the remedy")
'''


def mutants(failure_id: str, folder: str) -> str:
    """Write the module of mutants, for ``tests/mutants`` of the checkout."""
    return f'''"""Mutants of {failure_id}, in scenarios/{folder}."""

from __future__ import annotations

from mutants import broken, mutant


@broken("{failure_id}")
def remedy_with_a_mistake(*arguments):
    """In the remedy's place: its guards must be regressed."""
    raise NotImplementedError("{MARK}: the remedy with one mistake")


@mutant("{failure_id}", "absent")
def stack_without_the_failure(monkeypatch):
    """The act must be absent, and the guards hold."""
    raise NotImplementedError("{MARK}: a component changed so that the act does no harm")


@mutant("{failure_id}", "changed")
def stack_that_fails_otherwise(monkeypatch):
    """The act must be changed."""
    raise NotImplementedError("{MARK}: a component changed so that the act fails in another way")
'''


def with_remedy(module: str, name: str) -> str:
    """Add a remedy without a body to a module of remedies: its text with the function, and the name in ``__all__``.

    Raises:
        ValueError: The module has the name already, or no ``__all__``.
    """
    tree = ast.parse(module)
    if any(getattr(node, "name", None) == name for node in tree.body):
        raise ValueError(f"there is a {name} already")
    listed = next((node for node in tree.body if isinstance(node, ast.Assign) and _is_all(node)), None)
    if listed is None:
        raise ValueError("no __all__ in it")
    names = sorted({*ast.literal_eval(listed.value), name}, key=lambda one: (one[0].islower(), one))
    line = f"__all__ = [{', '.join(json.dumps(one) for one in names)}]"
    if len(line) > _LONGEST_LINE or listed.lineno != listed.end_lineno:
        line = "\n".join(["__all__ = [", *(f'    "{one}",' for one in names), "]"])
    lines = module.splitlines()
    lines[listed.lineno - 1 : listed.end_lineno] = [line]
    return (
        "\n".join(lines).rstrip()
        + f'''


def {name}() -> None:
    """{MARK.capitalize()}: what a trainer calls instead; its arguments, with shapes and units."""
    raise NotImplementedError("{MARK}")
'''
    )


def _is_all(node: ast.Assign) -> bool:
    return any(isinstance(target, ast.Name) and target.id == "__all__" for target in node.targets)
