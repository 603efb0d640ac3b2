"""What a gap comes from, told with the running engine: each mistake is really made, on vLLM, transformers and peft."""

from __future__ import annotations

import pytest

from pytest_rlregress.remedies.rollout import reload_by_worker, reload_weights

pytestmark = pytest.mark.needs("vllm-engine", "torch", "transformers")


def group(name):
    return pytest.mark.isolated(group=f"agreement {name}", timeout=300)


LONG = [step * 37 % 1000 + 5 for step in range(300)]  # more than two blocks of the cache
PROMPTS = [LONG, [*range(100, 105)], [*range(300, 320)]]


def started(sharp_qwen, progress, **options):
    from pytest_rlregress.fixtures import vllm_engine

    options = {"dtype": "float32", "max_model_len": 512, **options}
    return vllm_engine.start(sharp_qwen.directory, say=progress, **options)


def drawn(engine, prompts=PROMPTS, **sampling):
    return engine.generate(prompts, 24, seed=5, ignore_eos=True, **sampling)


def moved(model, part="", seed=0):
    """A model with every weight moved that has the part in its name."""
    import copy

    import torch

    other, generator = copy.deepcopy(model), torch.Generator().manual_seed(seed)
    for name, parameter in other.named_parameters():
        if part in name:
            parameter.data += 0.05 * torch.randn(parameter.shape, generator=generator)
    return other


def without_reset(engine, model):
    reload_by_worker(engine.llm, model.state_dict().items())


# An engine that reports log-probabilities before temperature, vLLM's default.


@pytest.fixture(scope="module")
def raw_engine(sharp_qwen, progress):
    with started(sharp_qwen, progress) as engine:
        yield engine


@pytest.fixture
def model(sharp_qwen):
    return sharp_qwen.model()


@pytest.fixture
def raw(raw_engine, model):
    """The engine, which gets its weights back."""
    yield raw_engine
    reload_weights(raw_engine.llm, model.state_dict().items())


def right(engine, model):
    return model, drawn(engine), {}


def before_temperature(engine, model):
    return model, drawn(engine, temperature=0.5), {"temperature": 0.5}


def stale_cache(engine, model, **sampling):
    new = moved(model)
    drawn(engine)
    without_reset(engine, new)
    return new, drawn(engine, **sampling), sampling


def stale_cache_and_before_temperature(engine, model):
    return stale_cache(engine, model, temperature=0.5)


def partial_weights(engine, model):
    new = moved(model)
    reload_weights(engine.llm, [pair for pair in new.state_dict().items() if "layers.1.mlp" not in pair[0]])
    return new, drawn(engine), {}


def old_weights(engine, model):
    return moved(model), drawn(engine), {}


def old_weights_and_before_temperature(engine, model):
    return moved(model), drawn(engine, temperature=0.5), {"temperature": 0.5}


def tied_head_not_sent(engine, model):
    new = moved(model)
    reload_by_worker(engine.llm, new.named_parameters())
    engine.llm.reset_prefix_cache()
    return new, drawn(engine), {}


def partial_weights_and_stale_cache(engine, model):
    new = moved(model)
    drawn(engine)
    reload_by_worker(engine.llm, [pair for pair in new.state_dict().items() if "layers.1.mlp" not in pair[0]])
    return new, drawn(engine), {}


def drawn_before_the_update(engine, model):
    completions, new = drawn(engine), moved(model)
    reload_weights(engine.llm, new.state_dict().items())
    return new, completions, {}


def text_with_two_bos(engine, model):
    """The trainer's ids begin with one BOS; the engine tokenised text that had one already."""
    prompts = [[7, *prompt] for prompt in PROMPTS]
    return model, drawn(engine, [[7, *prompt] for prompt in prompts]), {"prompts": prompts, "bos_id": 7}


def other_system_text(engine, model):
    return model, drawn(engine), {"prompts": [[9, 8, *prompt[1:]] for prompt in PROMPTS]}


def padding_attended(engine, model):
    return model, drawn(engine), {"trainer": of_a_padded_batch_without_mask}


def of_a_padded_batch_without_mask(model, prompts, completions, temperature):
    import torch

    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(p)) + p + c for p, c in zip(prompts, completions, strict=True)])
    with torch.no_grad():
        scores = (model(ids).logits / temperature).log_softmax(-1)
    return scores[:, width - 1 : -1].gather(-1, ids[:, width:, None])[..., 0].tolist()


MISTAKES = {
    right: [],
    before_temperature: ["before-temperature"],
    stale_cache: ["prefix-cache"],
    stale_cache_and_before_temperature: ["prefix-cache", "before-temperature"],
    partial_weights: ["weights"],
    old_weights: ["weights"],
    old_weights_and_before_temperature: ["weights", "before-temperature"],
    tied_head_not_sent: ["weights"],
    partial_weights_and_stale_cache: ["weights", "prefix-cache"],
    drawn_before_the_update: ["not-of-this-engine"],
    text_with_two_bos: ["bos-added"],
    other_system_text: ["prompt-ids"],
    padding_attended: ["padding-attended"],
}
WORDS = {
    partial_weights: "3 of the engine's 27 tensors are not the model's: model.layers.1.mlp",
    tied_head_not_sent: "1 of the engine's 27 tensors are not the model's: lm_head.weight",
    old_weights: "27 of the engine's 27 tensors are not the model's",
    other_system_text: "the prompts' ids differ: the engine's 300 tokens are not the trainer's 301 from token 0 on",
}


@group("raw")
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.__name__)
def test_the_mistake_that_was_made_is_named_and_no_other(raw, model, agreement, mistake):
    trained, completions, options = mistake(raw, model)
    compared = agreement(raw, trained, completions, **options)
    found = compared.explain()
    assert found.names == MISTAKES[mistake], str(found)
    assert compared.agrees == found.agrees == (mistake is right), str(found)
    assert WORDS.get(mistake, "") in str(found)
    assert found.remaining <= 8 * found.floor
    print(found)
