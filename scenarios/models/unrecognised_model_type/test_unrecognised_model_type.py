import json

import pytest

from pytest_rlregress.failures.act import act

# As mistralai publishes it: the type that is new stands inside one that transformers has known since 4.50.
MINISTRAL = {
    "model_type": "mistral3",
    "transformers_version": "5.0.0.dev0",
    "text_config": {"model_type": "ministral3", "num_hidden_layers": 2},
    "vision_config": {"model_type": "pixtral", "num_hidden_layers": 2},
}


def renamed(config, old, new):
    """The configuration with another name for a model type, wherever it stands."""
    return json.loads(json.dumps(config).replace(f'"{old}"', f'"{new}"'))


def load(config, folder):
    """The failing act: the class of what AutoConfig makes of a config.json."""
    from transformers import AutoConfig

    (folder / "config.json").write_text(json.dumps(config))
    return type(AutoConfig.from_pretrained(folder)).__name__


@pytest.mark.reproduces("unrecognised-model-type")
def test_ministral_as_published(tmp_path):
    load(MINISTRAL, tmp_path)


@pytest.mark.reproduces("unrecognised-model-type")
def test_its_text_model(tmp_path):
    load(MINISTRAL["text_config"], tmp_path)


# Types that no release knows stand for the next model: what AutoConfig says of them must be said earlier.
@pytest.mark.guards("unrecognised-model-type", fidelity="stand-in")
@pytest.mark.parametrize(
    ("config", "key"),
    [
        (renamed(MINISTRAL, "ministral3", "ministral99"), "text_config.model_type"),
        (renamed(MINISTRAL["text_config"], "ministral3", "ministral99"), "model_type"),
        ({"model_type": "llava", "vision_config": {"model_type": "ministral99"}}, "vision_config.model_type"),
    ],
    ids=["nested", "alone", "vision"],
)
def test_next_model_is_refused_early(subject, config, key):
    from transformers import __version__

    with act(), pytest.raises(ValueError, match="'ministral99'") as refused:
        subject(config)
    for fact in (__version__, f" {key}", config.get("transformers_version", "")):
        assert fact in str(refused.value), f"the refusal does not say {fact!r}: {refused.value}"


@pytest.mark.guards("unrecognised-model-type")
@pytest.mark.parametrize(
    ("name", "close"),
    [("qwen2_moee", "qwen2_moe"), ("zzzzzzzz", "none of a similar name")],
    ids=["misspelt", "unlike any"],
)
def test_refusal_names_similar_types(subject, name, close):
    with pytest.raises(ValueError, match=f"'{name}'") as refused:
        subject({"model_type": name})
    said = str(refused.value)
    assert close in said
    assert "saved by transformers an unnamed release" in said


@pytest.mark.guards("unrecognised-model-type")
@pytest.mark.parametrize(
    "config",
    [
        MINISTRAL,
        MINISTRAL["text_config"],
        {"model_type": "qwen2"},
        # Loadable, with nested types of which AutoConfig has never heard.
        {"model_type": "bark", "fine_acoustics_config": {"model_type": "fine_acoustics"}},
        {"model_type": "sam", "mask_decoder_config": {"model_type": ""}},
        # Names no nested type: llava's configuration writes the one that it takes into what it is given.
        {"model_type": "llava", "text_config": {"num_hidden_layers": 2}, "vision_config": {"num_hidden_layers": 2}},
    ],
    ids=["ministral", "its-text-model", "qwen", "bark", "sam", "llava"],
)
def test_says_what_loading_says(subject, tmp_path, config):
    before = json.dumps(config)
    with act():
        try:
            load(config, tmp_path)
        except (ValueError, KeyError):
            with pytest.raises(ValueError, match="model type"):
                subject(config)
        else:
            subject(config)
    assert json.dumps(config) == before, "the check changed the configuration"


@pytest.mark.guards("unrecognised-model-type")
def test_own_code_of_the_configuration_makes_up_for_an_unknown_type(subject):
    config = {"model_type": "ministral99", "auto_map": {"AutoConfig": "configuration_ministral99.Ministral99Config"}}
    subject(config)
    for unknown in ({**config, "auto_map": {"AutoModelForCausalLM": "modeling.Ministral99"}}, {"architectures": ["X"]}):
        with pytest.raises(ValueError, match=r"ministral99|model_type"):
            subject(unknown)
