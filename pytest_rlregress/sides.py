"""The sides of a failure: which one a test is, and how real, by its marker."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from pytest_rlregress import fidelity
from pytest_rlregress.catalogue import Catalogue, Failure


@dataclass(frozen=True)
class Side:
    """The side of a test: ``reproduces`` or ``guards`` a failure; ``fidelity`` says how real the test is, if known."""

    name: str
    failure: Failure
    fidelity: str


def side_of(item: pytest.Item, catalogue: Catalogue) -> Side | None:
    """Return the side of a test; None for other tests.

    Raises:
        UsageError: Its marker has other arguments than an id and a fidelity.
        CatalogueError: Nothing in the catalogue has that id.
    """
    for name in fidelity.SIDES:
        marker = item.get_closest_marker(name)
        if marker is not None:
            if len(marker.args) != 1 or marker.kwargs.keys() - {"fidelity"}:
                raise pytest.UsageError(f"{item.nodeid}: {name}() takes one failure id, and fidelity.")
            failure = catalogue.find(marker.args[0], f"{item.nodeid}: {name}")
            try:
                return Side(name, failure, fidelity.of_test(failure.fidelity, marker.kwargs.get("fidelity")))
            except fidelity.FidelityError as error:
                raise pytest.UsageError(f"{item.nodeid}: {name}: {error}") from None
    return None
