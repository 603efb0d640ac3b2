"""Megatron on one rank of a CPU, and verl's engine for it as far as that goes without Transformer Engine."""

from contextlib import contextmanager

from pytest_rlregress.stack.lazy import torch


@contextmanager
def one_rank():
    """A process group of this process alone; what Megatron makes of it goes with it."""
    from megatron.core import parallel_state

    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        yield parallel_state
    finally:
        parallel_state.destroy_model_parallel()
        torch.distributed.destroy_process_group()


def configuration_of_engine(folder, **bridge):
    """What verl's engine makes of a Qwen2 of one layer, by the bridge that ``bridge`` configures.

    ``initialize`` begins with it; all that follows wants Transformer Engine, of which there is no build for CPUs.
    """
    from transformers import AutoConfig
    from verl.trainer.config import CheckpointConfig
    from verl.workers.config import HFModelConfig, McoreEngineConfig, McoreOptimizerConfig
    from verl.workers.engine import MegatronEngine

    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 2}
    model = AutoConfig.for_model("qwen2", num_hidden_layers=1, vocab_size=16, **sizes)
    model.architectures = ["Qwen2ForCausalLM"]
    model.save_pretrained(folder)
    with one_rank():
        engine = MegatronEngine(
            HFModelConfig(path=str(folder), load_tokenizer=False),
            McoreEngineConfig(use_mbridge=True, **bridge),
            McoreOptimizerConfig(lr=1e-3),
            CheckpointConfig(),
        )
        engine._build_tf_config()
        return engine.tf_config
