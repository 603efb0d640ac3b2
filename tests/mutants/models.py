"""Mutants of scenarios/models."""

from __future__ import annotations

import shutil
from pathlib import Path

from mutants import broken, mutant
from pytest_rlregress.remedies.models import (
    attention_implementation,
    auto_class,
    check_model_id,
    check_model_type,
    download_verified,
)


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


@mutant("vision-language-auto-class", "absent")
def causal_lm_takes_it(monkeypatch):
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    monkeypatch.setitem(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, "qwen3_vl", "Qwen3VLForConditionalGeneration")


@mutant("vision-language-auto-class", "changed")
def causal_lm_fails_otherwise(monkeypatch):
    from transformers import AutoModelForCausalLM

    for name in ("from_pretrained", "from_config"):
        monkeypatch.setattr(AutoModelForCausalLM, name, fails_otherwise)


@broken("model-id-not-on-hub", only="test_the_documented_id")
def names_none_that_may_be_meant(model, endpoint=None):
    try:
        check_model_id(model, endpoint)
    except ValueError:
        raise ValueError(f"{model} is not on the hub") from None


@broken("model-id-not-on-hub", only="test_what_may_not")
def being_listed_is_enough(model, endpoint=None):
    from huggingface_hub import HfApi

    HfApi(endpoint=endpoint).model_info(model)


@broken("model-id-not-on-hub", only="test_a_hub_that_is_down")
def blames_the_id_for_everything(model, endpoint=None):
    try:
        check_model_id(model, endpoint)
    except Exception as error:
        raise ValueError(f"{model} is not on the hub: {error}") from None


@broken("model-id-not-on-hub", only="test_a_folder")
def any_folder_will_do(model, endpoint=None):
    if not Path(model).is_dir():
        check_model_id(model, endpoint)


@mutant("model-id-not-on-hub", "absent", only="documented]")
def the_client_finds_the_one_meant(monkeypatch):
    from transformers import AutoConfig

    from pytest_rlregress.scenarios.models.test_model_id_not_on_hub import ASKED, MEANT

    load = AutoConfig.from_pretrained
    monkeypatch.setattr(
        AutoConfig, "from_pretrained", lambda model, **options: load(MEANT if model == ASKED else model, **options)
    )


@mutant("model-id-not-on-hub", "changed")
def the_hub_fails_otherwise(monkeypatch):
    from pytest_rlregress.fixtures import loopback_hub

    monkeypatch.setattr(loopback_hub._Handler, "_model", lambda self, *args: self._refuse(403, "", "Forbidden"))


@broken("truncated-download", only="test_g")
def plain_download(model, directory, revision, endpoint, attempts):
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(model, local_dir=directory, endpoint=endpoint))


@broken("truncated-download", only="zeros")
def only_sizes_are_compared(model, directory, revision, endpoint, attempts):
    from huggingface_hub import HfApi

    plain_download(model, directory, revision, endpoint, attempts)
    for file in HfApi(endpoint=endpoint).model_info(model, files_metadata=True).siblings:
        if Path(directory, file.rfilename).stat().st_size != file.size:
            raise RuntimeError(f"{file.rfilename} is not complete")
    return Path(directory)


@broken("truncated-download", only="test_goes_on")
def begins_anew_each_time(model, directory, revision, endpoint, attempts):
    for _ in range(attempts):
        try:
            return download_verified(model, directory, revision, endpoint, 1)
        except RuntimeError:
            shutil.rmtree(directory)
    raise RuntimeError("gave up")


@broken("truncated-download", only="test_gives_up")
def gives_up_without_a_word(model, directory, revision, endpoint, attempts):
    try:
        return download_verified(model, directory, revision, endpoint, attempts)
    except RuntimeError:
        return Path(directory)


@broken("truncated-download", only="test_gives_up")
def wrong_files_stay(model, directory, revision, endpoint, attempts):
    try:
        return download_verified(model, directory, revision, endpoint, attempts)
    except RuntimeError:
        plain_download(model, directory, revision, endpoint, attempts)
        raise


@mutant("truncated-download", "absent", only="test_connection_breaks")
def the_connection_holds(monkeypatch):
    """That of the failing act; the guards have their own."""
    from pytest_rlregress.scenarios.models import test_truncated_download as scenario

    download = scenario.download

    def fixed(hub, folder):
        hub.faults.clear()
        return download(hub, folder)

    monkeypatch.setattr(scenario, "download", fixed)


@mutant("truncated-download", "absent", only="test_part_of_a_shard")
def the_client_does_not_trust_its_cache(monkeypatch):
    import huggingface_hub

    download = huggingface_hub.snapshot_download

    def fixed(model, **options):
        return download(model, force_download="cache_dir" in options, **options)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fixed)


@mutant("truncated-download", "changed", only="test_connection_breaks")
def the_client_fails_otherwise(monkeypatch):
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fails_otherwise)


@broken("flash-attention-missing", only="test_a_package")
def the_name_is_enough(wanted):
    from transformers.utils import import_utils

    return wanted if import_utils.is_flash_attn_2_available() else "sdpa"


@broken("flash-attention-missing", only="test_what_can_be_used")
def sdpa_for_all(wanted):
    return "sdpa"


@broken("flash-attention-missing", only="test_a_package")
def eager_for_all_that_is_missing(wanted):
    return "eager" if attention_implementation(wanted) != wanted else wanted


@mutant("flash-attention-missing", "absent")
def sdpa_takes_its_place(monkeypatch):
    from transformers import PreTrainedModel

    monkeypatch.setattr(PreTrainedModel, "_check_and_adjust_attn_implementation", lambda self, *args, **kwargs: "sdpa")


@mutant("flash-attention-missing", "changed")
def loading_fails_otherwise(monkeypatch):
    from transformers import AutoModelForCausalLM

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", fails_otherwise)
