"""The small model in place of a large one: its architecture in kind, its tokenizer, its ends of a completion."""

from __future__ import annotations

import pytest

from pytest_rlregress.commands.rehearse import events, small_model
from pytest_rlregress.fixtures.tiny_model import build

pytestmark = [pytest.mark.isolated(group="rehearse small models"), pytest.mark.needs("transformers")]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(events.FOLDER_VARIABLE, str(tmp_path))
    monkeypatch.setattr(small_model, "LARGE", 0)
    small_model.find.cache_clear()
    small_model._replaced.clear()
    return tmp_path


@pytest.mark.parametrize("kind", ["qwen2", "qwen3", "llama", "gemma2", "qwen3-moe"])
def test_the_architecture_stays(folder, kind):
    from transformers import AutoConfig, AutoTokenizer, GenerationConfig

    large = build(kind, num_hidden_layers=4, intermediate_size=512).directory
    small = small_model.find(str(large))
    assert small.startswith(str(folder))
    assert small_model.find(small) == small
    before, after = (AutoConfig.from_pretrained(one) for one in (large, small))
    assert before.architectures == after.architectures
    assert (before.vocab_size, before.model_type) == (after.vocab_size, after.model_type)
    assert after.num_hidden_layers == small_model.LAYERS
    chat = [{"role": "user", "content": "1 + 1"}]
    one, other = (AutoTokenizer.from_pretrained(name) for name in (large, small))
    assert one.apply_chat_template(chat) == other.apply_chat_template(chat)
    assert len(GenerationConfig.from_pretrained(small).eos_token_id) > 10
    assert "model" in [event.get("key") for event in events.read(folder)]


def test_a_small_model_is_kept(folder, monkeypatch):
    monkeypatch.setattr(small_model, "LARGE", 10**9)
    directory = str(build("qwen2").directory)
    assert small_model.find(directory) == directory


def test_a_model_that_cannot_be_read_is_told(folder, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    found = small_model.find("nobody/no-such-model")
    assert "tiny-qwen" in found
    assert any("nobody/no-such-model" in str(event.get("what")) for event in events.read(folder))
