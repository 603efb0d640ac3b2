"""Mutants of scenarios/cluster."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys

from mutants import broken, mutant
from pytest_rlregress.remedies.cluster import blame, gather_then_transfer, probe_cuda, reserve_resources, without_gpus


@broken("raylet-crash", only="test_the_raylet_is_blamed")
def nobody_to_blame(log_dir):
    return []


@broken("raylet-crash", only="test_the_raylet_is_blamed")
def signals_alone(log_dir):
    return [sentence for sentence in blame(log_dir) if "SIG" in sentence]


@broken("raylet-crash", only="test_the_raylet_is_blamed")
def any_mention_of_a_signal(log_dir):
    """Ray guesses at SIGSEGV in its messages, and so may anybody."""
    logs = (log.read_text(errors="replace") for log in log_dir.glob("*.err"))
    return ["a raylet died of SIGSEGV" for text in logs if "SIGSEGV" in text]


@broken("raylet-crash", only="test_folder_that_is_none")
def no_folder_no_death(log_dir):
    return blame(log_dir) if log_dir.is_dir() else []


@mutant("raylet-crash", "absent", only="elsewhere-actor")
def actors_start_again_elsewhere(monkeypatch):
    from ray.actor import ActorClass
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from pytest_rlregress.scenarios.cluster import test_raylet_crash as scenario

    options = ActorClass.options

    def restarted(self, *, scheduling_strategy, **given):
        soft = NodeAffinitySchedulingStrategy(scheduling_strategy.node_id, soft=True)
        return options(self, scheduling_strategy=soft, max_restarts=1, max_task_retries=1, **given)

    monkeypatch.setattr(ActorClass, "options", restarted)
    monkeypatch.setattr(scenario, "SECONDS", 4)


@mutant("raylet-crash", "changed", only="fails_otherwise-driver")
def waiting_fails_otherwise(monkeypatch):
    import ray

    from pytest_rlregress.scenarios.cluster import test_raylet_crash as scenario

    get = ray.get

    def timed_out(task, timeout):
        if timeout == scenario.WAIT:
            raise ray.exceptions.GetTimeoutError("Get timed out: some object(s) not ready.")
        return get(task, timeout=timeout)

    monkeypatch.setattr(ray, "get", timed_out)


@broken("worker-double-free", only="test_probe_frees_twice")
def signal_not_named(code="print(False)", timeout=120.0):
    try:
        return probe_cuda(code, timeout)
    except RuntimeError as error:
        raise RuntimeError(re.sub("SIG[A-Z]+", "a signal", str(error))) from None


@broken("worker-double-free", only="test_probe_imports")
def nothing_is_imported(code="print(False)", timeout=120.0):
    return probe_cuda(code, timeout)


@broken("worker-double-free", only="test_probe_frees_twice")
def last_words_lost(code="print(False)", timeout=120.0):
    try:
        return probe_cuda(code, timeout)
    except RuntimeError as error:
        raise RuntimeError(str(error).splitlines()[0]) from None


@broken("worker-double-free", only="test_answer")
def exit_code_for_an_answer(code="print(False)", timeout=120.0):
    return subprocess.run([sys.executable, "-c", code], timeout=timeout, check=False).returncode == 0


@broken("worker-double-free", only="test_answer")
def in_the_same_process(code="print(False)", timeout=120.0):
    said = []
    exec(code, {"print": said.append})
    return said[-1] is True


@mutant("worker-double-free", "absent")
def workers_free_once(monkeypatch):
    from pytest_rlregress.scenarios.cluster import test_worker_double_free as scenario

    run = scenario.in_worker
    monkeypatch.setattr(scenario, "in_worker", lambda code: run(code.replace("libc.free(block)\n", "", 1)))


@mutant("worker-double-free", "changed")
def heap_breaks_otherwise(monkeypatch):
    """Blocks too large for the tcache: glibc says ``double free or corruption``."""
    from pytest_rlregress.scenarios.cluster import test_worker_double_free as scenario

    monkeypatch.setattr(scenario, "FREE_TWICE", scenario.FREE_TWICE.replace("64", "8192"))


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
