import asyncio
import math
from types import SimpleNamespace

import pytest

from pytest_rlregress.failures.act import act
from pytest_rlregress.failures.silent import silent
from pytest_rlregress.stack import InterfaceMissing, versions

# Its agent loops import what its trainer does.
TRAINER = pytest.mark.needs(
    "verl-trainer", "verl.experimental.agent_loop.agent_loop:AgentLoopOutput(response_logprobs, extra_fields)"
)
IDS = [314, 271, 828, 182, 845]
LOGPROBS = [-0.5, -1.25, -2.0, -0.125, -3.5]
END = 2  # <|im_end|>, which a loop appends where a stop string ended the sampling: no engine drew it


def rollout_batch(tokenizer, ids, mask, logprobs):
    """The batch that verl makes of what an agent loop returned."""
    from verl.experimental.agent_loop import agent_loop

    rollout = SimpleNamespace(prompt_length=4, response_length=8)
    worker_class = getattr(agent_loop, "AgentLoopWorkerBase", None) or agent_loop.AgentLoopWorker
    worker = object.__new__(worker_class)
    about = {"reward_model": SimpleNamespace(enable=False, enable_resource_pool=False)}
    worker.__dict__.update(
        tokenizer=tokenizer,
        processor=None,
        rollout_config=rollout,
        config=SimpleNamespace(actor_rollout_ref=SimpleNamespace(rollout=rollout), **about),
        reward_loop_worker_handles=None,
        reward_router_address=None,
        use_reward_loop=False,
        distillation_enabled=False,
        mm_processor_kwargs={},
    )
    output = agent_loop.AgentLoopOutput(
        prompt_ids=[5, 6],
        response_ids=ids,
        response_mask=mask,
        response_logprobs=logprobs,
        reward_score=1.0,
        num_turns=2,
        metrics=agent_loop.AgentLoopMetrics(),
        extra_fields={},
    )
    try:
        padded = asyncio.run(pad(worker, output))
        return worker._postprocess([padded]).batch
    except AttributeError as error:
        if error.obj is not worker:
            raise
        version = versions()["verl"]
        raise InterfaceMissing(f"sets no {error.name}, which the AgentLoopWorker of verl {version} reads") from None


class Given:
    """An agent loop that returns ``output``."""

    output = None

    def __init__(self, **parts):
        pass

    async def run(self, sampling, **row):
        return self.output


async def pad(worker, output):
    """Have a worker of verl's pad what an agent loop returned."""
    from verl.experimental.agent_loop.agent_loop import _agent_loop_registry

    if hasattr(worker, "_agent_loop_postprocess"):
        return await worker._agent_loop_postprocess(output, validate=False, raw_prompt=[])

    # verl 0.6 runs the loop and pads in one function.
    Given.output = output
    _agent_loop_registry["given"] = {"_target_": f"{__name__}.{Given.__name__}"}
    worker.server_manager = None
    about = {"step": 0, "sample_index": 0, "rollout_n": 0, "validate": False}
    return await worker._run_agent_loop({}, about, agent_name="given")


def trained(batch):
    """Id and log-probability of each token that is trained on."""
    keep = batch["response_mask"][0].bool()
    return list(zip(batch["responses"][0][keep].tolist(), batch["rollout_log_probs"][0][keep].tolist(), strict=True))


@TRAINER
@pytest.mark.reproduces("missing-logprob-zero-filled")
@pytest.mark.parametrize("given", [LOGPROBS, []], ids=["appended-end", "none-at-all"])
def test_shorter_than_the_response(tiny_qwen, given):
    ids = [*IDS, END]
    tokenizer = tiny_qwen.tokenizer()
    with act():
        batch = rollout_batch(tokenizer, ids, [1] * len(ids), given)
    certain = [token for token, logprob in trained(batch)[len(given) :] if logprob == 0]
    if certain:
        silent(f"{len(certain)} of {len(ids)} trained tokens have a log-probability of 0 and had none")


@TRAINER
@pytest.mark.guards("missing-logprob-zero-filled")
@pytest.mark.parametrize("missing", [None, math.nan, -math.inf], ids=str)
def test_only_what_was_sampled_is_trained(subject, tiny_qwen, missing):
    """Of a response with a tool's answer in its middle, and of each token the engine's own log-probability."""
    ids, given = [*IDS, 7, 9, END], [*LOGPROBS, None, None, missing]
    mask, logprobs = subject([1] * 5 + [0, 0, 1], given)
    assert trained(rollout_batch(tiny_qwen.tokenizer(), ids, mask, logprobs)) == list(zip(IDS, LOGPROBS, strict=True))
