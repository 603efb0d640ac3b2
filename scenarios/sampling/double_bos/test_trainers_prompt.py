"""The prompt that TRL's GRPOTrainer makes of text, and of messages."""

import pytest

from pytest_rlregress.failures.act import act
from pytest_rlregress.failures.silent import silent
from pytest_rlregress.scenarios.tokens import grpo

pytestmark = pytest.mark.needs("trl", "datasets")

MESSAGES = [{"role": "user", "content": "What is 48 divided by 6?"}]


@pytest.fixture
def trainer(sharp_qwen, published_tokenizer, tmp_path):
    def reward(completions, **columns):
        return [0.0] * len(completions)

    return grpo.trainer(sharp_qwen.directory, published_tokenizer, reward, tmp_path, group=2)


def rendered(tokenizer):
    return tokenizer.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=True)


def prompt_trained_on(trainer, prompt):
    """Return the ids of the prompt in the batch that the trainer takes the loss of."""
    tokenizer = trainer.processing_class
    completion = [*tokenizer.encode("It is 8.", add_special_tokens=False), tokenizer.eos_token_id]
    batch = grpo.scored(trainer, [completion] * 2, prompt)
    return batch["prompt_ids"][0][batch["prompt_mask"][0].bool()].tolist()


@pytest.mark.reproduces("double-bos")
def test_grpo_trainer_encodes_rendered_text(trainer, published_tokenizer):
    text = rendered(published_tokenizer)
    assert text.count(published_tokenizer.bos_token) == 1
    with act():
        ids = prompt_trained_on(trainer, text)
        found = ids.count(published_tokenizer.bos_token_id)
        if found != 1:
            assert found == 2, f"{found} beginning-of-text tokens"
            silent(f"GRPOTrainer trains on a prompt with {found} beginning-of-text tokens, rendered with 1")


@pytest.mark.guards("double-bos")
@pytest.mark.parametrize("form", ["messages", "text without the token"])
def test_grpo_trainer_has_one_token(trainer, published_tokenizer, form):
    prompt = MESSAGES
    if form != "messages":
        prompt = rendered(published_tokenizer).removeprefix(published_tokenizer.bos_token)
    with act():
        ids = prompt_trained_on(trainer, prompt)
    assert ids.count(published_tokenizer.bos_token_id) == 1
    assert ids == published_tokenizer.encode(rendered(published_tokenizer), add_special_tokens=False)
