"""Write batch.pkl: a batch of the miniature step as verl has it between rollout and update."""

import random

import numpy as np
import torch
from verl import DataProto

from pytest_rlregress.agreement.completions import Completion
from pytest_rlregress.fixtures import step_rollout, tiny_qwen, training_step

settings = training_step.StepSettings(prompt_kind="random")
model = tiny_qwen.build("sharp").model()
vocabulary = range(model.config.vocab_size)
ends = vocabulary[:: step_rollout.END_EVERY]
draw = random.Random(0)


def sample(prompt):
    """One completion, token by token, with the log-probability of each token."""
    ids, logprobs = list(prompt), []
    while len(logprobs) < settings.response_length and not (logprobs and ids[-1] in ends):
        with torch.no_grad():
            predicted = model(torch.tensor([ids])).logits[0, -1].log_softmax(dim=-1)
        (token,) = draw.choices(vocabulary, predicted.exp().tolist())
        ids.append(token)
        logprobs.append(predicted[token].item())
    reason = "stop" if ids[-1] in ends else "length"
    return Completion(list(prompt), ids[len(prompt) :], logprobs, reason)


prompts = step_rollout.random_prompts(settings, len(vocabulary), step=0)
prompts = [prompt for prompt in prompts for _ in range(settings.samples_per_prompt)]
completions = [sample(prompt.ids) for prompt in prompts]
rewards = torch.tensor([prompt.reward(done.ids) for prompt, done in zip(prompts, completions, strict=True)])
advantages = training_step.group_advantages(rewards, settings.samples_per_prompt)
tensors = step_rollout.to_batch(completions, rewards, advantages, settings).to("cpu")
mask = tensors["response_mask"]
with torch.no_grad():  # what the trainer computes before its first update
    tensors["old_log_probs"] = training_step.completion_logprobs(model, tensors, settings) * mask
last = torch.arange(len(mask)), mask.sum(dim=1) - 1
tensors["token_level_scores"] = torch.zeros(mask.shape).index_put(last, tensors.pop("rewards"))
groups = np.arange(len(completions)) // settings.samples_per_prompt
batch = DataProto(tensors, {"uid": groups.astype(object)}, {"eos_token_id": list(ends)})
batch.save_to_disk("batch.pkl")
