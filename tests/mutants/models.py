"""Mutants of scenarios/models."""

from __future__ import annotations

from mutants import broken, mutant
from pytest_rlregress.remedies.models import attention_implementation, auto_class, check_model_type


def fails_otherwise(*args, **kwargs):
    raise TypeError("fails otherwise")


@broken("unrecognised-model-type", only="test_next_model")
def only_the_outer_type(config):
    check_model_type({"model_type": config["model_type"]})


@broken("unrecognised-model-type", only="test_says_what")
def every_nested_type_must_be_listed(config):
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    for part in (config, *(value for value in config.values() if isinstance(value, dict))):
        if part.get("model_type", "qwen2") not in CONFIG_MAPPING:
            raise ValueError(f"unknown model type {part['model_type']!r}")


@broken("unrecognised-model-type", only="test_a_model_with")
def own_code_is_refused(config):
    check_model_type({key: value for key, value in config.items() if key != "auto_map"})


@broken("unrecognised-model-type", only="test_code_for")
def any_own_code_will_do(config):
    if not config.get("auto_map"):
        check_model_type(config)


@broken("unrecognised-model-type", only="test_next_model")
def names_no_key(config):
    try:
        check_model_type(config)
    except ValueError as error:
        raise ValueError(str(error).replace("model_type", "type")) from None


@broken("unrecognised-model-type", only="test_says_what")
def reads_the_configuration_in_place(config):
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    check_model_type(config)
    CONFIG_MAPPING[config["model_type"]].from_dict(config)


@mutant("unrecognised-model-type", "returned")
def ministral3_is_unknown(monkeypatch):
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    monkeypatch.delitem(CONFIG_MAPPING._mapping, "ministral3")


@mutant("unrecognised-model-type", "changed")
def config_fails_otherwise(monkeypatch):
    from transformers import AutoConfig

    monkeypatch.setattr(AutoConfig, "from_pretrained", fails_otherwise)


@broken("vision-language-auto-class", only="test_loads_whole")
def always_a_causal_lm(config):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM


@broken("vision-language-auto-class", only="test_loads_whole")
def without_its_head(config):
    from transformers import AutoModel

    return AutoModel


@broken("vision-language-auto-class", only="test_a_text_model")
def by_type_and_not_by_architecture(config):
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    return AutoModelForImageTextToText if config["model_type"] == "qwen3_vl" else AutoModelForCausalLM


@broken("vision-language-auto-class", only="test_refused")
def a_default_where_none_fits(config):
    from transformers import AutoModelForCausalLM

    try:
        return auto_class(config)
    except ValueError:
        return AutoModelForCausalLM


@broken("vision-language-auto-class", only="test_an_encoder")
def decoders_only(config):
    from transformers import AutoModelForCausalLM

    chosen = auto_class(config)
    return AutoModelForCausalLM if chosen.__name__ == "AutoModelForSeq2SeqLM" else chosen


@mutant("vision-language-auto-class", "absent")
def causal_lm_takes_it(monkeypatch):
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    monkeypatch.setitem(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, "qwen3_vl", "Qwen3VLForConditionalGeneration")


@mutant("vision-language-auto-class", "changed")
def causal_lm_fails_otherwise(monkeypatch):
    from transformers import AutoModelForCausalLM

    for name in ("from_pretrained", "from_config"):
        monkeypatch.setattr(AutoModelForCausalLM, name, fails_otherwise)


@broken("flash-attention-missing", only="stub")
def the_name_is_enough(wanted):
    from transformers.utils import import_utils

    return wanted if import_utils.is_flash_attn_2_available() else "sdpa"


@broken("flash-attention-missing", only="test_what_can_be_used")
def sdpa_for_all(wanted):
    return "sdpa"


@broken("flash-attention-missing", only="stub")
def eager_for_all_that_is_missing(wanted):
    return "eager" if attention_implementation(wanted) != wanted else wanted


@broken("flash-attention-missing", only="whole")
def never_flash_attention(wanted):
    return "sdpa" if wanted.startswith("flash_attention_") else wanted


@broken("flash-attention-missing", only="test_the_third")
def every_flash_attention_is_the_second(wanted):
    return attention_implementation("flash_attention_2") if wanted.startswith("flash_attention_") else wanted


@mutant("flash-attention-missing", "absent")
def sdpa_takes_its_place(monkeypatch):
    from transformers import PreTrainedModel

    monkeypatch.setattr(PreTrainedModel, "_check_and_adjust_attn_implementation", lambda self, *args, **kwargs: "sdpa")


@mutant("flash-attention-missing", "changed")
def loading_fails_otherwise(monkeypatch):
    from transformers import AutoModelForCausalLM

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", fails_otherwise)
