"""A test that asks for a fixture of the stack is treated as if it were marked, however it asks."""

from __future__ import annotations

import documents
import pytest

from pytest_rlregress.harness.collection import STACK_FIXTURES, asked_by
from pytest_rlregress.stack import COMPONENTS, PARTS
from pytest_rlregress.stack.interfaces import is_interface

#: What asks nothing of the stack.
MARKS_NOTHING = {
    *("expected", "hardware", "kept_runs", "progress", "stack", "subject", "watch_log"),
    *("check_logprobs_close", "wait_for_condition"),
}


def test_every_fixture_is_in_the_table_or_marks_nothing():
    assert STACK_FIXTURES.keys() | MARKS_NOTHING == documents.find_fixtures()
    assert STACK_FIXTURES.keys().isdisjoint(MARKS_NOTHING)


@pytest.mark.parametrize("name", STACK_FIXTURES)
def test_fixture_needs_are_known_components(name):
    named = [one for one in STACK_FIXTURES[name].components if not is_interface(one)]
    assert {*named} <= {*COMPONENTS, *PARTS}
    assert STACK_FIXTURES[name].components


# -- who asks ----------------------------------------------------------------------------------------------------------

ASKING = {
    "conftest": """
        import pytest

        @pytest.fixture
        def engine(vllm_engine): return vllm_engine

        @pytest.fixture(scope="session")
        def sharp_qwen(sharp_qwen): return sharp_qwen  # it takes the one that it stands for

        @pytest.fixture
        def tiny_qwen(): return "mine"

        @pytest.fixture
        def mine_alone(tiny_qwen): return tiny_qwen

        @pytest.fixture
        def by_parameter(request): return request.param
    """,
    "test_one": """
        import pytest

        def test_signature(vllm_engine): pass
        def test_own_fixture(engine): pass
        @pytest.mark.usefixtures("vllm_engine")
        def test_use(): pass
        def test_overridden(tiny_qwen): pass
        def test_overridden_below(mine_alone): pass
        def test_overridden_with_its_own(sharp_qwen): pass
        @pytest.mark.parametrize("ray_cluster", [{"num_cpus": 1}], indirect=True)
        def test_indirect(ray_cluster): pass
        @pytest.mark.parametrize("ray_cluster", [1])
        def test_direct(ray_cluster): pass
        @pytest.mark.parametrize("by_parameter", ["vllm_engine"], indirect=True)
        def test_other_parameter(by_parameter): pass
        @pytest.mark.parametrize("engine", [1])
        def test_direct_of_mine(engine): pass
        def test_none(hardware, stack, progress, watch_log): pass
        def test_several(ray_cluster, agreement): pass
        class TestClass:
            @pytest.fixture
            def vllm_server(self): return "mine"
            def test_method(self, training_step): pass
            def test_overridden(self, vllm_server): pass
    """,
    "test_autouse": """
        import pytest, unittest

        @pytest.fixture(autouse=True)
        def all_of_them(vllm_server): pass

        def test_it(): pass
        class TestCase(unittest.TestCase):
            def test_unittest(self): pass
    """,
}
ASKED = {
    "test_signature": ["vllm_runner", "vllm_engine"],
    "test_own_fixture": ["vllm_runner", "vllm_engine"],
    "test_use": ["vllm_runner", "vllm_engine"],
    "test_overridden": [],
    "test_overridden_below": [],
    "test_overridden_with_its_own": ["sharp_qwen"],
    "test_indirect[ray_cluster0]": ["ray_cluster"],
    "test_direct[1]": [],
    "test_other_parameter[vllm_engine]": [],
    "test_direct_of_mine[1]": [],
    "test_none": [],
    "test_several": ["agreement", "ray_cluster"],
    "TestClass::test_method": ["ray_cluster", "shared_training_step", "trainer_step", "training_step"],
    "TestClass::test_overridden": [],
    "test_it": ["vllm_server"],
    "TestCase::test_unittest": ["vllm_server"],
}


def test_finds_the_fixtures_that_each_test_uses(pytester):
    pytester.makepyfile(**ASKING)
    items, _ = pytester.inline_genitems("-p", "no:randomly")
    assert {item.nodeid.partition("::")[2]: list(asked_by(item)) for item in items} == ASKED


def test_ini_usefixtures_counts_as_using(pytester):
    pytester.makeini("[pytest]\nusefixtures = gradient_of")
    pytester.makepyfile("def test_it(): pass")
    [item], _ = pytester.inline_genitems()
    assert list(asked_by(item)) == ["gradient_of"]


# -- what comes of it --------------------------------------------------------------------------------------------------

