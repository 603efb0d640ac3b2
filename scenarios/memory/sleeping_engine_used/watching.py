"""What vLLM's engine does while parts of it sleep."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from pytest_rlregress.remedies.rollout import reload_by_worker

STEPS = 3  # of the scheduler: what it may run, it runs in the first


def executor_of(llm: Any) -> Any:
    """Return the part of an engine that runs forward passes and knows what sleeps."""
    return llm.llm_engine.engine_core.engine_core.model_executor


@contextmanager
def watched(llm: Any) -> Iterator[list[set[str]]]:
    """Yield a list that gets, for each forward pass, the parts that sleep meanwhile."""
    executor = executor_of(llm)
    run = executor.execute_model
    forwards: list[set[str]] = []

    def note_and_run(scheduled: Any, *arguments: Any, **options: Any) -> Any:
        if scheduled.total_num_scheduled_tokens:  # else it only hears which requests are gone
            forwards.append(set(executor.sleeping_tags))
        return run(scheduled, *arguments, **options)

    with mock.patch.object(executor, "execute_model", note_and_run):
        yield forwards


def send(llm: Any, name: str = "sent", tokens: int = 16) -> None:
    """Send a request, without waiting for it."""
    from vllm import SamplingParams

    params = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True, detokenize=False)
    llm.llm_engine.add_request(name, {"prompt_token_ids": [100] * 8}, params)


def take_steps(llm: Any) -> None:
    """Let the engine's loop go round a few times."""
    for _ in range(STEPS):
        llm.llm_engine.step()


def send_while_running(llm: Any) -> None:
    """Put the engine to sleep while a request runs."""
    send(llm)
    take_steps(llm)
    llm.sleep(level=1)
    take_steps(llm)


def send_while_asleep(llm: Any) -> None:
    """Send a request to an engine that sleeps."""
    llm.sleep(level=1)
    send(llm)
    take_steps(llm)


def send_with_weights_awake(llm: Any) -> None:
    """Send a request to an engine whose weights are awake, and whose KV cache isn't."""
    llm.sleep(level=1)
    llm.wake_up(tags=["weights"])
    send(llm)
    take_steps(llm)


#: The forms of the failure in which a request comes too early or stays too long.
REQUESTS = {
    "running": send_while_running,
    "asleep": send_while_asleep,
    "weights-awake": send_with_weights_awake,
}


def sync_in_order(llm: Any, weights: Any) -> None:
    """Give an engine that sleeps new weights in the order of the remedy."""
    llm.wake_up(tags=["weights"])
    reload_by_worker(llm, weights)
    llm.wake_up(tags=["kv_cache"])
