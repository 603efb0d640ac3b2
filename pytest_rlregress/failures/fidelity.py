"""How real a test is: whether the documented component does the failing act in it. Pure functions, no pytest."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from pathlib import Path

#: What each word means; a test has one of them.
FIDELITIES = {
    "real": "the documented component itself does the failing act",
    "stand-in": "something else takes the place of the documented component, or of a part the machine doesn't have",
    "injected": "the test puts the fault in",
}
#: Shown of a test whose failure does not say, as entries outside of this package need not.
NOT_SAID = "not said"

#: The markers of a failure's two sides.
SIDES = ("reproduces", "guards")


class FidelityError(ValueError):
    """A test's marker has an unknown fidelity; the message lists those that are allowed."""


def of_test(of_failure: str, marked: str | None = None, stand_ins: str = "") -> str:
    """Return how real a test is.

    Args:
        of_failure: What its failure's entry says of its tests; "" where that says nothing.
        marked: What its marker says, which comes before the entry.
        stand_ins: What took a real part's place while it ran: nothing real is left of it then.

    Raises:
        FidelityError: The marker's word is none of ``FIDELITIES``.
    """
    if marked is not None and marked not in FIDELITIES:
        raise FidelityError(f"fidelity={marked!r} is not allowed; allowed: {', '.join(FIDELITIES)}")
    said = marked or of_failure
    return "stand-in" if stand_ins and said != "injected" else said


def summary(tests: Mapping[str, int]) -> str:
    """Render the tests of each word: ``real``, or ``real 3, injected 1``; "" without tests."""
    counts = [(word, tests[word]) for word in (*FIDELITIES, NOT_SAID) if tests.get(word)]
    return counts[0][0] if len(counts) == 1 else ", ".join(f"{word} {number}" for word, number in counts)


def in_words(of_failure: str, marked: Mapping[str, Iterable[str]]) -> str:
    """Render how real a failure's tests are: ``real; injected: test_a, test_b``."""
    others = [f"{word}: {', '.join(tests)}" for word, tests in marked.items()]
    return "; ".join([of_failure or NOT_SAID, *others])


def tested_sides(folder: Path, failure_id: str) -> list[str]:
    """Return those of a failure's sides that the test files of its folder have a marker of.

    Read from their text: nothing is imported.
    """
    texts = [path.read_text(encoding="utf-8") for path in sorted(folder.glob("test_*.py"))]
    nodes = [node for text in texts for node in ast.walk(ast.parse(text))]
    calls = [node for node in nodes if isinstance(node, ast.Call) and _ids(node) == [failure_id]]
    found = {call.func.attr for call in calls if isinstance(call.func, ast.Attribute)}
    return [side for side in SIDES if side in found]


def marked_tests(folder: Path, failure_id: str) -> dict[str, list[str]]:
    """Return the test functions whose markers say how real they are, by that word, of one failure.

    Read from the text of the folder's test files: nothing is imported.
    """
    found: dict[str, list[str]] = {}
    for path in sorted(folder.glob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "fidelity=" in text else ():
            for marker in getattr(node, "decorator_list", ()):
                word = _word(marker, failure_id)
                if word:
                    found.setdefault(word, []).append(node.name)  # type: ignore[attr-defined]
    return {word: found[word] for word in FIDELITIES if word in found}


def _word(marker: ast.expr, failure_id: str) -> str:
    """Read the word that a decorator says of a failure's tests; "" for any other one."""
    if not (isinstance(marker, ast.Call) and isinstance(marker.func, ast.Attribute) and marker.func.attr in SIDES):
        return ""
    said = [keyword.value for keyword in marker.keywords if keyword.arg == "fidelity"]
    return (
        next((str(one.value) for one in said if isinstance(one, ast.Constant)), "")
        if _ids(marker) == [failure_id]
        else ""
    )


def _ids(marker: ast.Call) -> list[object]:
    return [argument.value for argument in marker.args if isinstance(argument, ast.Constant)]
