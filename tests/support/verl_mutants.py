"""Alterations of verl, one a step in one run; each process of the run imports this with verl (``verl_recorder``)."""

from __future__ import annotations

import functools
import inspect
import json
import os
from pathlib import Path

import torch

from pytest_rlregress.fixtures.verl_recorder import WRAPPED

#: What is altered, by the step: JSON of an object. The steps of the run that are not in it are whole.
VARIABLE = "RLREGRESS_VERL_ALTERED"
STEPS = {int(step): name for step, name in json.loads(os.environ.get(VARIABLE, "{}")).items()}
#: The property that each alteration of a step must turn red in its step: ``alters`` adds them.
MEANT = {}


def step_now():
    """Return the step that is under way, counted from 1: verl logs each as it ends."""
    log = Path(os.environ["VERL_FILE_LOGGER_PATH"])
    return 1 + (log.read_bytes().count(b"\n") if log.exists() else 0)


def alters(target, meant):
    """Put the decorated function in the place of ``target``, "MODULE:NAME", in the steps that are altered by it.

    It gets verl's own first. ``meant`` has the property that each alteration turns red, "" for those of a resumed run.
    """
    MEANT.update((name, red) for name, red in meant.items() if red)

    def register(altered):
        def wrap(original):
            @functools.wraps(original)
            def call(*args, **kwargs):
                name = STEPS.get(step_now())
                return altered(original, name, *args, **kwargs) if name in meant else original(*args, **kwargs)

            @functools.wraps(original)
            async def call_async(*args, **kwargs):
                return await call(*args, **kwargs)

            return call_async if inspect.iscoroutinefunction(original) else call

        module, _, name = target.partition(":")
        WRAPPED.setdefault(module, []).append((name, wrap))
        return altered

    return register


@alters(
    "verl.workers.utils.losses:ppo_loss",
    {"the other sign": "sign", "32 times the loss": "loss", "divided by the micro batch's tokens": "loss"},
)
def alter_loss(original, name, config, model_output, data, dp_group=None):
    from verl.utils import tensordict_utils as tu

    if name == "divided by the micro batch's tokens":
        tu.assign_non_tensor(data, batch_num_tokens=int(data["response_mask"].values().sum()))
    loss, metrics = original(config, model_output, data, dp_group)
    return loss * {"the other sign": -1, "32 times the loss": 32}.get(name, 1), metrics


@alters(
    "verl.workers.utils.losses:get_policy_loss_fn",
    {"padding trained on": "loss", "mask shifted": "gradient norm", "ratio left out": "loss"},
)
def alter_policy_loss(original, name, loss_mode):
    def compute(*, response_mask, advantages, old_log_prob, log_prob, **others):
        if name == "padding trained on":
            response_mask = torch.ones_like(response_mask)
            advantages = advantages[:, :1].expand_as(advantages)
        elif name == "mask shifted":
            response_mask = torch.cat([torch.zeros_like(response_mask[:, :1]), response_mask[:, :-1]], dim=1)
        else:
            old_log_prob = log_prob.detach()
        return original(loss_mode)(
            response_mask=response_mask, advantages=advantages, old_log_prob=old_log_prob, log_prob=log_prob, **others
        )

    return compute


@alters("verl.workers.utils.losses:no_padding_2_padding", {"log-probabilities shifted": "gradient norm"})
def shift_log_probabilities(original, name, tensor, data):
    return original(tensor, data).roll(1, dims=1)


@alters(
    "verl.trainer.ppo.v1.utils:compute_advantage_for_multi_trajectories",
    {
        "advantages permuted in the group": "advantages",
        "advantages of another group": "advantages",
        "no centring": "advantages",
        "no scaling": "advantages",
        "half a group": "advantages",
    },
)
def alter_advantages(original, name, data, **kwargs):
    if name == "no scaling":
        return original(data, **{**kwargs, "norm_adv_by_std_in_grpo": False})
    data = original(data, **kwargs)
    rows = {}
    for row, uid in enumerate(data.non_tensor_batch["uid"]):
        rows.setdefault(uid, []).append(row)
    groups = [torch.tensor(group) for group in rows.values()]
    rewards = data.batch["token_level_rewards"].sum(dim=1)
    advantages = data.batch["advantages"][:, 0].clone()
    altered = advantages.clone()
    for group, other in zip(groups, groups[1:] + groups[:1], strict=True):
        if name == "advantages permuted in the group":
            altered[group] = advantages[group.roll(1)]
        elif name == "advantages of another group":
            altered[group] = advantages[other]
        elif name == "no centring":
            altered[group] = rewards[group] / (rewards[group].std() + 1e-6)
        else:
            half = rewards[group[:2]]
            altered[group] = (rewards[group] - half.mean()) / (half.std() + 1e-6)
    data.batch["advantages"] = altered[:, None] * data.batch["response_mask"]
    return data


