"""Broken remedies of weight-receiver-dies, and stacks that differ."""

from __future__ import annotations

import asyncio

from mutants import broken, mutant
from pytest_rlregress.scenarios.weight_sync import transfers


@broken(only="-raises")
async def no_limit(sender, weights, seconds):
    await sender.async_send_weights(weights)


@broken(only="-hangs")
async def limit_of_the_event_loop(sender, weights, seconds):
    """verl's wait holds up the loop that would end it."""
    await asyncio.wait_for(sender.async_send_weights(weights), seconds)


@mutant("absent", only="never-came")
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


@mutant("changed", only="never-came")
def sender_waits_for_nobody(monkeypatch):
    class Sender:
        async def async_send_weights(self, weights):
            list(weights)

    monkeypatch.setattr(transfers, "sender", lambda handle: Sender())
