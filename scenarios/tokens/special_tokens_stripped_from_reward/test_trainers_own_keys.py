"""What a user of verl or TRL can set: a reward manager of his own, and the tokenizer's files."""

import asyncio
import json
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from pytest_rlregress.failures.act import act
from pytest_rlregress.failures.silent import silent
from pytest_rlregress.scenarios.tokens import grpo
from pytest_rlregress.stack.lazy import np, torch

TAG = "<|python_tag|>"
CALL = f'{TAG}search(query="Lisbon")'
MANAGER = """
from verl.experimental.reward_loop.reward_manager.base import RewardManagerBase


class MyManager(RewardManagerBase):
    def __init__(self, config, tokenizer, compute_score, **others):
        super().__init__(config, tokenizer, compute_score)

    async def run_single(self, data):
        row = data[-1]
        response = row.batch["responses"]
        length = row.batch["attention_mask"][-len(response):].sum()
        text = self.tokenizer.decode(response[:length]).removesuffix(self.tokenizer.eos_token)
        score = self.compute_score(
            data_source=row.non_tensor_batch["data_source"], solution_str=text, ground_truth="", extra_info={}
        )
        return {"reward_score": score, "reward_extra_info": {}}
"""
REWARD = """
import re

def compute_score(data_source, solution_str, ground_truth, extra_info):
    return float(bool(re.search(r"^<.python_tag.>[a-z]+[(].*[)]$", solution_str)))
"""


def sampled(tokenizer):
    return [*tokenizer.encode(CALL, add_special_tokens=False), tokenizer.eos_token_id]


def prepare_verl_reward(tokenizer, overrides, folder):
    """Return a function that has verl's reward loop judge a well-formed call, by the manager that is configured."""
    import hydra
    from verl import DataProto
    from verl.trainer.ppo.reward import load_reward_manager

    (folder / "reward.py").write_text(REWARD)
    (folder / "manager.py").write_text(MANAGER)
    configs = Path(find_spec("verl").submodule_search_locations[0]) / "trainer" / "config"
    with hydra.initialize_config_dir(str(configs), version_base=None):
        config = hydra.compose(
            "ppo_trainer", [f"reward.custom_reward_function.path={folder / 'reward.py'}", *overrides]
        )
    response = sampled(tokenizer)
    tensors = {"prompts": [5, 6], "responses": response, "attention_mask": [1] * (2 + len(response))}
    columns = {"data_source": "tools", "reward_model": {"ground_truth": ""}, "extra_info": {}}
    batch = DataProto.from_dict(
        {key: torch.tensor([ids]) for key, ids in tensors.items()},
        {key: np.array([value], dtype=object) for key, value in columns.items()},
    )

    async def judge():
        return await load_reward_manager(config, tokenizer).run_single(batch)

    return lambda: asyncio.run(judge())["reward_score"]


@pytest.mark.reproduces("special-tokens-stripped-from-reward")
@pytest.mark.needs("verl-trainer")
def test_reward_loop_of_verl(tiny_qwen, tmp_path):
    judge = prepare_verl_reward(tiny_qwen.tokenizer("llama3"), [], tmp_path)
    with act():
        reward = judge()
    if reward != 1:
        assert reward == 0
        silent(f"verl's reward loop rewards a well-formed call with {reward}")


@pytest.mark.guards("special-tokens-stripped-from-reward")
@pytest.mark.needs("verl-trainer")
def test_reward_manager_by_importlib(tiny_qwen, tmp_path):
    overrides = [
        "reward.reward_manager.source=importlib",
        f"reward.reward_manager.module.path={tmp_path / 'manager.py'}",
        "reward.reward_manager.name=MyManager",
    ]
    judge = prepare_verl_reward(tiny_qwen.tokenizer("llama3"), overrides, tmp_path)
    with act():
        assert judge() == 1


def saved_with_ordinary_tag(tokenizer, folder, *, in_both):
    """Save the tokenizer as Llama 3.1 is published, and take the tag's mark away in one file or in both."""
    tokenizer.save_pretrained(folder)
    backend = json.loads((folder / "tokenizer.json").read_text())
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["added_tokens_decoder"] = {
        str(token["id"]): {key: value for key, value in token.items() if key != "id"}
        for token in backend["added_tokens"]
    }
    edited = [backend["added_tokens"]]
    if in_both:
        edited.append(config["added_tokens_decoder"].values())
    for tokens in edited:
        next(token for token in tokens if token["content"] == TAG)["special"] = False
    (folder / "tokenizer.json").write_text(json.dumps(backend))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def prepare_trl_rewards(tiny_qwen, folder):
    """Return a function that has GRPOTrainer judge two well-formed calls."""
    from transformers import AutoTokenizer

    rewards = []

    def reward(completions, **columns):
        texts = [completion[0]["content"] for completion in completions]
        rewards.extend(float(bool(re.search(r"^<.python_tag.>\w+[(].*[)]$", text))) for text in texts)
        return rewards

    tokenizer = AutoTokenizer.from_pretrained(folder)
    trainer = grpo.trainer(tiny_qwen.directory, tokenizer, reward, folder / "run", group=2)

    def judge():
        grpo.scored(trainer, [sampled(tokenizer)] * 2)
        return rewards

    return judge


@pytest.mark.reproduces("special-tokens-stripped-from-reward")
def test_tokenizer_json_alone(tiny_qwen, tmp_path):
    folder = saved_with_ordinary_tag(tiny_qwen.tokenizer("llama3"), tmp_path, in_both=False)
    judge = prepare_trl_rewards(tiny_qwen, folder)
    with act():
        rewards = judge()
    if rewards != [1, 1]:
        assert rewards == [0, 0]
        silent(f"with the tag ordinary in tokenizer.json alone TRL rewards well-formed calls with {rewards}")


@pytest.mark.guards("special-tokens-stripped-from-reward")
def test_both_files_of_the_tokenizer(tiny_qwen, tmp_path):
    folder = saved_with_ordinary_tag(tiny_qwen.tokenizer("llama3"), tmp_path, in_both=True)
    judge = prepare_trl_rewards(tiny_qwen, folder)
    with act():
        assert judge() == [1, 1]
