"""Masks as TRL and verl make them: by the length of a prompt or header that the chat template writes otherwise."""

import re

import pytest

from pytest_rlregress.failures.act import act
from pytest_rlregress.failures.silent import silent
from pytest_rlregress.scenarios.batch.masks import LAYOUTS, UNLIMITED, conversation, search
from pytest_rlregress.scenarios.tokens import grpo
from pytest_rlregress.scenarios.tokens.agent_loop import prepare_agent_loop
from pytest_rlregress.stack import InterfaceMissing
from pytest_rlregress.stack.lazy import torch

# R1-distill's generation prompt opens a <think> that its rendering of an assistant's turn doesn't have.
TEMPLATE = "deepseek-r1-distill"
CALL = '<tool_call>\n{"name": "search", "arguments": {"query": "Lisbon"}}\n</tool_call>'
PROMPT, _ = conversation("", "How big is Lisbon?")
ANSWER = "Half a million."


def turn(tokenizer, text):
    """Ids of a turn of the assistant with the token that ends it."""
    return [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]


def check_trained(trainer, ids, mask, written):
    """The tokens that a trainer's mask is one for are those that the assistant wrote."""
    used = [token for token, use in zip(ids, mask, strict=True) if use]
    if used != written:
        silent(f"{trainer} trains on {len(used)} tokens where the assistant wrote {len(written)}")


@pytest.mark.needs("verl", "datasets")
@pytest.mark.reproduces("mask-length-drift")
def test_verl_data_set(tiny_qwen, tmp_path):
    from datasets import Dataset
    from omegaconf import OmegaConf
    from verl.utils.dataset.multiturn_sft_dataset import MultiTurnSFTDataset

    tokenizer = tiny_qwen.tokenizer(TEMPLATE)
    prompt, completion = conversation("Be brief.", "What is 8 + 10?", "It is 18.", "Sure?", "Yes, it is.")
    messages = prompt + completion
    Dataset.from_list([{"messages": messages[:3]}, {"messages": messages}]).to_parquet(tmp_path / "rows.parquet")
    config = OmegaConf.create({"max_length": 256, "truncation": "error"})
    rows = MultiTurnSFTDataset(str(tmp_path / "rows.parquet"), tokenizer, config)
    assert len(rows[0]["input_ids"]), "a single turn can be read"
    with act():
        row = rows[1]
    written = [token for text in ("It is 18.", "Yes, it is.") for token in turn(tokenizer, text)]
    check_trained("verl's data set", row["input_ids"].tolist(), row["loss_mask"].tolist(), written)


@pytest.mark.needs("verl-trainer")
@pytest.mark.reproduces("mask-length-drift", expected="absent")
def test_verl_agent_loop(tiny_qwen):
    """A call, verl's word that there is no such tool, and an answer, whole and cut."""
    tokenizer = tiny_qwen.tokenizer(TEMPLATE)
    written = [*turn(tokenizer, CALL), *turn(tokenizer, ANSWER)]
    converse = prepare_agent_loop(tokenizer, "qwen2", PROMPT, [CALL, ANSWER])
    with act():
        whole = converse()
    check_trained("verl's agent loop", whole.response_ids, whole.response_mask, written)
    cut = prepare_agent_loop(tokenizer, "qwen2", PROMPT, [CALL, ANSWER], len(whole.response_ids) - 3)()
    assert cut.response_ids == whole.response_ids[:-3]
    check_trained("verl's agent loop", cut.response_ids, cut.response_mask, written[:-3])


