"""What a gap comes from, told with the running engine: each mistake is really made, on vLLM and transformers."""

from __future__ import annotations

import re

import documents
import pytest
from compared_engines import PROMPTS, drawn, group, moved, started

from pytest_rlregress.agreement.engine_weights import engine_weights
from pytest_rlregress.remedies.rollout import reload_by_worker, reload_weights

pytestmark = [pytest.mark.needs("vllm-engine", "torch", "transformers"), pytest.mark.slow]


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
def test_names_only_the_mistake_that_was_made(raw, model, agreement, mistake):
    trained, completions, options = mistake(raw, model)
    compared = agreement(raw, trained, completions, **options)
    found = compared.explain()
    assert found.names == MISTAKES[mistake], str(found)
    assert compared.agrees == found.agrees == (mistake is right), str(found)
    assert WORDS.get(mistake, "") in str(found)
    assert found.remaining <= 8 * found.floor
    print(found)


@group("raw")
def test_trainers_own_functions_and_vllms_own_outputs(raw, model, agreement):
    """TRL's and verl's functions on a padded batch are a trainer that agrees; vLLM's own outputs are completions."""
    from vllm import SamplingParams

    params = SamplingParams(n=2, max_tokens=24, temperature=1.0, seed=5, logprobs=0, detokenize=False, ignore_eos=True)
    with_ids = [{"prompt_token_ids": prompt} for prompt in PROMPTS]
    outputs = raw.llm.generate(with_ids, params, use_tqdm=False)
    for trainer in (None, trl_logprobs, verl_logprobs):
        compared = agreement(raw.llm, model, outputs, trainer=trainer)
        assert compared, compared.explain()
        assert [len(row) for row in compared.per_token] == [24] * 6
    shifted = agreement(raw.llm, model, outputs, trainer=lambda *given: [[-1.0, *r[:-1]] for r in trl_logprobs(*given)])
    assert not shifted
    found = shifted.explain()
    assert found.names == ["token-before"], str(found)
    assert found.causes[0].who == "the trainer"


def of_a_padded_batch(select, model, prompts, completions, temperature):
    """Each token's log-probability by ``select(logits, ids)``, of one batch with its mask and positions."""
    import torch

    left, right = max(map(len, prompts)), max(map(len, completions))
    pairs = list(zip(prompts, completions, strict=True))
    ids = torch.tensor([[0] * (left - len(p)) + p + c + [0] * (right - len(c)) for p, c in pairs])
    mask = torch.tensor([[0] * (left - len(p)) + [1] * (len(p) + len(c)) + [0] * (right - len(c)) for p, c in pairs])
    with torch.no_grad():
        logits = model(ids, attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0)).logits
    rows = select(logits[:, -right - 1 : -1] / temperature, ids[:, -right:]).tolist()
    return [row[: len(c)] for row, c in zip(rows, completions, strict=True)]


def trl_logprobs(*given):
    from trl.trainer.utils import selective_log_softmax

    return of_a_padded_batch(selective_log_softmax, *given)


def verl_logprobs(*given):
    from verl.utils.torch_functional import logprobs_from_logits

    return of_a_padded_batch(logprobs_from_logits, *given)


@group("raw")
def test_comparing_changes_only_the_cache(raw, model, agreement):
    import random

    import numpy
    import torch

    def seen():
        random_states = random.getstate(), str(numpy.random.get_state()), torch.get_rng_state().tolist()
        modules = [module.training for module in trained.modules()]
        parameters = [(p.dtype, p.requires_grad, p.sum().item()) for p in trained.parameters()]
        return random_states, modules, parameters

    trained, completions, _ = partial_weights_and_stale_cache(raw, model)
    trained.train().model.layers[0].eval()
    trained.model.norm.weight.requires_grad_(False)
    before, tensors = seen(), engine_weights(raw.llm)
    agreement(raw, trained, completions).explain()
    assert seen() == before
    after = engine_weights(raw.llm)
    assert all(tensor.equal(after[name]) for name, tensor in tensors.items())


@group("raw")
def test_rejects_completions_that_cannot_be_compared(raw, model, agreement):
    from vllm import SamplingParams

    params = SamplingParams(max_tokens=2, detokenize=False)
    outputs = raw.llm.generate([{"prompt_token_ids": [20, 30]}], params, use_tqdm=False)
    with pytest.raises(ValueError, match=r"without log-probabilities: ask for SamplingParams\(logprobs=0\)"):
        agreement(raw, model, outputs)
    completions = drawn(raw)
    with pytest.raises(ValueError, match="a completion has 24 tokens and 23 log-probabilities"):
        agreement(raw, model, completions, trainer=[[-1.0] * 23] * 3)
    with pytest.raises(TypeError, match="temprature"):
        agreement(raw, model, completions, temprature=0.5)
    with pytest.raises(ValueError, match="no token to compare"):
        agreement(raw, model, [])


@group("raw")
def test_the_document_shows_what_is_printed(raw, model, agreement, tmp_path, monkeypatch):
    files = documents.files("agreement.md")
    documents.write(files, tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path / "agreement"))
    import mistakes

    made = (mistakes.temperature, mistakes.a_sync_without_the_head, mistakes.a_cache_that_is_not_reset)
    said = [str(mistake(raw, model, agreement)) for mistake in made]
    print(*said, sep="\n")
    printed = documents.text("agreement.md").split("```\n")
    shown = next(block for block in printed if " nats a token; " in block)
    assert without_measurements(" ".join(shown.split())) == without_measurements(" ".join(said)), "\n".join(said)


@group("raw")
def test_the_document_proves_a_sync(raw, sharp_qwen, synced, tmp_path, monkeypatch):
    documents.write(documents.files("agreement.md"), tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path / "agreement"))
    import test_sync

    with pytest.raises(AssertionError) as raised:
        synced(raw, sharp_qwen.model(), test_sync.sync_as_it_was)
    said = str(raised.value)
    shown = next(block for block in documents.text("agreement.md").split("```\n") if block.startswith("not in sync"))
    assert without_measurements(" ".join(shown.split())) == without_measurements(said), said


def without_measurements(text):
    return re.sub(r"\d+(\.\d+)?(e-\d+)?(?=( nats|: ))", "…", text)
