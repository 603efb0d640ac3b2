"""Which installed releases a failure was tried with."""

from __future__ import annotations

import pytest

from pytest_rlregress.failures import catalogue, tried

STACKS = [
    {"verl": "0.7.1", "torch": "2.9.1"},
    {"verl": "0.9.1", "torch": "2.13.0+cpu"},
    {"verl": "0.8.0", "torch": "2.13.0"},
    {"torch": "2.10.0"},
]


@pytest.mark.parametrize(
    ("components", "installed", "driven"),
    [
        (["verl"], {"verl": "0.8.0"}, True),
        (["verl"], {"verl": "0.8.1"}, False),
        (["verl", "torch"], {"verl": "0.9.1", "torch": "2.13.0+cu130"}, True),
        (["verl", "torch"], {"verl": "0.8.0", "torch": "2.9.1"}, False),
        (["verl", "vllm-engine"], {"verl": "0.8.0"}, True),
        (["verl", "trl"], {"verl": "0.8.0", "trl": "1.0"}, False),
    ],
)
def test_was_driven_on_exactly_these_releases(components, installed, driven):
    assert tried.was_driven(STACKS, components, installed) is driven
    assert not tried.was_driven([], components, installed)


@pytest.mark.parametrize(
    ("components", "installed", "said"),
    [
        (["verl"], {"verl": "0.4.1"}, "not tried with verl 0.4.1 (tried: 0.7.1 to 0.9.1)"),
        (["verl"], {"verl": "0.10.0"}, "not tried with verl 0.10.0 (tried: 0.7.1 to 0.9.1)"),
        (["verl"], {"verl": "0.7.2"}, ""),
        (["verl", "torch"], {"verl": "0.9.1", "torch": "2.13.0+cu130"}, ""),
        (
            ["verl", "torch"],
            {"verl": "0.4.1", "torch": "2.14.0"},
            "not tried with verl 0.4.1 (tried: 0.7.1 to 0.9.1), torch 2.14.0 (tried: 2.9.1 to 2.13.0)",
        ),
        (["trl", "vllm-engine"], {"trl": "0.1"}, ""),
        (["verl"], {"verl": "-e /some/folder"}, ""),
        (["verl"], {}, ""),
    ],
)
def test_names_what_is_outside_of_the_tried_releases(components, installed, said):
    assert tried.describe_untried(STACKS, components, installed) == said
    assert tried.describe_untried([], components, installed) == ""


def test_a_single_tried_release_is_no_span():
    assert tried.describe_untried(STACKS[:1], ["verl"], {"verl": "0.8"}).endswith("(tried: 0.7.1)")


def test_every_shipped_failure_was_tried_on_the_lock():
    lock, *_ = tried.find_stacks("mask-length-drift")
    assert all(tried.find_stacks(failure)[0] == lock for failure in catalogue.load([catalogue.SHIPPED]))
    assert {"torch", "vllm", "verl", "trl", "ray", "transformers"} <= lock.keys()


def test_nothing_is_known_of_a_failure_that_is_not_shipped():
    assert tried.find_stacks("short-column") == []
