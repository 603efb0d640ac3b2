import re

import pytest

from pytest_rlregress.failures.act import act
from pytest_rlregress.failures.silent import silent
from pytest_rlregress.scenarios.batch.masks import LAYOUTS
from pytest_rlregress.stack.lazy import torch

QUESTION = {"role": "user", "content": "What is 8 + 10?"}
ANSWER = {"role": "assistant", "content": "It is 18."}
LATER = [{"role": "user", "content": "And 7?"}, {"role": "assistant", "content": "It is 25."}]
CONVERSATION = {"messages": [QUESTION, ANSWER, *LATER]}
WITH_TRL = pytest.mark.needs("trl-trainer", "datasets")


def without_markers(template):
    """Return a chat template as most models have it."""
    return re.sub(r"\{%-? (end)?generation -?%\}", "", template)


@pytest.fixture
def train(tiny_qwen, tmp_path):
    """Return a function that gives the text that SFTTrainer takes the loss of, of the one example.

    It is called in two parts: what it returns makes the trainer, with all settings checked.
    """
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    def configure(tokenizer, example, **settings):
        given = {"assistant_only_loss": True, "use_cpu": True, "bf16": False, "report_to": "none", **settings}
        config = SFTConfig(str(tmp_path / "run"), per_device_train_batch_size=1, **given)

        def read_labels():
            trainer = SFTTrainer(
                str(tiny_qwen.directory),
                config,
                train_dataset=Dataset.from_list([example]),
                processing_class=tokenizer,
            )
            [batch] = trainer.get_train_dataloader()
            labels = batch["labels"][0]
            return tokenizer.decode(labels[labels != -100])

        return read_labels

    return configure


@pytest.mark.reproduces("assistant-mask-empty")
@WITH_TRL
def test_template_without_markers(tiny_qwen, train):
    tokenizer = tiny_qwen.tokenizer()
    tokenizer.chat_template = without_markers(tokenizer.chat_template)
    read_labels = train(tokenizer, CONVERSATION)
    with act():
        read_labels()


@pytest.mark.reproduces("assistant-mask-empty")
@WITH_TRL
def test_example_without_an_assistant(tiny_qwen, train):
    read_labels = train(tiny_qwen.tokenizer(), {"messages": [QUESTION]})
    with act():
        read_labels()


def render(tokenizer, messages):
    """Return ids, and labels as a training loop of one's own takes them from transformers' mask."""
    rendered = tokenizer.apply_chat_template(messages, return_dict=True, return_assistant_tokens_mask=True)
    ids = torch.tensor([rendered["input_ids"]])
    mask = torch.tensor([rendered["assistant_masks"]])
    return ids, ids.masked_fill(mask == 0, -100)


@pytest.mark.reproduces("assistant-mask-empty")
def test_rendered_by_transformers(tiny_qwen):
    tokenizer = tiny_qwen.tokenizer()
    model = tiny_qwen.model()
    tokenizer.chat_template = without_markers(tokenizer.chat_template)
    with act():
        ids, labels = render(tokenizer, CONVERSATION["messages"])
        loss = model(input_ids=ids, labels=labels).loss.item()
    trained = (labels != -100).sum().item()
    if not trained:
        silent(f"{trained} of {ids.numel()} tokens are the assistant's, the loss is {loss}")


FAMILIES = pytest.mark.parametrize("family", LAYOUTS)


def turns(family):
    """Return the assistant's turns, each with its end."""
    return "".join(message["content"] + LAYOUTS[family]["end"] for message in (ANSWER, LATER[1]))


@pytest.mark.guards("assistant-mask-empty")
@FAMILIES
def test_markers_for_transformers(tiny_qwen, family):
    tokenizer = tiny_qwen.tokenizer(family)
    model = tiny_qwen.model()
    with act():
        ids, labels = render(tokenizer, CONVERSATION["messages"])
    assert tokenizer.decode(labels[labels != -100]) == turns(family)
    assert model(input_ids=ids, labels=labels).loss.isfinite()


@pytest.mark.guards("assistant-mask-empty")
@WITH_TRL
@FAMILIES
def test_chat_template_path(tiny_qwen, train, tmp_path, family):
    tokenizer = tiny_qwen.tokenizer(family)
    marked = tmp_path / "marked.jinja"
    marked.write_text(tokenizer.chat_template, encoding="utf-8")
    tokenizer.chat_template = without_markers(tokenizer.chat_template)
    read_labels = train(tokenizer, CONVERSATION, chat_template_path=str(marked))
    with act():
        assert read_labels() == turns(family)


@pytest.mark.guards("assistant-mask-empty")
@WITH_TRL
@pytest.mark.needs("trl.trainer.sft_trainer:get_training_chat_template")
@pytest.mark.parametrize("template", ["qwen2_5_chat_template", "qwen3_chat_template"])
def test_family_that_trl_knows(tiny_qwen, train, template):
    """TRL's own template of a family may train on the line breaks around a turn too."""
    from trl import chat_template_utils

    tokenizer = tiny_qwen.tokenizer()
    tokenizer.chat_template = getattr(chat_template_utils, template)
    read_labels = train(tokenizer, {"messages": [QUESTION, ANSWER]})
    with act():
        trained = read_labels()
    assert "<|im_start|>" not in trained, "trains on the prompt"
    assert trained.rstrip().endswith(turns("qwen2.5").removesuffix("It is 25.<|im_end|>"))


@pytest.mark.guards("assistant-mask-empty")
@WITH_TRL
def test_completion_needs_no_markers(tiny_qwen, train):
    tokenizer = tiny_qwen.tokenizer()
    tokenizer.chat_template = without_markers(tokenizer.chat_template)
    example = {"prompt": [QUESTION], "completion": [ANSWER]}
    read_labels = train(tokenizer, example, assistant_only_loss=False, completion_only_loss=True)
    with act():
        assert read_labels() == "It is 18.<|im_end|>\n"
