from mutants import broken, fails, mutant, replaces
from pytest_rlregress.remedies.models import check_model_type


@broken(only="test_next_model")
def only_the_outer_type(config):
    check_model_type({"model_type": config["model_type"]})


@broken(only="test_says_what")
def every_nested_type_must_be_listed(config):
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    for part in (config, *(value for value in config.values() if isinstance(value, dict))):
        if part.get("model_type", "qwen2") not in CONFIG_MAPPING:
            raise ValueError(f"unknown model type {part['model_type']!r}")


@mutant("returned")
def ministral3_is_unknown(monkeypatch):
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    monkeypatch.delitem(CONFIG_MAPPING._mapping, "ministral3")


replaces("changed", "transformers.AutoConfig.from_pretrained")(fails)
