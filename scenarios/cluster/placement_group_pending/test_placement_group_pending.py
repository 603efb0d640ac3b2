import functools
import math
import threading
import time

import pytest

from pytest_rlregress.failures.act import act
from pytest_rlregress.failures.silent import silent
from pytest_rlregress.scenarios.patience import FOR_EVER, measure_patience
from pytest_rlregress.stack.lazy import ray

SECONDS = 1  # Ray counts whole ones; a group that can be placed is there in 0.01 s, more where it takes longer
PATIENT = int(FOR_EVER)


def free():
    return ray.available_resources().get("CPU", 0.0)


def wait_until_free(cpus):
    """Resources that were given back are free again a moment later."""
    end = time.monotonic() + FOR_EVER
    while free() < cpus and time.monotonic() < end:
        time.sleep(0.02)
    return free()


@pytest.fixture
def cpus(ray_cluster):
    """How many CPUs the cluster has; all are free, and no group of the test is left."""
    from ray.util.placement_group import PlacementGroup, remove_placement_group

    total = ray.cluster_resources()["CPU"]
    assert wait_until_free(total) == total
    yield int(total)
    for group, about in ray.util.placement_group_table().items():
        if about["state"] != "REMOVED":
            remove_placement_group(PlacementGroup(ray.PlacementGroupID.from_hex(group)))


@pytest.fixture
def patience(cpus):
    """How many whole seconds to wait for a group on this machine."""
    from ray.util.placement_group import placement_group, remove_placement_group

    def place():
        group = placement_group([{"CPU": 1}])
        while ray.util.placement_group_table(group)["state"] != "CREATED":
            time.sleep(0.01)
        remove_placement_group(group)

    seconds = math.ceil(measure_patience(place, SECONDS))
    assert wait_until_free(cpus) == cpus
    return seconds


def asked():
    """The ids of all groups that the cluster was ever asked for."""
    return set(ray.util.placement_group_table())


def left():
    """The states of the groups that are not removed."""
    return [group["state"] for group in ray.util.placement_group_table().values() if group["state"] != "REMOVED"]


@pytest.mark.reproduces("placement-group-pending")
@pytest.mark.needs("verl")
def test_resource_pool_of_verl(cpus, patience, monkeypatch):
    """It asks for CPUs by the number of workers that may share a GPU, and waits without a limit."""
    from verl.single_controller.ray.base import RayResourcePool

    pool = RayResourcePool([1], use_gpu=False, max_colocate_count=cpus + 1)
    monkeypatch.setattr("ray.get", functools.partial(ray.get, timeout=patience))
    with act():
        try:
            pool.get_placement_groups()
        except ray.exceptions.GetTimeoutError:
            silent(f"verl waits for {cpus + 1} CPUs of {cpus}, still after {patience} s")


@pytest.mark.reproduces("placement-group-pending")
def test_more_cpus_than_there_are(cpus, patience):
    from ray.util.placement_group import placement_group

    with act():
        group = placement_group([{"CPU": 1}] * (cpus + 1))
    if not group.wait(patience):
        silent(f"{cpus + 1} CPUs of {cpus} asked for, still waiting after {patience} s")


@pytest.mark.guards("placement-group-pending")
@pytest.mark.parametrize("strategy", ["PACK", "STRICT_PACK", "SPREAD"])
def test_reserves_what_is_there(subject, cpus, strategy):
    group = subject([{"CPU": 1}] * cpus, strategy, PATIENT)
    about = ray.util.placement_group_table(group)
    assert (about["state"], about["strategy"]) == ("CREATED", strategy)
    assert group.bundle_specs == [{"CPU": 1}] * cpus


@pytest.mark.guards("placement-group-pending")
@pytest.mark.parametrize(
    ("bundle", "words"),
    [({"CPU": 1}, r"\b3 CPU\b.*\b2\b"), ({"CPU": 0.5, "NPU": 0.25}, r"\b0\.75 NPU\b.*\b0\b")],
    ids=["too-few", "none-at-all"],
)
def test_rejects_at_once_what_the_cluster_lacks(subject, cpus, bundle, words):
    before = asked()
    with act(), pytest.raises(RuntimeError, match=words) as refused:
        subject([bundle] * (cpus + 1), "PACK", 6)
    assert asked() == before, "Ray was asked for what it cannot have"
    assert "CPU" not in str(refused.value) or bundle == {"CPU": 1}, "names what is not short"
    assert left() == []


@pytest.mark.guards("placement-group-pending")
def test_gives_up_after_the_timeout_and_asks_no_more(subject, cpus):
    """Of CPUs that another group holds; afterwards they may be had."""
    from ray.util.placement_group import placement_group, remove_placement_group

    holder = placement_group([{"CPU": cpus}])
    assert holder.wait(PATIENT)
    with act(), pytest.raises(RuntimeError, match=r"\b1 s\b.*\b2 CPU\b.*\b0\b"):
        subject([{"CPU": 0.5}] * 4, "SPREAD", 1)
    assert left() == ["CREATED"], "the group that did not come is still asked for"
    threading.Timer(0.3, remove_placement_group, [holder]).start()
    group = subject([{"CPU": cpus}], "PACK", PATIENT)
    assert ray.util.placement_group_table(group)["state"] == "CREATED", "did not wait for what becomes free"


@pytest.mark.guards("placement-group-pending")
def test_rejects_what_fits_on_no_single_node(subject, cpus):
    with pytest.raises(RuntimeError, match=r"STRICT_SPREAD.*\b1 s\b.*\b2 CPU, free 2\b"):
        subject([{"CPU": 1}] * 2, "STRICT_SPREAD", 0.5)
    assert left() == []
    assert wait_until_free(cpus) == cpus
