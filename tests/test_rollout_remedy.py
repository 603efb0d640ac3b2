"""What remedies of the rollout refuse, beyond what the guards of the scenarios look at."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pytest_rlregress.remedies import clamp_max_tokens, contiguous_ids, reload_weights


def test_clamp_refuses_to_generate_nothing():
    with pytest.raises(ValueError, match="at least 1"):
        clamp_max_tokens(0, 10, 100)


@pytest.mark.needs("torch")
def test_contiguous_ids_refuses_floats():
    import torch

    with pytest.raises(ValueError, match="does not hold every id"):
        contiguous_ids(torch.arange(500, 548).view(4, 12)[:, 3:11].float())


@pytest.mark.needs("vllm")
def test_reload_refuses_a_gpt_oss_whose_experts_it_would_keep(monkeypatch):
    from vllm.model_executor.models import gpt_oss

    monkeypatch.delattr(gpt_oss, "GptOssRoutedExperts")
    config = SimpleNamespace(model_type="gpt_oss", get_text_config=lambda: SimpleNamespace(tie_word_embeddings=False))
    with pytest.raises(RuntimeError, match="would keep the old experts"):
        reload_weights(SimpleNamespace(model_config=SimpleNamespace(hf_config=config)), [])
