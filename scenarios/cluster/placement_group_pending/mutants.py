from mutants import broken, fails, replaces
from pytest_rlregress.stack.lazy import ray


@broken(only="test_rejects_at_once")
def waits_all_the_same(bundles, strategy, timeout):
    from ray.util.placement_group import placement_group

    group = placement_group(bundles, strategy)
    if not group.wait(timeout):
        raise RuntimeError("3 CPU of 2, 6 NPU of 0")
    return group


@broken(only="test_gives_up")
def left_behind(bundles, strategy, timeout):
    from ray.util.placement_group import placement_group

    group = placement_group(bundles, strategy)
    if not group.wait(timeout):
        free = ray.available_resources().get("CPU", 0)
        raise RuntimeError(f"not in {timeout} s: {sum(bundle['CPU'] for bundle in bundles):g} CPU, free {free:g}")
    return group


@replaces("absent", "ray.util.placement_group.placement_group")
def more_cpus_are_found(original, bundles, *args, **kwargs):
    """A cluster that grows: what is asked for is there."""
    short = sum(bundle.get("CPU", 0) for bundle in bundles) > 2
    return original([{"CPU": 0.001}] if short else bundles, *args, **kwargs)


replaces("changed", "ray.util.placement_group.PlacementGroup.wait")(fails)
