from mutants import broken, failing, mutant, replaces
from pytest_rlregress.remedies.engine_imports import missing_engine_names


@broken(only="listed_with_its_line")
def only_the_first(package, engine="vllm", in_functions=False):
    return missing_engine_names(package, engine, in_functions)[:1]


@broken(only="every_name")
def also_in_functions(package, engine="vllm", in_functions=False):
    """List what a setting leads to beside what every run imports."""
    return missing_engine_names(package, engine) + missing_engine_names(package, engine, in_functions=True)


@mutant("reproduced", only="test_trl_trainer")
def vllm_of_another_release(monkeypatch):
    import vllm.sampling_params

    assert vllm.LLM  # what vLLM itself takes from there, it has by now
    monkeypatch.delattr(vllm.sampling_params, "StructuredOutputsParams")


@mutant("absent", only="quantization")
def verl_for_this_vllm(monkeypatch):
    from verl.utils.qat import vllm_patch

    module = "vllm.model_executor.layers.linear"
    monkeypatch.setattr(vllm_patch, "_PATCH_TARGETS", [(f"{module}.LinearBase.forward", None)])


replaces("changed", "verl.utils.qat.apply_qat_patches", only="quantization")(
    failing(RuntimeError("FP4 Marlin isn't supported on this device"))
)


@replaces("regressed", "pytest_rlregress.remedies.engine_imports._compare_version", only="listed_with_its_line")
def any_version(test, engine):
    return None
