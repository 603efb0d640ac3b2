"""``rlregress list``: print the catalogue."""

from __future__ import annotations

import argparse
import json
from typing import Any

from pytest_rlregress.commands.list.failure_page import page, shown, silent_texts
from pytest_rlregress.failures import catalogue
from pytest_rlregress.failures.catalogue import TRAINERS
from pytest_rlregress.failures.fidelity import in_words, marked_tests
from pytest_rlregress.failures.named_keys import find_untested_keys
from pytest_rlregress.stack import Stack, missing
from pytest_rlregress.util import arguments
from pytest_rlregress.util.text import on_one_line, plural, wrapped

_KEYS = (
    *("id", "title", "seen_on", "seen", "components", "cause", "remedy", "refuted", "subject", "fidelity"),
    *("measured", "on_card"),
)
_WORDS = {"refuted": "does not help"}


def declare(commands: Any) -> None:
    """Add the command to argparse's sub-commands."""
    parser = commands.add_parser(
        "list",
        formatter_class=arguments.ManualFormatter,
        description="Print every documented failure: where it was seen, what is expected of it on the installed stack, "
        "its cause and its remedy.",
    )
    parser.add_argument(
        "word",
        nargs="*",
        help="only the failure with this id, or those with this word in their text, components or error lines",
    )
    catalogue.declare(parser)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--brief", action="store_true", help="a line a failure: id and title")
    form.add_argument("--json", action="store_true", help="as a JSON list")
    form.add_argument("--markdown", action="store_true", help="as pages, whatever is installed")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the failures that were asked for.

    Raises:
        CatalogueError: Unknown id, malformed catalogue.
    """
    known = catalogue.load([catalogue.SHIPPED, *options.scenarios])
    chosen = [failure for word in options.word for failure in _find(known, word)] or list(known.values())
    if options.markdown:
        print("\n".join(map(page, chosen)), end="")
        return 0
    if options.brief:
        print(*(f"{failure.id}: {failure.title}" for failure in chosen), sep="\n")
        return 0
    stack = Stack.installed()
    if options.json:
        print(json.dumps([_as_json(failure, stack) for failure in chosen], indent=2))
        return 0
    for failure in chosen:
        told = _as_json(failure, stack)
        told["remedy"] = failure.remedy_led_by([name for name in TRAINERS if name in stack.versions])
        told["fidelity"] = in_words(failure.fidelity, told.pop("fidelity_of_tests"))
        print(*wrapped(f"{failure.id}: {failure.title}", rest="    "), sep="\n")
        for key, value in told.items():
            if key not in ("id", "title") and value:
                for text in _texts(value):
                    print(*wrapped(f"{_WORDS.get(key, key.replace('_', ' '))}: {text}", "  ", "    "), sep="\n")
        print()
    print(plural(len(chosen), "failure"))
    return 0


def _find(known: catalogue.Catalogue, word: str) -> list[catalogue.Failure]:
    """Return the failure of that id, or those that have the word in what a person may search by.

    Raises:
        CatalogueError: There is none.
    """
    if word in known:
        return [known[word]]
    having = [failure for failure in known.values() if word.lower() in _searched(failure).lower()]
    if having:
        return having
    return [known.find(word, "rlregress list")]  # which raises the error, with near ids


def _searched(failure: catalogue.Failure) -> str:
    return " ".join(
        [
            *(failure.id, failure.title, failure.cause, failure.remedy, *failure.components),
            *map(shown, failure.signatures),
            *silent_texts(failure.folder),
        ]
    )


def _texts(value: Any) -> list[str]:
    if isinstance(value, tuple):
        return [f"{one['remedy']}: {one['why']}" for one in value]
    return [", ".join(map(" ".join, value.items())) if isinstance(value, dict) else on_one_line(str(value))]


def _as_json(failure: catalogue.Failure, stack: Stack) -> dict[str, Any]:
    absent = missing(failure.components)
    expected = failure.documented and not absent
    found = {key: getattr(failure, key) for key in _KEYS}
    found["fidelity_of_tests"] = marked_tests(failure.folder, failure.id)
    found["not_shown_by_a_test"] = ", ".join(find_untested_keys(failure.remedies, failure.folder))
    found["expected_here"] = failure.expects(None, stack) if expected else None
    found["not_installed_here"] = ", ".join(sorted(absent)) or None
    return found
