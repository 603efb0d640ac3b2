"""What a test's markers say: which side of a failure it is, how real, and what it needs."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from pytest_rlregress import fidelity
from pytest_rlregress.catalogue import Catalogue, Failure
from pytest_rlregress.stack import COMPONENTS, PARTS, SYSTEMS
from pytest_rlregress.verdicts import Verdict


@dataclass(frozen=True)
class Side:
    """The side of a test: ``reproduces`` or ``guards`` a failure.

    Attributes:
        fidelity: How real the test is, if known.
        expected: The verdict that its marker expects of it: ``reproduced`` or ``absent``; "" for its failure's.
    """

    name: str
    failure: Failure
    fidelity: str
    expected: str = ""

    @property
    def may_end_process(self) -> bool:
        """Whether what is documented of the act ends the process it is done in: a hang, a signal."""
        ends = [one.signal is not None or one.kind in ("crashed", "hung") for one in self.failure.signatures]
        return self.name == "reproduces" and any(ends)


def side_of(item: pytest.Item, catalogue: Catalogue) -> Side | None:
    """Return the side of a test; None for other tests.

    Raises:
        UsageError: Its marker has other arguments than an id and a fidelity.
        CatalogueError: Nothing in the catalogue has that id.
    """
    for name in fidelity.SIDES:
        marker = item.get_closest_marker(name)
        if marker is not None:
            allowed = ["fidelity", "expected"] if name == "reproduces" else ["fidelity"]
            if len(marker.args) != 1 or marker.kwargs.keys() - allowed:
                raise pytest.UsageError(f"{item.nodeid}: {name}() takes one failure id, and {' and '.join(allowed)}.")
            expected = marker.kwargs.get("expected", "")
            if expected not in ("", Verdict.REPRODUCED, Verdict.ABSENT):
                raise pytest.UsageError(
                    f"{item.nodeid}: expected={expected!r} is not allowed; allowed: 'reproduced', 'absent'."
                )
            failure = catalogue.find(marker.args[0], f"{item.nodeid}: {name}")
            try:
                return Side(name, failure, fidelity.of_test(failure.fidelity, marker.kwargs.get("fidelity")), expected)
            except fidelity.FidelityError as error:
                raise pytest.UsageError(f"{item.nodeid}: {name}: {error}") from None
    return None


def needed_by(item: pytest.Item) -> list[str]:
    """Return the components, parts of them and systems that the markers ``needs`` of a test name.

    Raises:
        UsageError: One names none.
    """
    for marker in item.iter_markers("needs"):
        if not marker.args or marker.kwargs:
            raise pytest.UsageError(
                f"{item.nodeid}: needs() takes at least one component: {', '.join(COMPONENTS)}; a part of one: "
                f"{', '.join(PARTS)}; or a system: {', '.join(SYSTEMS)}."
            )
    return [name for marker in item.iter_markers("needs") for name in marker.args]