@pytest.mark.needs("trl-trainer", "datasets")
@pytest.mark.reproduces("mask-length-drift", expected="absent")
def test_trl_prompt_and_completion(tiny_qwen, tmp_path):
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    tokenizer = tiny_qwen.tokenizer(TEMPLATE)
    prompt, completion = conversation("Be brief.", "What is 8 + 10?", "It is 18.")
    trainer = SFTTrainer(
        str(tiny_qwen.directory),
        SFTConfig(str(tmp_path), use_cpu=True, bf16=False, report_to="none", per_device_train_batch_size=1),
        train_dataset=Dataset.from_list([{"prompt": prompt, "completion": completion}]),
        processing_class=tokenizer,
    )
    with act():
        [batch] = trainer.get_train_dataloader()
    mask = (batch["labels"][0] != -100).tolist()
    check_trained("TRL's SFTTrainer", batch["input_ids"][0].tolist(), mask, turn(tokenizer, "It is 18."))


def reward(completions, **columns):
    return [float(number) for number, _ in enumerate(completions)]


@pytest.mark.needs("trl-trainer", "datasets", "trl.trainer.grpo_trainer:GRPOTrainer(tools)")
@pytest.mark.reproduces("mask-length-drift", expected="absent")
def test_trl_tool_call(tiny_qwen, tmp_path):
    """A call that the policy spelt letter by letter is fewer tokens if it is rendered again."""
    pytest.importorskip("jmespath")
    from trl.chat_template_utils import qwen3_chat_template  # by which TRL knows the family, and parses its calls

    tokenizer = tiny_qwen.tokenizer("qwen2.5")
    tokenizer.chat_template = qwen3_chat_template
    letters = re.findall("</?tool_call>|.", CALL, re.DOTALL)
    call = [token for letter in letters for token in tokenizer.encode(letter, add_special_tokens=False)]
    sampled = [[*call, tokenizer.eos_token_id], turn(tokenizer, ANSWER)]
    turns = iter(sampled)

    def generate(input_ids, **others):
        return torch.cat([input_ids, torch.tensor([next(turns)] * len(input_ids))], dim=1)

    trainer = grpo.trainer(tiny_qwen.directory, tokenizer, reward, tmp_path, 2, 256, tools=[search])
    trainer.model.generate = generate
    with act():
        try:
            trained = grpo.multiplied(trainer, PROMPT)
        except AttributeError as error:  # transformers 5.23 asks for another attribute than the one TRL sets
            if "response_template" not in str(error):
                raise
            raise InterfaceMissing(
                f"needs TRL's tool calls, which transformers does not parse here: {error}"
            ) from error
    for ids, mask in trained:
        check_trained("TRL's GRPOTrainer", ids, mask, [*sampled[0], *sampled[1]])


@pytest.mark.needs("trl-trainer", "datasets", "trl.trainer.grpo_trainer:GRPOTrainer(rollout_func)")
@pytest.mark.guards("mask-length-drift")
@pytest.mark.parametrize("template", LAYOUTS)
def test_rollout_in_trl(tiny_qwen, subject, template, tmp_path):
    """The mask of a rollout of one's own, as TRL's loss multiplies by it."""
    tokenizer = tiny_qwen.tokenizer(template)
    talks = [
        conversation("", "How big is Lisbon?", CALL, ["545796", "half a million"], "Half a million."),
        conversation("", "How big is Lisbon?", "I do not know.", "Guess!", "A million?"),
    ]
    with act():
        masked = [subject(tokenizer, *talk, UNLIMITED, UNLIMITED) for talk in talks]

    def rollout(prompts, trainer):
        return {
            "prompt_ids": [one.prompt_ids for one in masked],
            "completion_ids": [one.completion_ids for one in masked],
            "logprobs": None,
            "env_mask": [one.completion_mask for one in masked],
        }

    trainer = grpo.trainer(tiny_qwen.directory, tokenizer, reward, tmp_path, 2, 256, rollout_func=rollout)
    for (ids, mask), (_, completion) in zip(grpo.multiplied(trainer, PROMPT), talks, strict=True):
        written = [turn(tokenizer, message["content"]) for message in completion if message["role"] == "assistant"]
        check_trained("TRL's GRPOTrainer", ids, mask, [token for one in written for token in one])
