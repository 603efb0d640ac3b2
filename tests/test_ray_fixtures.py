"""The fixtures of Ray: a shared cluster that nothing is left in, clusters of one's own, and what they refuse."""

from __future__ import annotations

import re

import needs
import pytest

from pytest_rlregress.fixtures import ray_nodes
from pytest_rlregress.fixtures.waiting import wait_for_condition

# -- without Ray -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nodes", "common", "given"),
    [
        (1, {}, [{}]),
        (2, {"num_cpus": 4}, [{"num_cpus": 4}] * 2),
        (
            [{"num_cpus": 1}, {"labels": {"a": "b"}}],
            {"num_cpus": 2.5},
            [{"num_cpus": 1}, {"num_cpus": 2.5, "labels": {"a": "b"}}],
        ),
    ],
)
def test_nodes(nodes, common, given):
    assert ray_nodes.check_nodes(nodes, common) == given


@pytest.mark.parametrize(
    ("nodes", "common", "said"),
    [
        (1, {"num_cpu": 1}, "ray_start(): num_cpu not allowed; allowed: num_cpus, num_gpus, resources, labels, memory, "
         "object_store_memory, nodes, dashboard"),
        ([{}, {"cpus": 1}], {}, "ray_start(): nodes[1]: cpus not allowed; allowed: num_cpus, "),
        (0, {}, "nodes=0 is not allowed; allowed: a number from 1 on, or what each node has"),
        (True, {}, "nodes=True is not allowed"),
        ([], {}, "nodes=[] is not allowed"),
        ("two", {}, "nodes='two' is not allowed"),
        ([1, 2], {}, "nodes=[1, 2] is not allowed"),
        (1, {"num_cpus": -1}, "num_cpus=-1 is not allowed; allowed: a number from 0 on"),
        (1, {"num_gpus": "all"}, "num_gpus='all' is not allowed"),
        (1, {"resources": ["a"]}, "resources=['a'] is not allowed; allowed: a mapping such as"),
    ],
)  # fmt: skip
def test_what_is_not_allowed_is_named(nodes, common, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        ray_nodes.check_nodes(nodes, common)


@pytest.mark.parametrize("parameter", [3, "two", None, [("num_cpus", 1)]])
def test_a_parameter_that_is_no_mapping(parameter):
    with pytest.raises(ValueError, match=r"indirect=True\): .* is not allowed; allowed: mappings of ray_start's"):
        ray_nodes.shared_arguments(parameter)


def test_a_condition_is_waited_for():
    tries = []

    def third():
        tries.append(1)
        if len(tries) == 1:
            raise OSError("not yet")
        return len(tries) == 3

    wait_for_condition(third, timeout=5, interval=0.001)
    assert len(tries) == 3


def test_a_condition_that_does_not_come_true():
    with pytest.raises(TimeoutError, match=r"^no port within 0 s: ZeroDivisionError: ") as error:
        wait_for_condition(lambda: 1 // 0, timeout=0, message=lambda: "no port")
    assert isinstance(error.value.__cause__, ZeroDivisionError)
    with pytest.raises(TimeoutError, match=r"<lambda> did not become true within 0.02 s$"):
        wait_for_condition(lambda: False, timeout=0.02, interval=0.001)


# -- with it -----------------------------------------------------------------------------------------------------------

LEAVES = """
import pytest

class Keeper:
    def ping(self): return 1

def kept(name=None, **options):
    import ray
    actor = ray.remote(Keeper).options(num_cpus=0, name=name, **options).remote()
    assert ray.get(actor.ping.remote(), timeout=60) == 1
    return actor

def names():
    import ray
    return sorted(one["name"] for one in ray.util.list_named_actors(all_namespaces=True))

@pytest.fixture(scope="module")
def of_module(ray_cluster):
    import ray
    actor = kept("of the module", lifetime="detached")
    yield actor
    ray.kill(actor)

@pytest.fixture
def of_test(ray_cluster):
    import ray
    actor = kept("of the test", lifetime="detached")
    yield actor
    ray.kill(actor)

def test_leaves(ray_cluster):
    import ray
    kept("detached", lifetime="detached", namespace="another")
    kept(lifetime="detached")
    pytest.handle = kept("named")
    group = ray.util.placement_group([{"CPU": 2}], name="group")
    ray.get(group.ready(), timeout=60)

def test_next_meets_nothing(ray_cluster):
    import ray
    from ray.util import placement_group, remove_placement_group
    assert names() == []
    assert {group["state"] for group in ray.util.placement_group_table().values()} == {"REMOVED"}
    group = placement_group([{"CPU": 2}])
    ray.get(group.ready(), timeout=60)
    remove_placement_group(group)

def test_leaves_nothing(ray_cluster, of_test):
    import ray
    ray.kill(kept("detached", lifetime="detached"))
    named = kept("named")

def test_fixture_stays(of_module): assert names() == ["of the module"]
def test_fixture_stayed(of_module): assert names() == ["of the module"]

def test_last(ray_cluster): kept("last", lifetime="detached")
"""

SAID = re.compile(r"(test_it.py::\S+) left (.*) in the Ray cluster that other tests share: removed")


@needs.stack
def test_what_a_test_leaves_is_removed_and_said(run):
    result = run(LEAVES)
    result.assert_outcomes(passed=6, warnings=2)
    [(first, left), (last, one)] = SAID.findall(result.stdout.str())
    assert re.fullmatch(
        r"detached actor [0-9a-f]+ \(Keeper\), detached actor detached \(Keeper\), "
        r"named actor named \(Keeper\), placement group group",
        left,
    )
    assert (first, last, one) == ("test_it.py::test_leaves", "test_it.py::test_last", "detached actor last (Keeper)")


@needs.stack
def test_what_a_test_leaves_is_an_error_of_a_strict_run(run):
    result = run(LEAVES, "--rl-strict", "-k", "test_last or stay")
    result.assert_outcomes(passed=3, errors=1, deselected=3)
    result.stdout.fnmatch_lines(["*ERROR at teardown of test_last*", "test_it.py::test_last left detached actor last*"])


PARAMETERS = """
import pytest

@pytest.mark.parametrize("ray_cluster", [{"num_cpus": 1}, {"nodes": [{"num_cpus": 3}, {"resources": {"a": 1}}]}],
                         indirect=True)
def test_it(ray_cluster):
    import ray
    has = ray.cluster_resources()
    assert (has["CPU"], has.get("a", 0), len(ray_cluster.nodes)) in [(1, 0, 1), (5, 1, 2)]

@pytest.mark.parametrize("ray_cluster", [{"num_cpu": 1}], indirect=True)
def test_unknown(ray_cluster): pass

@pytest.mark.parametrize("ray_cluster", [3], indirect=True)
def test_no_mapping(ray_cluster): pass

def test_disconnects(ray_cluster):
    import ray
    ray.shutdown()

def test_connected(ray_cluster):
    import ray
    assert ray.is_initialized()
    assert ray.get_runtime_context().gcs_address == ray_cluster.address

def test_default(ray_cluster): assert len(ray_cluster.nodes) == 1
"""


@needs.stack
def test_parameters_of_the_shared_cluster(run):
    result = run(PARAMETERS)
    result.assert_outcomes(passed=5, errors=2, warnings=1)
    result.stdout.fnmatch_lines(["*test_it.py::test_disconnects called ray.shutdown(), which disconnects all*"])
    result.stdout.fnmatch_lines_random(
        ["*num_cpu not allowed; allowed: num_cpus, *", "*3 is not allowed; allowed: mappings of*"]
    )


@pytest.mark.isolated(timeout=300)
def test_a_cluster_of_ones_own(ray_start, signal_actor):
    with pytest.raises(RuntimeError, match="no Ray runs; ask for the fixture ray_cluster"):
        signal_actor()
    cluster = ray_start(num_cpus=1)
    import ray

    with pytest.raises(RuntimeError, match=r"already, that of ray_start\(\) in .*_of_ones_own at [\d.]+:\d+: one runs"):
        ray_start()
    node = cluster.add_node(num_cpus=3, resources={"slot": 2})
    assert (ray.cluster_resources()["CPU"], ray.cluster_resources()["slot"]) == (4, 2)
    signal = signal_actor()
    first, second = signal.wait.remote(), signal.wait.remote()
    wait_for_condition(lambda: ray.get(signal.waiting.remote()) == 2, timeout=60)
    assert ray.wait([first, second], timeout=0.1)[0] == []
    ray.get(signal.send.remote(clear=True), timeout=60)
    ray.get([first, second], timeout=60)
    assert ray.wait([signal.wait.remote()], timeout=0.1)[0] == []
    cluster.remove_node(node)
    assert [one["NodeID"] for one in ray.nodes() if one["Alive"]] == [cluster.nodes[0].node_id]
    for wrong, said in ((node, "no node of this cluster"), (cluster.nodes[0], "the head, which ends with the cluster")):
        with pytest.raises(ValueError, match=rf"remove_node\(\): this is {said}; allowed: one of nodes\[1:\]"):
            cluster.remove_node(wrong)
    with pytest.raises(ValueError, match=r"add_node\(\): cpus not allowed; allowed: num_cpus"):
        cluster.add_node(cpus=1)
    cluster.remove_node(cluster.add_node(), graceful=False)
    assert len(cluster.nodes) == 1


@pytest.mark.isolated(timeout=300)
def test_one_after_the_other_in_blocks(ray_start):
    import ray

    with ray_start(nodes=2, num_cpus=1) as cluster:
        assert len(cluster.nodes) == 2
    assert not ray.is_initialized()
    assert not cluster.log_dir.exists()
    with ray_start(resources={"slot": 2}):
        assert ray.cluster_resources()["slot"] == 2
