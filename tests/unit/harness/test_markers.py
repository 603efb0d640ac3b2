"""What the markers of a test may say; ``tests/plugin/harness/test_run.py`` has whole runs that end for one."""

from __future__ import annotations

import pytest

from pytest_rlregress.harness.collection import StackFixture
from pytest_rlregress.harness.items import describe
from pytest_rlregress.harness.needs import Needs, read_needs
from pytest_rlregress.harness.session import Session

mark = pytest.mark
ID = "dataproto-concat-keys"
SIZE, TIME = "a size with its unit, such as '4GiB' or '500MB'", "a positive number of seconds, or inf for no limit"
KEYWORDS = "not allowed; allowed: group, env, fresh, timeout, memory, stall."
NEEDS = "needs() takes at least one component: torch, vllm,"
WRONG = [
    (mark.isolated(timeoutt=3), f"isolated(): timeoutt {KEYWORDS}"),
    (mark.isolated("engine"), f"isolated(): positional arguments {KEYWORDS}"),
    (mark.isolated(memory="much"), f"isolated(memory='much') is not allowed. Allowed: {SIZE}."),
    (mark.isolated(memory=8), f"isolated(memory=8) is not allowed. Allowed: {SIZE}."),
    (mark.isolated(timeout="soon"), f"isolated(timeout='soon') is not allowed. Allowed: {TIME}."),
    (mark.needs(), NEEDS),
    (mark.needs, NEEDS),
    (mark.needs(component="torch"), NEEDS),
    (mark.needs("tensorflow"), "tensorflow"),
    (mark.needs("torch:nn.Linear("), "needs(): 'torch:nn.Linear(' isn't an interface. Allowed: a module, a colon and"),
    (mark.needs("json:loads"), "needs(): 'json:loads': json isn't a module of a component of the stack"),
    (mark.hw("h1000"), "h1000"),
    (mark.guards("dataproto-concat"), "failure id 'dataproto-concat' is not in the catalogue"),
    (mark.guards(ID, expected="absent"), "guards() takes one failure id, and fidelity."),
    (mark.reproduces(ID, expected="gone"), "expected='gone' is not allowed; allowed: 'reproduced', 'absent'."),
    *(
        row
        for side in (mark.reproduces, mark.guards)
        for row in [
            (side(), "() takes one failure id, and "),
            (side(ID, "real"), "() takes one failure id, and fidelity"),
            (side(ID, fidelty="real"), "() takes one failure id, and fidelity"),
            (side(ID, fidelity="mock"), "fidelity='mock' is not allowed; allowed: real, stand-in, injected"),
        ]
    ),
]


@pytest.fixture
def described(request):
    """``described(marker)``: what this very test is with a marker."""

    def described(marker):
        request.node.add_marker(marker)
        return describe(request.node, Session(request.config))

    return described


@pytest.mark.parametrize(("marker", "words"), WRONG)
def test_a_wrong_marker_is_a_usage_error(described, marker, words):
    with pytest.raises(pytest.UsageError) as caught:
        described(marker)
    assert words in str(caught.value)


def test_rejects_an_act_that_catches_its_exception(described):
    with pytest.raises(pytest.UsageError) as caught:
        described(mark.reproduces(ID))
    assert "does the failing act without pytest.raises" in str(caught.value)


def test_a_guard_may_catch_an_exception(described):
    with pytest.raises(ValueError, match="int"):
        int("x")
    found = described(mark.guards(ID, fidelity=None))
    assert (found.side.name, found.side.fidelity) == ("guards", found.side.failure.fidelity)


def test_without_our_markers_is_not_contained(described):
    assert described(mark.usefixtures("tmp_path")) is None


def test_an_interface_needs_its_component(described):
    assert described(mark.needs("tensordict.utils:a(b)", "ray")).components == ("tensordict", "ray")


def test_a_fixture_may_need_an_interface(request):
    fixture = StackFixture(("tensordict.utils:a",), starts="vllm-engine")
    assert read_needs(request.node, [fixture]) == Needs(("tensordict", "vllm-engine"), ("tensordict.utils:a",))
