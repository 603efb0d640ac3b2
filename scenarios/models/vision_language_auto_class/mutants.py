from mutants import broken, fails, mutant, replaces


@broken(only="test_loads_whole")
def always_a_causal_lm(config):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM


@broken(only="test_a_text_model")
def by_type_and_not_by_architecture(config):
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    return AutoModelForImageTextToText if config["model_type"] == "qwen3_vl" else AutoModelForCausalLM


@mutant("absent")
def causal_lm_takes_it(monkeypatch):
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    monkeypatch.setitem(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, "qwen3_vl", "Qwen3VLForConditionalGeneration")


replaces("changed", "transformers.AutoModelForCausalLM.from_pretrained")(fails)
