from mutants import broken, failing, replaces
from pytest_rlregress.remedies.weight_sync import merged_weights


@broken(only="test_engine_has_the_adapter[base_only")
def base_only(model):
    from verl.utils.fsdp_utils import collect_lora_params

    yield from collect_lora_params(model, layered_summon=False, base_sync_done=False).items()


@broken(only="test_engine_has_the_adapter[without_scaling-lora]")
def without_scaling(model):
    scaled = [module.scaling for module in model.modules() if hasattr(module, "lora_A")]
    for scaling in scaled:
        scaling["default"] /= 2
    yield from merged_weights(model)
    for scaling in scaled:
        scaling["default"] *= 2


replaces("absent", "verl.utils.fsdp_utils.collect_lora_params")(lambda policy, **options: dict(merged_weights(policy)))
replaces("changed", "verl.utils.fsdp_utils.collect_lora_params")(failing(KeyError("base_model.model")))
