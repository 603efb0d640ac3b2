"""Broken remedies of placement-group-pending, and stacks that differ."""

from __future__ import annotations

from mutants import broken, mutant


@broken(only="test_too_much")
def waits_all_the_same(bundles, strategy, timeout):
    from ray.util.placement_group import placement_group

    group = placement_group(bundles, strategy)
    if not group.wait(timeout):
        raise RuntimeError("3 CPU of 2, 6 NPU of 0")
    return group


@broken(only="test_what_does_not_come")
def left_behind(bundles, strategy, timeout):
    import ray
    from ray.util.placement_group import placement_group

    group = placement_group(bundles, strategy)
    if not group.wait(timeout):
        free = ray.available_resources().get("CPU", 0)
        raise RuntimeError(f"not in {timeout} s: {sum(bundle['CPU'] for bundle in bundles):g} CPU, free {free:g}")
    return group


@mutant("absent")
def more_cpus_are_found(monkeypatch):
    """A cluster that grows: what is asked for is there."""
    import sys

    module = sys.modules["ray.util.placement_group"]  # in ray.util a function has its name
    make = module.placement_group

    def grown(bundles, *args, **kwargs):
        short = sum(bundle.get("CPU", 0) for bundle in bundles) > 2
        return make([{"CPU": 0.001}] if short else bundles, *args, **kwargs)

    monkeypatch.setattr(module, "placement_group", grown)


@mutant("changed")
def too_much_is_an_error(monkeypatch):
    from ray.util.placement_group import PlacementGroup

    def fails(self, *args):
        raise ValueError("infeasible: no node has 3 CPUs")

    monkeypatch.setattr(PlacementGroup, "wait", fails)
    monkeypatch.setattr(PlacementGroup, "ready", fails)
