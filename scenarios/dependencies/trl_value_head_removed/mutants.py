from mutants import broken, mutant, replaces


@broken(only="is_patched")
def nothing_is_hidden():
    return None


@broken(only="after-verl")
def hidden_where_it_is_defined_alone():
    from verl.utils import import_utils

    import_utils.is_trl_available = lambda: False


@mutant("absent")
def trl_with_the_class(monkeypatch):
    import trl

    monkeypatch.setattr(trl, "AutoModelForCausalLMWithValueHead", type("WithHead", (), {}), raising=False)


@replaces("changed", "verl.models.transformers.monkey_patch.apply_monkey_patch")
def a_model_that_verl_does_not_know(model, **options):
    raise AttributeError("'Qwen2Config' object has no attribute 'text_config'")
