import json

import pytest

from pytest_rlregress.failures.act import act
from pytest_rlregress.fixtures.tiny_model import IMAGE, VISION_END, VISION_START
from pytest_rlregress.stack.lazy import torch


@pytest.fixture(scope="module")
def tiny_qwen3_vl(tiny_model):
    """The folder of a Qwen3-VL of 0.6 M parameters, image tower included."""
    return tiny_model("qwen3-vl").directory


def config_of(folder):
    return json.loads((folder / "config.json").read_text())


@pytest.mark.reproduces("vision-language-auto-class")
def test_loaded_as_a_causal_lm(tiny_qwen3_vl):
    from transformers import AutoModelForCausalLM

    with act():
        AutoModelForCausalLM.from_pretrained(tiny_qwen3_vl)


@pytest.mark.reproduces("vision-language-auto-class")
def test_built_as_a_causal_lm(tiny_qwen3_vl):
    from transformers import AutoConfig, AutoModelForCausalLM

    with act():
        AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(tiny_qwen3_vl))


@pytest.mark.guards("vision-language-auto-class")
def test_loads_whole_and_sees_the_image(subject, tiny_qwen3_vl):
    with act():
        chosen = subject(config_of(tiny_qwen3_vl))
    model, loading = chosen.from_pretrained(tiny_qwen3_vl, output_loading_info=True)
    assert [type(model).__name__] == config_of(tiny_qwen3_vl)["architectures"]
    assert not set(loading["missing_keys"]) | set(loading["unexpected_keys"]), f"not all weights fit: {loading}"

    image = [VISION_START, *[IMAGE] * 4, VISION_END]  # 4 x 4 patches, of which 2 x 2 make a token
    ids = torch.tensor([[1, *image, 5, 6]])
    seen = [
        model(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            mm_token_type_ids=(ids == IMAGE).int(),
            pixel_values=torch.full((16, 3 * 2 * 4 * 4), brightness),
            image_grid_thw=torch.tensor([[1, 4, 4]]),
        ).logits
        for brightness in (0.1, 0.9)
    ]
    assert seen[0].shape == (1, ids.shape[1], config_of(tiny_qwen3_vl)["text_config"]["vocab_size"])
    assert seen[0].isfinite().all()
    assert torch.equal(seen[0][:, :2], seen[1][:, :2]), "what comes before the image depends on it"
    assert not torch.allclose(seen[0][:, -1], seen[1][:, -1]), "the model does not see the image"


@pytest.mark.guards("vision-language-auto-class")
@pytest.mark.parametrize(
    "architecture", ["Qwen2ForCausalLM", "Qwen2ForTokenClassification", "Qwen2ForSequenceClassification"]
)
def test_a_text_model_loads_with_its_head(subject, tiny_qwen, architecture, monkeypatch):
    from transformers import AutoConfig
    from transformers.models.auto import modeling_auto

    monkeypatch.delattr(modeling_auto, "MODEL_FOR_VISION_2_SEQ_MAPPING_NAMES", raising=False)  # transformers 5 has none
    with act():
        chosen = subject({**config_of(tiny_qwen.directory), "architectures": [architecture]})
    built = chosen.from_config(AutoConfig.from_pretrained(tiny_qwen.directory))
    assert type(built).__name__ == architecture


@pytest.mark.guards("vision-language-auto-class")
@pytest.mark.parametrize("architectures", [["Qwen3VLForRobotControl"], [], None], ids=["unknown", "none", "null"])
def test_rejects_an_architecture_that_no_class_fits(subject, tiny_qwen3_vl, architectures):
    with act(), pytest.raises(ValueError, match="qwen3_vl"):
        subject({**config_of(tiny_qwen3_vl), "architectures": architectures})
