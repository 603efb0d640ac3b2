"""Write the catalogue as one Markdown page: ``docs/scenarios.md``."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

from pytest_rlregress.catalogue import Failure
from pytest_rlregress.fidelity import FIDELITIES, has_tests, in_words, marked_tests
from pytest_rlregress.signatures import Signature
from pytest_rlregress.util.text import code_span

_HEAD = """# The documented failures

Generated from the catalogue: `rlregress list --markdown > docs/scenarios.md`. A failure has a scenario in
`scenarios/`; [writing-a-scenario.md](writing-a-scenario.md) says how one comes about. One without a line *Fidelity* has
no tests: `rlregress diagnose` knows it by its lines in a log. *Fidelity* is how real the tests are, but for those that
are named beside another word:

"""


def page(failures: Iterable[Failure]) -> str:
    """Return the page of ``failures``, by scenario folder in the order given."""
    parts = [_HEAD + "".join(f"- **{word}**: {meaning}\n" for word, meaning in FIDELITIES.items())]
    for folder, members in groupby(failures, key=lambda failure: failure.folder.parent):
        parts += [f"## {folder.name}\n\n{_folder_text(folder)}\n", *map(_entry, members)]
    return "\n".join(parts)


def _folder_text(folder: Path) -> str:
    """Return what a scenario folder is about: the docstring of its package."""
    package = folder / "__init__.py"
    return (package.exists() and ast.get_docstring(ast.parse(package.read_text(encoding="utf-8")))) or ""


def _entry(failure: Failure) -> str:
    folder, expected = failure.folder, failure.expected
    tested = has_tests(folder)
    for where in failure.expected_where:
        conditions = [*where.hardware, *(f"{name} {spec}" for name, spec in (where.stack or {}).items())]
        expected += f"; {where.verdict} on {', '.join(conditions)}"
    for name, since in (failure.absent_since or {}).items():
        expected += f"; absent since {name} {since}"
    facts = {
        "Seen": "; ".join(filter(None, (failure.seen_on, failure.seen))),
        "Cause": failure.cause,
        "Remedy": failure.remedy + (f" (`{failure.subject_path}`)" if failure.subject else ""),
        "Known in": ", ".join(f"{name} ({versions})" for name, versions in failure.components.items()),
        "Expected": expected if (failure.subject or failure.signatures) and tested else "",
        "Fidelity": in_words(failure.fidelity, marked_tests(folder, failure.id)) if tested else "",
        "Measured": " ".join(failure.measured.split()),
        "On a card": failure.on_card,
    }
    lines = [f"### {failure.id}", "", f"{failure.title}.", ""]
    lines += [f"- **{name}**: {text}" for name, text in facts.items() if text]
    if failure.refuted:
        lines += ["- **Does not help**:", *(f"  - {one}" for one in failure.refuted)]
    if failure.signatures:
        lines += ["- **Recognised by**:", *(f"  - {_signature(signature)}" for signature in failure.signatures)]
    return "\n".join([*lines, ""])


def _signature(signature: Signature) -> str:
    message = signature.message.text if signature.message else None
    said = ": ".join(filter(None, (signature.exception, message)))
    fields = {
        "": said,
        "ends": signature.kind,
        "signal": signature.signal,
        "in": " or ".join(frame.text for frame in signature.frames),
        "log": signature.log and signature.log.text,
        "with": " or ".join(clue.text for clue in signature.clues),
    }
    text = ", ".join(f"{name} {code_span(value)}".strip() for name, value in fields.items() if value)
    if signature.confirm:
        text += f" ({'without these ' if signature.clues else ''}it could be this; {signature.confirm})"
    return text
