"""A weight sync is proved tensor by tensor and by log-probabilities; what did not arrive is named."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pytest_rlregress.agreement.engine_weights import engine_weights
from pytest_rlregress.agreement.weight_sync import SyncCheck
from pytest_rlregress.remedies.rollout import reload_by_worker, reload_weights
from pytest_rlregress.stack import InterfaceMissing

ENGINE = pytest.mark.isolated(group="weight sync", timeout=300)


@pytest.fixture(scope="module")
def engine(sharp_qwen, progress):
    from pytest_rlregress.fixtures import vllm_engine

    with vllm_engine.start(sharp_qwen.directory, say=progress, dtype="float32", max_model_len=512) as engine:
        yield engine


@pytest.fixture
def model(sharp_qwen):
    return sharp_qwen.model()


def without(*parts):
    """A sync that leaves out the tensors with one of these in their names."""
    return lambda llm, weights: reload_weights(llm, [pair for pair in weights if not any(p in pair[0] for p in parts)])


def not_reset(llm, weights):
    weights = dict(weights)
    reload_by_worker(llm, {**weights, "lm_head.weight": weights["model.embed_tokens.weight"]}.items())


def as_vllm_does(llm, weights):
    reload_by_worker(llm, weights)
    llm.reset_prefix_cache()


def swapped(llm, weights):
    """Keys and values of the first layer each in the other's place."""
    named = dict(weights)
    key, value = (f"model.layers.0.self_attn.{kind}_proj.weight" for kind in "kv")
    reload_weights(llm, {**named, key: named[value], value: named[key]}.items())


def with_nan(llm, weights):
    named = {name: tensor.clone() for name, tensor in weights}
    named["model.norm.weight"][0] = float("nan")
    reload_weights(llm, named.items())


def with_other_rotations(llm, weights):
    """What isn't a parameter: the tables of the positions."""

    def turn(model):
        for name, buffer in model.named_buffers():
            if "cos_sin_cache" in name:
                buffer.copy_(buffer.roll(1, 0))

    reload_weights(llm, weights)
    llm.apply_model(turn)


@ENGINE
@pytest.mark.needs("vllm-engine", "transformers")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_accepts_a_complete_sync(engine, sharp_qwen, synced, dtype):
    model = sharp_qwen.model(dtype).train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    found = synced(engine, model, reload_weights)
    assert found
    assert (found.compared, found.stale) == (27, ())
    assert "all 27 tensors are the model's, log-probabilities agree to" in str(found)
    assert model.training
    assert str(model.dtype) == f"torch.{dtype}"
    assert all(tensor.equal(before[name]) for name, tensor in model.state_dict().items())
    weights = engine_weights(engine.llm)
    assert weights.keys() == before.keys()
    assert all(tensor.equal(before[name].float()) for name, tensor in weights.items())


@ENGINE
@pytest.mark.needs("vllm-engine", "transformers")
@pytest.mark.parametrize(
    ("sync", "told"),
    [
        (
            without("layers.1.mlp"),
            r"3 of 27 tensors .*: model\.layers\.1\.mlp\.gate_proj\.weight, .*mlp\.up.*mlp\.down",
        ),
        (without(""), r"27 of 27 tensors .* and 19 more; log-probabilities are [\d.]+ nats"),
        (
            swapped,
            r"2 of 27 tensors .*: model\.layers\.0\.self_attn\.k_proj\.weight, .*\.0\.self_attn\.v_proj\.weight;",
        ),
        (with_nan, r"1 of 27 tensors .*: model\.norm\.weight; log-probabilities are nan nats"),
        (as_vllm_does, r"1 of 27 tensors .*: lm_head\.weight \(tied to model\.embed_tokens\.weight\);"),
        (not_reset, r"all 27 tensors .* cached under the old weights .* reset the prefix cache"),
    ],
    ids=["half-a-layer", "nothing", "swapped", "nan", "tied-head", "not-reset"],
)
def test_names_the_tensors_that_did_not_arrive(engine, model, synced, sync, told):
    with pytest.raises(AssertionError, match=rf"^not in sync: {told}"):
        synced(engine, model, sync)


@ENGINE
@pytest.mark.needs("vllm-engine", "transformers")
def test_rejects_equal_weights_with_other_log_probabilities(engine, model, synced):
    tables = engine.llm.apply_model(
        lambda model: {name: buffer.clone() for name, buffer in model.named_buffers() if "cos_sin" in name}
    )[0]
    with pytest.raises(AssertionError, match=r"all 27 tensors are the model's, and yet log-probabilities are 0\.\d+"):
        synced(engine, model, with_other_rotations)
    engine.llm.apply_model(lambda model: [dict(model.named_buffers())[name].copy_(t) for name, t in tables.items()])
    synced(engine, model, reload_weights)


@ENGINE
@pytest.mark.needs("vllm-engine", "transformers")
def test_rejects_wrong_arguments_before_touching_the_engine(engine, model, sharp_qwen, synced):
    before = engine_weights(engine.llm)
    broken, other = sharp_qwen.model(), sharp_qwen.model()
    broken.model.norm.weight.data[3] = float("nan")
    other.model.layers = other.model.layers[:1]
    for wrong, told in (
        (broken, r"model\.norm\.weight of the model is not finite"),
        (other, r"not the engine's model: of model\.layers\.1\.input_layernorm\.weight the model has none, .* \[128\]"),
    ):
        with pytest.raises(ValueError, match=told):
            synced(engine, wrong, reload_weights)
    assert all(tensor.equal(before[name]) for name, tensor in engine_weights(engine.llm).items())

    def fails(llm, weights):
        raise ConnectionError("the trainer is gone")

    with pytest.raises(ConnectionError, match="the trainer is gone"):
        synced(engine, model, fails)


@pytest.mark.parametrize(("scored", "generated"), [(float("nan"), 0), (0, float("nan")), (2e-6, 0), (0, 2e-6)])
def test_differences_beyond_rounding_are_not_in_sync(scored, generated):
    found = SyncCheck(27, (), scored, generated, tolerance=1e-6)
    assert not found
    assert "off (1e-06 is rounding)" in str(found)


def engine_of(model, workers=1):
    return SimpleNamespace(apply_model=lambda function: [function(model)] * workers)


@pytest.mark.needs("vllm")
def test_a_parameter_without_a_known_name_is_named():
    import torch

    model = torch.nn.Module()
    model.experts = torch.nn.Module()
    model.experts.w13_weight = torch.nn.Parameter(torch.zeros(4, 6, 2))
    with pytest.raises(NotImplementedError, match=r"experts\.w13_weight \[4, 6, 2\]"):
        engine_weights(engine_of(model))
    renaming = torch.nn.Module()
    renaming.hf_to_vllm_mapper = SimpleNamespace(orig_to_new_prefix={"model.visual.": "visual."})
    with pytest.raises(NotImplementedError, match=r"renames the parameters of Module by prefix"):
        engine_weights(engine_of(renaming))
    with pytest.raises(NotImplementedError, match="2 workers"):
        engine_weights(engine_of(torch.nn.Module(), workers=2))
    with pytest.raises(InterfaceMissing, match=r"LLM\.apply_model, which vllm [\d.]+ doesn't have"):
        engine_weights(SimpleNamespace())
