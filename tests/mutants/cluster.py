"""Mutants of scenarios/cluster."""

from __future__ import annotations

import contextlib

from mutants import broken, mutant
from pytest_rlregress.remedies.cluster import gather_then_transfer, reserve_resources, without_gpus


@broken("interleaved-collectives-hang", only="test_every_weight_arrives")
def sent_as_gathered(weights, transfer, trainers, timeout):
    for pair in weights:
        if transfer:
            transfer([pair])


@broken("interleaved-collectives-hang", only="test_every_weight_arrives")
def without_a_barrier(weights, transfer, trainers, timeout):
    gathered = list(weights)
    if transfer:
        transfer(gathered)


@broken("interleaved-collectives-hang", only="-refused")
def failure_dropped(weights, transfer, trainers, timeout):
    def quiet(pairs):
        with contextlib.suppress(Exception):
            transfer(pairs)

    gather_then_transfer(weights, transfer and quiet, trainers, timeout)


@broken("interleaved-collectives-hang", only="-refused")
def told_to_the_sender_alone(weights, transfer, trainers, timeout):
    try:
        gather_then_transfer(weights, transfer, trainers, timeout)
    except RuntimeError:
        if transfer:
            raise


@broken("interleaved-collectives-hang", only="-no-sender")
def receivers_not_limited(weights, transfer, trainers, timeout):
    import torch.distributed as dist

    gather_then_transfer(weights, transfer, trainers, timeout if dist.get_rank() == 0 else 60)


@broken("interleaved-collectives-hang", only="-refused")
def out_of_step(weights, transfer, trainers, timeout):
    """A rank that fails leaves the others in a collective of their own."""
    import torch.distributed as dist

    gathered = list(weights)
    dist.barrier(group=trainers)
    if transfer:
        transfer(gathered)
    dist.barrier(group=trainers)


@mutant("interleaved-collectives-hang", "absent")
def senders_do_not_wait(monkeypatch):
    """A torch whose broadcast returns to the sender before the receivers come."""
    import torch.distributed as dist

    broadcast = dist.broadcast

    def without_waiting(tensor, src, group):
        broadcast(tensor, src, group=group, async_op=dist.get_rank() == src)

    monkeypatch.setattr(dist, "broadcast", without_waiting)


@mutant("interleaved-collectives-hang", "changed")
def broadcast_fails(monkeypatch):
    import torch.distributed as dist

    def fails(tensor, src, group):
        raise RuntimeError("broadcast of tensors on the CPU is not supported")

    monkeypatch.setattr(dist, "broadcast", fails)


@broken("placement-group-pending", only="test_too_much")
def waits_all_the_same(bundles, strategy, timeout):
    from ray.util.placement_group import placement_group

    group = placement_group(bundles, strategy)
    if not group.wait(timeout):
        raise RuntimeError("3 CPU of 2, 6 NPU of 0")
    return group


@broken("placement-group-pending", only="test_too_much")
def not_said_what_is_short(bundles, strategy, timeout):
    try:
        return reserve_resources(bundles, strategy, timeout)
    except RuntimeError:
        raise RuntimeError("the cluster is too small") from None


@broken("placement-group-pending", only="test_too_much")
def gpus_alone(bundles, strategy, timeout):
    from ray.util.placement_group import placement_group

    asked = [{name: amount for name, amount in bundle.items() if name != "CPU"} for bundle in bundles]
    return reserve_resources(asked, strategy, timeout) if all(asked) else placement_group(bundles, strategy)


@broken("placement-group-pending", only="test_what_does_not_come")
def left_behind(bundles, strategy, timeout):
    import ray
    from ray.util.placement_group import placement_group

    group = placement_group(bundles, strategy)
    if not group.wait(timeout):
        free = ray.available_resources().get("CPU", 0)
        raise RuntimeError(f"not in {timeout} s: {sum(bundle['CPU'] for bundle in bundles):g} CPU, free {free:g}")
    return group


@broken("placement-group-pending", only="test_what_does_not_come")
def does_not_wait(bundles, strategy, timeout):
    try:
        return reserve_resources(bundles, strategy, 0)
    except RuntimeError as error:
        raise RuntimeError(str(error).replace(" 0 s", f" {timeout} s")) from None


@broken("placement-group-pending", only="test_what_there_is")
def one_bundle(bundles, strategy, timeout):
    return reserve_resources([{"CPU": len(bundles)}], strategy, timeout)


@mutant("placement-group-pending", "absent")
def more_cpus_are_found(monkeypatch):
    """A cluster that grows: what is asked for is there."""
    import sys

    module = sys.modules["ray.util.placement_group"]  # in ray.util a function has its name
    make = module.placement_group

    def grown(bundles, *args, **kwargs):
        short = sum(bundle.get("CPU", 0) for bundle in bundles) > 2
        return make([{"CPU": 0.001}] if short else bundles, *args, **kwargs)

    monkeypatch.setattr(module, "placement_group", grown)


@mutant("placement-group-pending", "changed")
def too_much_is_an_error(monkeypatch):
    from ray.util.placement_group import PlacementGroup

    def fails(self, *args):
        raise ValueError("infeasible: no node has 3 CPUs")

    monkeypatch.setattr(PlacementGroup, "wait", fails)
    monkeypatch.setattr(PlacementGroup, "ready", fails)


@broken("gpu-visibility-of-ray-actors", only="test_actor_without_a_gpu_sees_none")
def left_to_ray(options):
    return dict(options)


@broken("gpu-visibility-of-ray-actors", only="test_actor_without_a_gpu_sees_none")
def only_where_zero_is_said(options):
    return without_gpus(options) if "num_gpus" in options else {**options, "num_gpus": 1}


@broken("gpu-visibility-of-ray-actors", only="test_actor_with_a_gpu")
def hidden_from_all(options):
    return without_gpus({key: value for key, value in options.items() if key != "num_gpus"}) | {"num_gpus": 0}


@broken("gpu-visibility-of-ray-actors", only="test_other_variables")
def other_variables_lost(options):
    return {**options, "runtime_env": {"env_vars": {"CUDA_VISIBLE_DEVICES": ""}}}


@broken("gpu-visibility-of-ray-actors", only="test_options_that_stay")
def chosen_overwritten(options):
    variables = options.get("runtime_env", {}).get("env_vars", {})
    variables = variables if options.get("num_gpus") else {**variables, "CUDA_VISIBLE_DEVICES": ""}
    return {**options, "runtime_env": {"env_vars": variables}} if variables else dict(options)


@broken("gpu-visibility-of-ray-actors", only="test_options_are_left")
def options_changed(options):
    made = without_gpus(options)
    options.update(made)
    return made


@mutant("gpu-visibility-of-ray-actors", "absent")
def ray_hides_them(monkeypatch):
    """A Ray that sets the variable of an actor without a GPU to nothing, as 2.53 does."""
    from ray.actor import ActorClass

    options = ActorClass.options
    monkeypatch.setattr(ActorClass, "options", lambda self, **given: options(self, **without_gpus(given)))


@mutant("gpu-visibility-of-ray-actors", "changed")
def actors_want_it_said(monkeypatch):
    from ray.actor import ActorClass

    def refuses(self, **given):
        raise ValueError("say how many GPUs")

    monkeypatch.setattr(ActorClass, "options", refuses)
