import sys

import pytest

from pytest_rlregress.failures.act import act
from pytest_rlregress.stack.lazy import torch

WANTED = "flash_attention_2"


def load(tiny_qwen, implementation):
    """The failing act: load the model with an attention implementation."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(tiny_qwen.directory, attn_implementation=implementation)


def load_by_verl(tiny_qwen, override):
    """The model as verl's FSDP engine loads it, by its configuration."""
    from verl.utils.model import get_hf_auto_model_class
    from verl.workers.config import HFModelConfig

    config = HFModelConfig(path=str(tiny_qwen.directory), load_tokenizer=False, override_config=override)
    return get_hf_auto_model_class(config.hf_config).from_pretrained(config.local_path, config=config.hf_config)


@pytest.mark.reproduces("flash-attention-missing")
def test_from_pretrained(tiny_qwen):
    load(tiny_qwen, WANTED)


@pytest.mark.reproduces("flash-attention-missing")
@pytest.mark.needs("verl-trainer")
def test_verl_default(tiny_qwen):
    load_by_verl(tiny_qwen, {})


@pytest.mark.reproduces("flash-attention-missing")
@pytest.mark.needs("verl-trainer", "trl")
def test_verl_value_head(tiny_qwen):
    from transformers import AutoConfig, AutoModelForTokenClassification
    from verl.utils.model import load_valuehead_model

    config = AutoConfig.from_pretrained(tiny_qwen.directory, attn_implementation="sdpa", num_labels=1)
    # verl swallows whatever goes wrong in this call, so it must go well but for the attention that verl asks for.
    AutoModelForTokenClassification.from_pretrained(tiny_qwen.directory, config=config)
    with act():
        load_valuehead_model(str(tiny_qwen.directory), torch.float32, config, False)


@pytest.mark.guards("flash-attention-missing")
def test_what_is_chosen_loads(subject, tiny_qwen):
    chosen = subject(WANTED)
    assert load(tiny_qwen, chosen).config._attn_implementation == chosen


@pytest.mark.guards("flash-attention-missing")
@pytest.mark.needs("verl-trainer")
def test_verl_with_what_is_chosen(subject, tiny_qwen):
    chosen = subject(WANTED)
    assert load_by_verl(tiny_qwen, {"attn_implementation": chosen}).config._attn_implementation == chosen


@pytest.mark.guards("flash-attention-missing", fidelity="stand-in")
@pytest.mark.isolated
@pytest.mark.parametrize(
    ("source", "chosen"),
    [
        ("", "sdpa"),
        ("raise ImportError('undefined symbol: _ZN3c105ErrorC2E')", "sdpa"),
        ("def flash_attn_func(): pass", "sdpa"),
        ("def flash_attn_func(): pass\ndef flash_attn_varlen_func(): pass", WANTED),
    ],
    ids=["stub", "abi", "half", "whole"],
)
def test_a_package_counts_by_its_symbols(subject, monkeypatch, tmp_path, source, chosen):
    """A package of these names stands for the real one, which needs a GPU."""
    from transformers.utils import import_utils

    (tmp_path / "flash_attn.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "flash_attn", raising=False)
    # What transformers looks at, with a GPU there, is the package's name and version only.
    monkeypatch.setattr(import_utils, "is_flash_attn_2_available", lambda: True)
    with act():
        assert subject(WANTED) == chosen


@pytest.mark.guards("flash-attention-missing")
def test_the_third_is_not_taken_for_the_second(subject, monkeypatch):
    from transformers.utils import import_utils

    with act():
        for there in (True, False):
            monkeypatch.setattr(import_utils, "is_flash_attn_3_available", lambda there=there: there, raising=False)
            assert subject("flash_attention_3") == ("flash_attention_3" if there else "sdpa")
    assert subject("flash_attention_99") == "sdpa", "no release of transformers knows it"


def check_agrees_with_eager(tiny_qwen, chosen, device, dtype, tolerance):
    """Whether logits and gradients of a padded batch are the same but for rounding, relative to the largest."""
    ids = torch.arange(100, 124, device=device).view(2, 12)
    real = torch.ones_like(ids)
    real[1, :5] = 0  # padded on the left, as in a rollout
    results = []
    for implementation in (chosen, "eager"):
        model = load(tiny_qwen, implementation).to(device, getattr(torch, dtype))
        logits = model(input_ids=ids, attention_mask=real).logits.float()[real.bool()]
        logits.logsumexp(-1).sum().backward()
        results.append((logits.detach(), model.model.layers[0].self_attn.q_proj.weight.grad.float()))
    for name, one, other in zip(("logits", "gradients"), *results, strict=True):
        worst = ((one - other).abs().max() / other.abs().max()).item()
        assert worst <= tolerance, f"{name} of {chosen} and eager differ by {worst:.1e}, tolerance {tolerance:.0e}"


@pytest.mark.guards("flash-attention-missing")
def test_agrees_with_eager(subject, tiny_qwen):
    check_agrees_with_eager(tiny_qwen, subject("sdpa"), "cpu", "float32", 1e-4)


@pytest.mark.guards("flash-attention-missing")
@pytest.mark.hw(capability=">=8.0")
@pytest.mark.isolated
def test_agrees_with_eager_on_a_gpu(subject, tiny_qwen):
    check_agrees_with_eager(tiny_qwen, subject(WANTED), "cuda", "bfloat16", 5e-2)
