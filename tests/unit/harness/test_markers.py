"""What the markers of a test may say; ``tests/plugin/harness/test_run.py`` has whole runs that end for one."""

from __future__ import annotations

import re

import pytest

from pytest_rlregress.harness.items import describe
from pytest_rlregress.harness.session import find

ID = "'dataproto-concat-keys'"
LIMITS = {
    "memory='much'": "a size with its unit, such as '4GiB' or '500MB'",
    "memory=8": "a size with its unit, such as '4GiB' or '500MB'",
    "timeout='soon'": "a positive number of seconds, or inf for no limit",
}
KEYWORDS = "not allowed; allowed: group, env, fresh, timeout, memory, stall."
NEEDS = "needs() takes at least one component: torch, vllm,"
WRONG = [
    ("isolated(timeoutt=3)", f"isolated(): timeoutt {KEYWORDS}"),
    ("isolated('engine')", f"isolated(): positional arguments {KEYWORDS}"),
    *(
        (f"isolated({given})", f"isolated({given}) is not allowed. Allowed: {allowed}.")
        for given, allowed in LIMITS.items()
    ),
    ("needs()", NEEDS),
    ("needs", NEEDS),
    ("needs(component='torch')", NEEDS),
    ("needs('tensorflow')", "tensorflow"),
    ("hw('h1000')", "h1000"),
    ("guards('dataproto-concat')", "failure id 'dataproto-concat' is not in the catalogue"),
    (f"guards({ID}, expected='absent')", "guards() takes one failure id, and fidelity."),
    (f"reproduces({ID}, expected='gone')", "expected='gone' is not allowed; allowed: 'reproduced', 'absent'."),
    *(
        row
        for side in ("reproduces", "guards")
        for row in [
            (f"{side}()", f"{side}() takes one failure id, and "),
            (f"{side}({ID}, 'real')", f"{side}() takes one failure id, and fidelity"),
            (f"{side}({ID}, fidelty='real')", f"{side}() takes one failure id, and fidelity"),
            (f"{side}({ID}, fidelity='mock')", "fidelity='mock' is not allowed; allowed: real, stand-in, injected"),
        ]
    ),
]
RAISES = "with pytest.raises(ValueError): int('x')"


@pytest.fixture
def described(pytester):
    """``described(marker, body)``: what a test with a marker is."""

    def described(marker, body="pass"):
        item = pytester.getitem(f"import pytest\n@pytest.mark.{marker}\ndef test_it():\n    {body}", "test_it")
        return describe(item, find(item.config))

    return described


@pytest.mark.parametrize(("marker", "words"), WRONG)
def test_a_wrong_marker_is_a_usage_error(described, marker, words):
    with pytest.raises(pytest.UsageError, match=re.escape(words)):
        described(marker)


def test_an_act_that_catches_its_exception_is_refused(described):
    with pytest.raises(pytest.UsageError, match=r"does the failing act without pytest\.raises"):
        described(f"reproduces({ID})", RAISES)


def test_a_guard_may_catch_an_exception(described):
    assert described(f"guards({ID})", RAISES).side.name == "guards"


def test_a_fidelity_of_none_is_the_entrys(described):
    found = described(f"guards({ID}, fidelity=None)")
    assert found.side.fidelity == found.side.failure.fidelity


@pytest.mark.parametrize("marker", ["slow", "skip"])
def test_a_test_without_a_marker_of_ours_is_not_contained(described, marker):
    assert described(marker) is None
