from mutants import broken, failing, mutant, replaces
from pytest_rlregress.remedies.dependencies import missing_symbol


@broken(only="partial_apex")
def by_package_alone(setting):
    """Ask for the package that everybody knows; a partial install has it too."""
    from importlib.util import find_spec

    return None if find_spec("apex") else missing_symbol(setting)


@broken(only="advice_names")
def names_no_key(setting):
    said = missing_symbol(setting)
    return said and said.partition("): ")[0] + ")"


@mutant("absent", only="with_fusion")
def megatron_has_the_extension(monkeypatch):
    from megatron.core.tensor_parallel import layers

    monkeypatch.setattr(layers, "_grad_accum_fusion_available", True)


replaces("changed", "megatron.core.models.gpt.gpt_model.GPTModel.__init__", only="with_fusion")(
    failing(TypeError("GPTModel wants its process groups"))
)
