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


def padded(prompts, completions):
    import torch

    left, right = max(map(len, prompts)), max(map(len, completions))
    pairs = list(zip(prompts, completions, strict=True))
    ids = torch.tensor([[0] * (left - len(p)) + p + c + [0] * (right - len(c)) for p, c in pairs])
    mask = [[0] * (left - len(p)) + [1] * (len(p) + len(c)) + [0] * (right - len(c)) for p, c in pairs]
    return ids, torch.tensor(mask), right


def logits_of_a_padded_batch(model, ids, mask):
    import torch

    with torch.no_grad():
        return model(ids, attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0)).logits


def trl_logprobs(model, prompts, completions, temperature):
    from trl.trainer.utils import selective_log_softmax

    ids, mask, right = padded(prompts, completions)
    logits = logits_of_a_padded_batch(model, ids, mask)[:, -right - 1 : -1] / temperature
    rows = selective_log_softmax(logits, ids[:, -right:]).tolist()
    return [row[: len(c)] for row, c in zip(rows, completions, strict=True)]


def verl_logprobs(model, prompts, completions, temperature):
    from verl.utils.torch_functional import logprobs_from_logits

    ids, mask, right = padded(prompts, completions)
    logits = logits_of_a_padded_batch(model, ids, mask)[:, -right - 1 : -1] / temperature
    rows = logprobs_from_logits(logits, ids[:, -right:]).tolist()
    return [row[: len(c)] for row, c in zip(rows, completions, strict=True)]


@group("raw")
def test_nothing_is_changed_but_the_cache(raw, model, agreement):
    import random

    import numpy
    import torch

    from pytest_rlregress.agreement.engine_weights import engine_weights

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
def test_what_cannot_be_compared_is_refused(raw, model, agreement):
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


# An engine that reports log-probabilities of what it draws from.


@pytest.fixture(scope="module")
def processed_engine(sharp_qwen, progress):
    with started(sharp_qwen, progress, logprobs_mode="processed_logprobs") as engine:
        yield engine


@group("processed")
@pytest.mark.parametrize(
    ("sampling", "names"),
    [
        ({"temperature": 0.5}, []),
        ({"top_p": 0.8}, ["truncated-support"]),
        ({"temperature": 0.7, "top_k": 20}, ["truncated-support"]),
        ({"min_p": 0.01}, ["truncated-support"]),
        ({"repetition_penalty": 1.3}, ["truncated-support"]),
        ({"temperature": 0.7, "top_k": 20, "top_p": 0.8, "repetition_penalty": 1.05}, ["truncated-support"]),
    ],
    ids=str,
)
def test_truncated_support(processed_engine, model, agreement, sampling, names):
    compared = agreement(processed_engine, model, drawn(processed_engine, **sampling), **sampling)
    assert compared.agrees == (not names)
    assert compared.explain().names == names, str(compared.explain())


@group("processed")
def test_the_models_own_sampling_parameters(processed_engine, model, agreement):
    """The server takes them from generation_config.json where the client sends none."""
    model.generation_config.update(do_sample=True, temperature=0.7, top_k=20, top_p=0.8)
    compared = agreement(processed_engine, model, drawn(processed_engine, temperature=0.7, top_k=20, top_p=0.8))
    found = compared.explain()
    assert found.names == ["generation-config"], str(found)


@group("processed")
def test_temperature_that_nobody_said(processed_engine, model, agreement):
    found = agreement(processed_engine, model, drawn(processed_engine, temperature=0.6)).explain()
    assert found.names == ["other-temperature"], str(found)
    assert "are at temperature 0.6, not 1" in str(found)


# An engine in another dtype than the trainer. vLLM's bfloat16 on a CPU dies where the system does not allow AMX.


@group("half")
def test_dtype(sharp_qwen, model, progress, agreement):
    with started(sharp_qwen, progress, dtype="float16") as engine:
        found = agreement(engine, model, drawn(engine)).explain()
        assert found.names == ["float16"], str(found)
        found = agreement(engine, model, drawn(engine, temperature=0.5), temperature=0.5).explain()
        assert sorted(found.names) == ["before-temperature", "float16"], str(found)
        found = agreement(engine, moved(model), drawn(engine)).explain()
        assert found.names == ["weights"], str(found)
        assert agreement(engine, sharp_qwen.model("float16"), drawn(engine))


# An engine with adapters.


@pytest.fixture(scope="module")
def lora_engine(sharp_qwen, progress):
    with started(sharp_qwen, progress, enable_lora=True, max_loras=1, max_lora_rank=8) as engine:
        yield engine


@pytest.fixture
def adapted(model, tmp_path):
    """PeftModels of two versions of an adapter, each with the LoRARequest that vLLM wants for it."""
    import copy

    import torch
    from peft import LoraConfig, get_peft_model
    from vllm.lora.request import LoRARequest

    found = []
    for version in (1, 2):
        torch.manual_seed(version)
        config = LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj", "down_proj"], lora_dropout=0.05)
        peft = get_peft_model(copy.deepcopy(model), config).eval()
        for name, parameter in peft.named_parameters():
            if "lora_B" in name:
                parameter.data = 0.1 * torch.randn_like(parameter)
        folder = tmp_path / f"version-{version}"
        peft.save_pretrained(folder)
        identity = abs(hash(str(folder))) % 10**6 + 1  # vLLM keeps what it loaded under an id
        found.append((peft, LoRARequest(f"version-{version}", identity, str(folder))))
    return found


@group("lora")
def test_adapters(lora_engine, model, adapted, agreement):
    from dataclasses import replace

    from vllm.lora.request import LoRARequest

    (old, old_request), (new, new_request) = adapted
    assert agreement(lora_engine, new, drawn(replace(lora_engine, lora=new_request)), lora=new_request)
    merged = agreement(lora_engine, model, drawn(lora_engine))
    assert merged, merged.explain()

    def explained(trained, request):
        engine = replace(lora_engine, lora=request)
        before = [(p.requires_grad, p.sum().item()) for p in trained.parameters()]
        found = agreement(engine, trained, drawn(engine)).explain()
        assert [(p.requires_grad, p.sum().item()) for p in trained.parameters()] == before
        assert found.names == (["adapter"] if found.causes else []), str(found)
        return str(found)

    assert "the engine computes without the adapter 'default'" in explained(new, None)
    assert "the engine applies the adapter 'version-1', the model here has none" in explained(model, old_request)
    same_id = LoRARequest("version-2", old_request.lora_int_id, new_request.lora_path)
    drawn(replace(lora_engine, lora=old_request))
    assert "the engine's adapter 'version-2' is not the model's 'default'" in explained(new, same_id)
    assert explained(old, old_request).startswith("agrees")
