"""The pytest plugin: declares options, markers and fixtures; behaviour is one lazy import away."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_rlregress import settings
from pytest_rlregress.fixtures.declare import *  # noqa: F403

if TYPE_CHECKING:
    from pytest_rlregress.harness import Harness

pytest.register_assert_rewrite("pytest_rlregress.scenarios")

MARKERS = (
    "reproduces(id): the test does the failing act of the documented failure; the plugin judges what comes out.",
    "guards(id): the same act with the remedy; must pass.",
    "needs(*components): components of the stack a test needs (torch, vllm, ray, …); missing ones make it unavailable.",
    "hw(*profiles, capability=None, memory=None, count=None): a hardware test, run only where the profile of the run "
    'fits, e.g. hw("h100", "h200") or hw(capability=">=9.0", memory=">=70GiB", count=2).',
    "isolated(group=None, timeout=None, env=None, fresh=False): run in a process of its own, or with those of its "
    "group; env or fresh=True: from an interpreter that has imported nothing.",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options and ini values: see ``settings.OPTIONS``."""
    settings.declare(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Declare the markers; under ``--hw`` or ``--rl-require`` look at the machine before anything is collected."""
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)
    resolved = settings.resolve(config)
    if resolved.hw or resolved.require:
        _harness(config).open()


def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """``--hw=list`` prints the profiles and ends."""
    return _harness(config).list_profiles() if settings.resolve(config).hw == "list" else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Hand collected tests with a marker of ours to the harness."""
    if any(item.get_closest_marker(line.partition("(")[0]) for line in MARKERS for item in items):
        _harness(config).adopt(items)


def _harness(config: pytest.Config) -> Harness:
    from pytest_rlregress import harness

    return harness.of(config)