@alters(
    "verl.experimental.agent_loop.agent_loop:AgentLoopWorker._compute_score", {"reward of another answer": "rewards"}
)
def score_another_answer(original, name, self, outputs, kwargs):
    asked = kwargs["reward_model"]
    return original(
        self, outputs, {**kwargs, "reward_model": {**asked, "ground_truth": str(int(asked["ground_truth"]) + 7)}}
    )


@alters(
    "verl.experimental.agent_loop.single_turn_agent_loop:SingleTurnAgentLoop.run",
    {"another prompt in the batch": "prompts", "the last sampled token lost": "mask"},
)
async def alter_trajectory(original, name, *args, **kwargs):
    output = await original(*args, **kwargs)
    if name == "another prompt in the batch":
        output.prompt_ids = [output.prompt_ids[1], output.prompt_ids[0], *output.prompt_ids[2:]]
    elif len(output.response_ids) > 1:
        for field in ("response_ids", "response_mask", "response_logprobs"):
            setattr(output, field, getattr(output, field)[:-1])
    return output


@alters(
    "verl.workers.rollout.vllm_rollout.vllm_async_server:vLLMHttpServer.generate",
    {"temperature left out by the engine": "agreement"},
)
def generate_at_one(original, name, self, prompt_ids, sampling_params, *args, **kwargs):
    return original(self, prompt_ids, {**sampling_params, "temperature": 1.0}, *args, **kwargs)


@alters(
    "verl.workers.engine.fsdp.transformer_impl:FSDPEngineWithLMHead.prepare_model_inputs",
    {"temperature left out by the trainer": "agreement", "another prompt in the loss": "gradient norm"},
)
def alter_inputs(original, name, self, micro_batch, *args, **kwargs):
    from verl.utils import tensordict_utils as tu

    if name == "temperature left out by the trainer":
        tu.assign_non_tensor(micro_batch, temperature=1.0)
    else:
        ids = micro_batch["input_ids"]
        values = ids.values().clone()
        values[ids.offsets()[:-1] + 1] += 1
        micro_batch["input_ids"] = torch.nested.nested_tensor_from_jagged(values, ids.offsets())
    return original(self, micro_batch, *args, **kwargs)


skipped = []


@alters(
    "verl.workers.engine.fsdp.transformer_impl:FSDPEngine.optimizer_step",
    {"rate 0": "update", "every second step skipped": "update", "a layer not trained": "update"},
)
def alter_optimizer(original, name, self):
    groups = self.optimizer.param_groups
    if name == "a layer not trained":
        for parameter, weight in self.module.named_parameters():
            if "layers.0." in parameter:
                weight.grad = None
        return original(self)
    skipped.append(name)
    rates = [group["lr"] for group in groups]
    decays = [group["weight_decay"] for group in groups]
    if name == "rate 0" or skipped.count(name) % 2 == 0:
        for group in groups:
            group["lr"] = 0.0
    norm = original(self)
    for group, rate, decay in zip(groups, rates, decays, strict=True):
        group["lr"], group["weight_decay"] = rate, decay
    return norm


@alters(
    "verl.utils.checkpoint.fsdp_checkpoint_manager:FSDPCheckpointManager.load_checkpoint",
    {"weights not loaded": "", "moments not loaded": ""},
)
def load_in_part(original, name, self, *args, **kwargs):
    setattr(type(self), {"weights": "should_load_model", "moments": "should_load_optimizer"}[name.split()[0]], False)
    return original(self, *args, **kwargs)


@alters(
    "verl.workers.rollout.vllm_rollout.utils:vLLMColocateWorkerExtension._update_weights",
    {"no sync": "sync", "half a sync": "sync", "the head not synced": "sync"},
)
def alter_sync(original, name, self, weights, *args, **kwargs):
    if name == "no sync":
        weights = []
    elif name == "half a sync":
        weights = weights[: len(weights) // 2]
    else:
        weights = [(parameter, weight) for parameter, weight in weights if parameter != "lm_head.weight"]
    return original(self, weights, *args, **kwargs)
