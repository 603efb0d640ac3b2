"""The engines of this folder, one of each mode for all its files; every test finds the checkpoint's weights in them."""

import shutil

import pytest

from pytest_rlregress.stack.lazy import torch


@pytest.fixture(scope="session")
def checkpoint(sharp_qwen, tmp_path_factory):
    """The folder that the engine was started from, which a test may write to."""
    return shutil.copytree(sharp_qwen.directory, tmp_path_factory.mktemp("checkpoint") / "model")


@pytest.fixture(scope="session")
def started_engine(checkpoint, vllm_runner):
    """The engine as it runs for the whole folder; tests ask for ``engine``."""
    return vllm_runner(checkpoint, dtype="float32", max_model_len=1024)


@pytest.fixture
def engine(started_engine, sharp_qwen):
    """vLLM on ``sharp_qwen``; it gets its weights before, too: a vLLM that takes no new ones says so."""
    from pytest_rlregress.agreement.engine import eager_helpers

    weights = sharp_qwen.model().state_dict()
    started_engine.load_weights(weights.items())
    with eager_helpers():
        yield started_engine
    try:
        started_engine.load_weights(weights.items())
    except AttributeError:  # layers that wait for the rest of a reload that a test broke off
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        config = started_engine.llm.model_config
        started_engine.llm.apply_model(lambda model: finalize_layerwise_reload(model, config))
        started_engine.load_weights(weights.items())


@pytest.fixture
def old(sharp_qwen):
    """The trainer's model with the weights of the engine, in float32."""
    return sharp_qwen.model()


@pytest.fixture
def new(sharp_qwen):
    """The trainer's model after an update that moved every parameter."""
    model, generator = sharp_qwen.model(), torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.data += 0.05 * torch.randn(parameter.shape, generator=generator)
    return model


@pytest.fixture(scope="session")
def adapted(sharp_qwen):
    """``adapted(seed, **config)``: the model with an adapter of PEFT on it that is not zero, in eval mode."""

    def adapted(seed, **config):
        from peft import LoraConfig, get_peft_model

        config = {"r": 8, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj", "up_proj"], **config}
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return get_peft_model(sharp_qwen.model(), LoraConfig(init_lora_weights=False, **config)).eval()

    return adapted
