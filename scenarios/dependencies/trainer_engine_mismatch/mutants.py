from mutants import broken, failing, mutant, replaces
from pytest_rlregress.remedies.engine_imports import missing_engine_names


@broken(only="listed_with_its_line")
def only_the_first(package, engine="vllm", in_functions=False):
    return missing_engine_names(package, engine, in_functions)[:1]


@broken(only="is_there-verl")
def also_in_functions(package, engine="vllm", in_functions=False):
    """List what a setting leads to beside what every run imports."""
    return missing_engine_names(package, engine) + missing_engine_names(package, engine, in_functions=True)


@mutant("reproduced", only="test_trl_trainer")
def vllm_of_another_release(monkeypatch):
    import vllm.sampling_params

    monkeypatch.delattr(vllm.sampling_params, "StructuredOutputsParams")


replaces("absent", "verl.utils.qat.apply_qat_patches", only="quantization")(lambda: None)
replaces("changed", "verl.utils.qat.apply_qat_patches", only="quantization")(
    failing(RuntimeError("FP4 Marlin isn't supported on this device"))
)
