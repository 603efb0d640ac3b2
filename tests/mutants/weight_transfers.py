"""Mutants of scenarios/weight_sync: verl's transfer of weights, and what runs share on a machine."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

from mutants import broken, mutant
from pytest_rlregress.remedies.weight_sync import remove_left_shared_memory, run_socket, send_weights_answered
from pytest_rlregress.scenarios.weight_sync import transfers

# weight-receiver-dies


@broken("weight-receiver-dies", only="-raises")
async def no_limit(sender, weights, seconds):
    await sender.async_send_weights(weights)


@broken("weight-receiver-dies", only="-hangs")
async def limit_of_the_event_loop(sender, weights, seconds):
    """verl's wait holds up the loop that would end it."""
    await asyncio.wait_for(sender.async_send_weights(weights), seconds)


@broken("weight-receiver-dies", only="-never-came")
async def answers_limited_and_questions_not(sender, weights, seconds):
    import zmq

    context = sender.zmq_context = zmq.Context()
    context.setsockopt(zmq.RCVTIMEO, int(seconds * 1000))
    try:
        await sender.async_send_weights(weights)
    except zmq.Again:
        raise RuntimeError(sender.zmq_handle) from None


@broken("weight-receiver-dies", only="at_the_connection-dies")
async def a_limit_and_no_look_at_the_connection(sender, weights, seconds):
    import zmq

    context = sender.zmq_context = zmq.Context()
    context.setsockopt(zmq.RCVTIMEO, int(seconds * 1000))
    await sender.async_send_weights(weights)


@broken("weight-receiver-dies", only="slowly")
async def limit_of_all_buckets(sender, weights, seconds):
    await send_weights_answered(sender, weights, seconds / 3)


@broken("weight-receiver-dies", only="-raises")
async def failure_swallowed(sender, weights, seconds):
    with contextlib.suppress(RuntimeError):
        await send_weights_answered(sender, weights, seconds)


@broken("weight-receiver-dies", only="-raises")
async def receiver_not_named(sender, weights, seconds):
    try:
        await send_weights_answered(sender, weights, seconds)
    except RuntimeError:
        raise RuntimeError("a receiver gave no answer") from None


@mutant("weight-receiver-dies", "absent", only="never-came")
def verl_with_a_limit(monkeypatch):
    """As https://github.com/verl-project/verl/pull/7366 has one."""
    sender = transfers.sender

    def limited(handle):
        import zmq

        made = sender(handle)
        made.zmq_context = zmq.Context()
        made.zmq_context.setsockopt(zmq.SNDTIMEO, 1000)
        made.zmq_context.setsockopt(zmq.RCVTIMEO, 1000)
        return made

    monkeypatch.setattr(transfers, "sender", limited)


@mutant("weight-receiver-dies", "changed", only="never-came")
def sender_waits_for_nobody(monkeypatch):
    class Sender:
        async def async_send_weights(self, weights):
            list(weights)

    monkeypatch.setattr(transfers, "sender", lambda handle: Sender())


# socket-name-shared


@broken("socket-name-shared", only="each_run_and_rank")
def run_without_rank(handle, run):
    return run_socket("ipc:///tmp/weights.sock", run)


@broken("socket-name-shared", only="each_run_and_rank")
def run_as_it_is(handle, run):
    return handle.replace(".sock", f"-{run.replace('/', '-')}.sock")


@broken("socket-name-shared", only="each_run_and_rank")
def cut_where_it_is_too_long(handle, run):
    return (handle.removesuffix(".sock") + run.replace("/", "-"))[:100]


@broken("socket-name-shared", only="find_each_other")
def another_name_in_each_process(handle, run):
    return handle.replace(".sock", f"-{hash(run) % 10**8}.sock")


@broken("socket-name-shared", only="no_file_stays")
def every_handle_is_a_file(handle, run):
    return run_socket(handle.replace("tcp", "ipc"), run)


@mutant("socket-name-shared", "absent", only="first_run")
def verl_names_the_run(monkeypatch):
    from pytest_rlregress.scenarios.weight_sync.socket_name_shared import test_socket_name_shared

    monkeypatch.setattr(test_socket_name_shared, "no_rename", run_socket)


@mutant("socket-name-shared", "changed", only="first_run")
def receivers_fail(monkeypatch):
    def receive(handle):
        raise MemoryError("no shared memory")

    monkeypatch.setattr(transfers, "receive", receive)


# shared-memory-left


def unlink(prefixes, keep=lambda path: False):
    found = sorted(path for prefix in prefixes for path in Path("/dev/shm").glob(f"{prefix}*") if not keep(path))
    for path in found:
        path.unlink()
    return [path.name for path in found]


@broken("shared-memory-left", only="process_holds")
def whoever_holds_it(prefixes):
    return unlink(prefixes)


@broken("shared-memory-left", only="-open]")
def mappings_looked_at_alone(prefixes):
    maps = "".join(path.read_text() for path in Path("/proc").glob("[0-9]*/maps") if path.exists())
    return unlink(prefixes, keep=lambda path: str(path) in maps)


@broken("shared-memory-left", only="other_names")
def whatever_the_name(prefixes):
    return remove_left_shared_memory([prefix.removesuffix("psm_") for prefix in prefixes])


@broken("shared-memory-left", only="is_named")
def first_prefix_alone(prefixes):
    return remove_left_shared_memory(prefixes[:1])


@broken("shared-memory-left", only="is_named")
def named_and_not_removed(prefixes):
    return sorted(path.name for prefix in prefixes for path in Path("/dev/shm").glob(f"{prefix}*"))


@mutant("shared-memory-left", "absent", only="ray_ends")
def engine_is_shut_down_first(monkeypatch):
    import ray

    kill = ray.kill

    def after_the_engine(actor):
        ray.get(actor.close.remote())
        kill(actor)

    monkeypatch.setattr(ray, "kill", after_the_engine)


@mutant("shared-memory-left", "changed", only="ray_ends")
def the_actor_is_lost(monkeypatch):
    import ray

    def kill(actor):
        raise ValueError("ray.kill() only supported for actors")

    monkeypatch.setattr(ray, "kill", kill)
