"""Needs of a contained test: components, parts of them, systems, interfaces of the installed releases, hardware."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import pytest

from pytest_rlregress import hardware, stack
from pytest_rlregress.harness.collection import StackFixture
from pytest_rlregress.harness.session import Session, usage
from pytest_rlregress.stack.interfaces import is_interface, parse_interface


@dataclass(frozen=True)
class Needs:
    """Needs that a test names, and the fixtures that it asks for.

    Attributes:
        components: Components, parts of them and systems, those of the interfaces among them.
        interfaces: As they are spelt.
    """

    components: tuple[str, ...]
    interfaces: tuple[str, ...]


def read_needs(item: pytest.Item, fixtures: Iterable[StackFixture]) -> Needs:
    """Read the markers ``needs`` of a test and the needs of its fixtures.

    Raises:
        UsageError: A marker names nothing, or an interface that isn't spelt as one.
    """
    for marker in item.iter_markers("needs"):
        if not marker.args or marker.kwargs:
            raise pytest.UsageError(
                f"{item.nodeid}: needs() takes at least one component: {', '.join(stack.COMPONENTS)}; a part of one: "
                f"{', '.join(stack.PARTS)}; a system: {', '.join(stack.SYSTEMS)}; or an interface, such as "
                "'vllm:LLM(seed)'."
            )
    named = [name for marker in item.iter_markers("needs") for name in marker.args]
    named += [name for fixture in fixtures for name in fixture.components]
    try:
        interfaces = {name: parse_interface(name) for name in named if is_interface(name)}
    except stack.StackError as error:
        raise pytest.UsageError(f"{item.nodeid}: needs(): {error}") from None
    components = [interfaces[name].component if name in interfaces else name for name in named]
    return Needs(tuple(components), tuple(interfaces))


def find_reason(item: pytest.Item, components: tuple[str, ...], interfaces: tuple[str, ...], session: Session) -> str:
    """Say why a test cannot run here: hardware, components or interfaces that are missing; "" if it can."""
    known = session.profiles
    for marker in item.iter_markers("hw"):
        asked = partial(hardware.unmet, marker.args, marker.kwargs, session.profile, session.machine, known=known)
        if reason := usage(asked):
            return f"needs {reason}"
    return session.missing(components) or session.find_lacking(interfaces)
