"""The files of a new failure: what is to be written by hand says so, and fails until it is."""

from __future__ import annotations

import json

from pytest_rlregress.commands.new.error_text import ErrorText

#: Marks what is to be written.
MARK = "to be written"


def entry(error: ErrorText, subject: str | None) -> str:
    """Return the text of ``failure.toml``."""
    components = ", ".join(f'{name} = "any"' for name in error.components)
    lines = [
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
        "[[signature]]",
        *([f"says = [{_quoted(error.says)}]"] if error.says else []),
        *([f'signal = "{error.signal}"'] if error.signal else []),
        *([f"in = [{_quoted(error.frame)}]"] if error.frame else []),
    ]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    literal = "\\" in text and "'" not in text and text.isprintable()
    return f"'{text}'" if literal else json.dumps(text, ensure_ascii=False)


def tests(failure_id: str, error: ErrorText, subject: str | None) -> str:
    """Write the test file: both sides."""
    asked = "subject" if subject else ""
    headline = error.exception or error.signal
    return f'''import pytest

from pytest_rlregress.failures.act import act


@pytest.mark.reproduces("{failure_id}")
def test_the_act():
    """{MARK.capitalize()}: do to the real component what fails, without the trainer around it.

    What prepares the act stands before it: if a component fails there, this release can't be driven so.
    No pytest.raises: {headline} must come out of it, and is compared with the entry's signature. Where
    the failure is silent, say so by silent("…") of pytest_rlregress.failures.silent: it has no signature then.
    """
    with act():
        pytest.fail("{MARK}: the act that fails")


@pytest.mark.guards("{failure_id}")
def test_what_holds_with_the_remedy({asked}):
    """{MARK.capitalize()}: the same act with the remedy{", which is the subject" if subject else ""}.

    State what holds then, not that nothing is raised; it must hold where the failure is gone, too.
    """
    with act():
        pytest.fail("{MARK}: what holds with the remedy")
'''


def mutants(failure_id: str, subject: str | None) -> str:
    """Write ``mutants.py``, for a folder of the checkout."""
    names = "broken, mutant" if subject else "mutant"
    return f'''from mutants import {names}
{_BROKEN if subject else ""}

@mutant("absent")
def stack_without_the_failure(monkeypatch):
    """The act must be absent, and the guards hold."""
    raise NotImplementedError("{MARK}: a component changed so that the act does no harm")


@mutant("changed")
def stack_that_fails_otherwise(monkeypatch):
    """The act must be changed."""
    raise NotImplementedError("{MARK}: a component changed so that the act fails in another way")
'''


_BROKEN = f'''

@broken()
def remedy_with_a_mistake(*arguments):
    """In the remedy's place: its guards must be regressed."""
    raise NotImplementedError("{MARK}: the remedy with one mistake")
'''
