import torch

from mutants import failing, replaces

TESTS = ".test_fsdp_cpu_offload_lora"


@replaces("absent", f"{TESTS}.take_back_to_the_host", only="test_offloaded_parameters")
def leaves_them_where_they_are(model):
    """An offload that takes nothing back."""


replaces("changed", f"{TESTS}.take_back_to_the_host", only="test_offloaded_parameters")(
    failing(RuntimeError("cannot pin memory"))
)


@replaces("reproduced", f"{TESTS}.verl_engine", only="test_verl_engine[lora-sync")
def verl_before_its_repair(original, tiny_qwen, lora):
    engine = original(tiny_qwen, lora)
    engine._uses_fsdp2_cpu_offload_policy = False
    return engine


@replaces("regressed", "torch.nn.Module.to_empty", only="test_offloaded_model_left_on_the_cpu[")
def memory_elsewhere(original, module, *, device, recurse=True):
    return original(module, device="meta", recurse=recurse)


@replaces("regressed", f"{TESTS}.verl_engine", only="test_verl_engine_sends")
def loses_what_it_loaded(original, tiny_qwen, lora):
    engine = original(tiny_qwen, lora)
    with torch.no_grad():
        for parameter in engine.module.parameters():
            parameter.zero_()
    return engine
