"""Broken remedies of missing-logprob-zero-filled, and stacks that differ."""

from __future__ import annotations

from mutants import broken, mutant
from pytest_rlregress.remedies.masks import trained_where_known


@broken(only="test_only_what")
def filled_with_zero_and_trained(response_mask, logprobs):
    return list(response_mask), trained_where_known(response_mask, logprobs)[1]


@broken(only="-nan")
def none_alone_is_missing(response_mask, logprobs):
    mask = [int(mask and one is not None) for mask, one in zip(response_mask, logprobs, strict=True)]
    return mask, [one or 0.0 for one in logprobs]


def post_processing(monkeypatch, changed):
    """Have verl's post-processing take what ``changed`` makes of an agent loop's output."""
    from verl.experimental.agent_loop import agent_loop

    worker = getattr(agent_loop, "AgentLoopWorkerBase", None) or agent_loop.AgentLoopWorker
    process = worker._agent_loop_postprocess

    async def patched(self, output, **about):
        changed(output)
        return await process(self, output, **about)

    monkeypatch.setattr(worker, "_agent_loop_postprocess", patched)


@mutant("absent")
def masked_where_there_is_none(monkeypatch):
    def mask(output):
        there = len(output.response_logprobs)
        output.response_mask = [*output.response_mask[:there], *[0] * (len(output.response_mask) - there)]

    post_processing(monkeypatch, mask)


@mutant("changed")
def lengths_compared(monkeypatch):
    def compare(output):
        if len(output.response_logprobs) != len(output.response_ids):
            raise ValueError("a response and its log-probabilities differ in length")

    post_processing(monkeypatch, compare)
