import json

import pytest

from pytest_rlregress.failures.act import act
from pytest_rlregress.failures.silent import silent

SIZES = {
    "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 2, "vocab_size": 64, "max_position_embeddings": 131072,
}  # fmt: skip
# As the models are published, by releases before transformers 5.
PUBLISHED = {
    "qwen2": {"model_type": "qwen2", "rope_theta": 1000000.0},
    "qwen2-yarn": {
        "model_type": "qwen2",
        "rope_theta": 1000000.0,
        "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
    },
    "llama3": {
        "model_type": "llama",
        "rope_theta": 500000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    },
    "phi": {"model_type": "phi", "rope_theta": 20000.0, "partial_rotary_factor": 0.5},
}
EACH = pytest.mark.parametrize("name", PUBLISHED)


def written(content, folder):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


def loaded(content, folder):
    """The config that the installed transformers reads from a config.json."""
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(written(content, folder))


def frequencies(config):
    """Of the rotary embedding of a model with that config."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_config(config).model.rotary_emb.inv_freq


def check_old_keys(published, rope_theta, rope_scaling):
    """What a reader of before makes of a config: its default is 10000, and no scaling."""
    wanted = published["rope_theta"]
    if rope_theta != wanted:
        assert rope_theta == 10000
        silent(f"the rotary base is read as {rope_theta}, the model has {wanted}")
    for key, value in published.get("rope_scaling", {}).items():
        if (rope_scaling or {}).get(key) != value:
            assert rope_scaling is None
            silent(f"the scaling of the rotary embedding is read as {rope_scaling}")


@pytest.mark.reproduces("rope-theta-lost")
@EACH
def test_asked_for_by_its_old_name(name, tmp_path):
    config = loaded(PUBLISHED[name] | SIZES, tmp_path)
    with act():
        check_old_keys(PUBLISHED[name], getattr(config, "rope_theta", 10000.0), getattr(config, "rope_scaling", None))


@pytest.mark.reproduces("rope-theta-lost")
@EACH
def test_written_config_in_an_older_engine(name, tmp_path):
    with act():
        loaded(PUBLISHED[name] | SIZES, tmp_path).save_pretrained(tmp_path / "trained")
    config = json.loads((tmp_path / "trained" / "config.json").read_text(encoding="utf-8"))
    check_old_keys(PUBLISHED[name], config.get("rope_theta", 10000.0), config.get("rope_scaling"))


@pytest.mark.reproduces("rope-theta-lost")
def test_only_the_scaling(tmp_path):
    """A model whose base is 10000 loses its scaling all the same."""
    published = PUBLISHED["qwen2-yarn"] | {"rope_theta": 10000.0}
    with act():
        loaded(published | SIZES, tmp_path).save_pretrained(tmp_path / "trained")
    config = json.loads((tmp_path / "trained" / "config.json").read_text(encoding="utf-8"))
    check_old_keys(published, config.get("rope_theta", 10000.0), config.get("rope_scaling"))


@pytest.mark.guards("rope-theta-lost")
@EACH
def test_both_spellings(subject, name, tmp_path):
    """An older reader, one of rope_parameters, and the installed transformers come to the same model."""
    published = PUBLISHED[name]
    config = loaded(published | SIZES, tmp_path)
    before = config.to_dict()
    with act():
        content = subject(config)
    content["rope_parameters"]["written"] = True
    assert config.to_dict() == before, "the config itself was changed"
    del content["rope_parameters"]["written"]
    rope = ("rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor")
    assert {key: content[key] for key in before if key not in rope} == {
        k: v for k, v in before.items() if k not in rope
    }
    content = json.loads(json.dumps(content))
    check_old_keys(published, content["rope_theta"], content["rope_scaling"])
    assert "rope_scaling" in published or content["rope_scaling"] is None
    if "partial_rotary_factor" in published:
        assert content["partial_rotary_factor"] == published["partial_rotary_factor"]
    new = content["rope_parameters"]
    assert new["rope_theta"] == published["rope_theta"]
    scaling = published.get("rope_scaling", {"rope_type": "default"})
    assert new["rope_type"] == scaling.get("rope_type", scaling.get("type"))
    assert all(new[key] == value for key, value in scaling.items())
    again = frequencies(loaded(content, tmp_path / "both"))
    assert again.equal(frequencies(config)), "read again, it is another rotary embedding"


@pytest.mark.guards("rope-theta-lost")
@pytest.mark.parametrize("kind", ["no-base", "bases-by-layer"])
def test_rejects_a_config_without_one_base(subject, kind):
    from transformers import Gemma3TextConfig, GPT2Config

    with act(), pytest.raises(ValueError, match="base"):
        subject(GPT2Config() if kind == "no-base" else Gemma3TextConfig())


@pytest.mark.guards("rope-theta-lost")
@pytest.mark.parametrize("kind", ["plain", "scaled", "in-part"])
def test_config_in_the_old_spelling_gets_both(subject, kind):
    """As every config of transformers 4 has it, and one of a model's own code in transformers 5."""
    from transformers import PretrainedConfig

    scaling = {"plain": None, "scaled": {"type": "linear", "factor": 4.0}, "in-part": {"rope_type": "linear"}}[kind]
    part = {"partial_rotary_factor": 0.5} if kind == "in-part" else {}
    config = PretrainedConfig()
    for key, value in {"rope_theta": 5e5, "rope_scaling": scaling and {**scaling}, **part}.items():
        setattr(config, key, value)
    named = {"rope_type": {"plain": "default", "scaled": "linear", "in-part": "linear"}[kind]}
    old = None if kind == "plain" else scaling | named
    rope = {"rope_theta": 5e5, "rope_scaling": old, "rope_parameters": {"rope_theta": 5e5, **(old or named), **part}}
    with act():
        assert subject(config) == config.to_dict() | rope | part
    config.rope_local_base_freq = 1e4
    with pytest.raises(ValueError, match="several"):
        subject(config)