# The real fixture and table, but for what takes long: no component to import, a missing one, a broken one.
LIGHT = """
from pytest_rlregress.fixtures import declare_engines
from pytest_rlregress.harness import collection as table

table.STACK_FIXTURES["gradient_of"] = table.StackFixture()
table.STACK_FIXTURES["synced"] = table.StackFixture(hardware=False)
table.STACK_FIXTURES["advantages_of"] = table.StackFixture(("apex",))
table.STACK_FIXTURES["agreement"] = table.StackFixture(("datasets",))
"""
ASKS = """
import os, pytest

@pytest.fixture
def mine(gradient_of): return os.getpid()

def contained(): return os.environ["PYTEST_PID"] != str(os.getpid())

def test_signature(gradient_of): assert contained()
def test_own_fixture(mine): assert contained() and mine == os.getpid()
@pytest.mark.usefixtures("gradient_of")
def test_use(): assert contained()
def test_missing(advantages_of): assert 0
def test_plain(): assert not contained()
@pytest.mark.needs("apex")
def test_needs(gradient_of): assert 0
@pytest.mark.hw("h100")
def test_hardware(gradient_of): assert 0
@pytest.mark.isolated(env={"ONE_OF_MINE": "1"})
def test_variable(gradient_of): assert os.environ["ONE_OF_MINE"] == "1"
"""
# A child's pid is another one than that which collected.
CONFTEST = """
import os

def pytest_collection_finish(session):
    if not session.config.pluginmanager.has_plugin("rlregress-worker"):
        os.environ["PYTEST_PID"] = str(os.getpid())
"""


@pytest.fixture
def light(run, pytester, monkeypatch, plugins):
    """``light(files, *options)``: run pytest with fixtures of the stack that need next to nothing of it."""
    plugin = plugins(light=LIGHT)
    pytester.path.joinpath("plugins", "datasets.py").write_text("raise RuntimeError('no Arrow here')")
    monkeypatch.delenv("PYTEST_PID", raising=False)
    pytester.makeconftest(CONFTEST)
    return lambda body, *options: run(body, *plugin, *options)


def test_fixture_contains_a_test_and_adds_needs_to_its_markers(light):
    result = light(ASKS, "-rs", "--hw=cpu", "test_it.py")
    result.assert_outcomes(passed=5, skipped=3)
    result.stdout.fnmatch_lines(["*SKIPPED*apex is not installed*"])


def test_broken_component_blocks_tests_that_use_it(light):
    result = light("def test_one(agreement): pass\ndef test_two(agreement): pass", "-rs")
    result.assert_outcomes(failed=1, skipped=2)
    result.stdout.fnmatch_lines(
        ["*broken here: datasets.*", "Not tried, 2 tests, for want of: datasets that works (2)."]
    )


def test_hardware_run_counts_tests_that_compute_on_the_card(light, two_cards):
    result = light("def test_it(gradient_of): pass", two_cards, "test_it.py")
    result.assert_outcomes(passed=1)
    assert result.ret == pytest.ExitCode.OK, result.stdout.str()


def test_tests_off_the_card_and_skipped_tests_are_not_hardware_tests(light, two_cards):
    body = "import pytest\ndef test_skip(gradient_of): pytest.skip('not today')\ndef test_it(synced): pass"
    result = light(body, two_cards, "test_it.py")
    result.assert_outcomes(passed=1, skipped=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*--hw=h100 ran no hardware test*"])


GETS = """
import pytest
def test_gets(request): request.getfixturevalue("training_step")
@pytest.mark.parametrize("name", ["gradient_of"])
def test_gets_by_parameter(request, name): request.getfixturevalue(name)
@pytest.mark.isolated
def test_gets_in_a_child(request): request.getfixturevalue("gradient_of")
def test_gets_another(request): request.getfixturevalue("stack")
"""


def test_rejects_a_dynamic_fixture_and_says_how_to_declare_it(light):
    result = light(GETS)
    result.assert_outcomes(failed=2, passed=2)
    result.stdout.fnmatch_lines(
        [
            "the fixture 'training_step' uses the stack, which is not imported into pytest's own process.*"
            'usefixtures("training_step")*needs("torch", "transformers", "tensordict", "ray", "vllm-engine").',
        ]
    )


def test_fixture_is_missing_without_the_plugin(run):
    result = run("def test_it(vllm_engine): pass\ndef test_plain(): pass", "-p", "no:rlregress")
    result.assert_outcomes(errors=1, passed=1)
    result.stdout.fnmatch_lines(["*fixture 'vllm_engine' not found*"])


def test_inline_runs_a_test_in_this_process(light):
    body = "import os\ndef test_it(gradient_of): assert os.environ['PYTEST_PID'] == str(os.getpid())"
    result = light(body, "--rl-inline")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*contained tests run in this process*"])


def test_setup_plan_starts_nothing(light):
    result = light("def test_it(training_step): assert 0", "--setup-plan", "-v")
    assert result.ret == pytest.ExitCode.OK
    assert "rlregress:" not in result.stdout.str()
    result.stdout.fnmatch_lines(["*SETUP    S tiny_qwen*", "*SETUP    F training_step*"])


def test_a_file_that_dies_on_import_costs_only_itself(light):
    files = {
        "test_dies": "import os\nos.abort()\ndef test_it(gradient_of): pass",
        "test_lives": "def test_it(gradient_of): pass",
    }
    result = light(files, "--hw=cpu", ".")
    result.assert_outcomes(errors=1, passed=1)
    result.stdout.fnmatch_lines(["*import of the test module: *SIGABRT*"])


def test_users_fixture_of_the_same_name_wins(light):
    body = """
        import os, pytest
        @pytest.fixture
        def gradient_of(): return "mine"
        def test_it(gradient_of):
            assert gradient_of == "mine"
            assert os.environ["PYTEST_PID"] == str(os.getpid())
    """
    result = light(body)
    result.assert_outcomes(passed=1)
    assert "rlregress" not in result.stdout.str().partition("test session starts")[2].partition("collected")[2]
