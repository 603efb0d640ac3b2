import copy

import pytest

from pytest_rlregress.failures.act import act
from pytest_rlregress.failures.silent import silent
from pytest_rlregress.remedies.rollout import reload_by_worker
from pytest_rlregress.scenarios.weight_sync.nan_step_exclamation_marks.bad_gradients import backward
from pytest_rlregress.scenarios.weight_sync.policies import SHORT, scored_off, tolerance
from pytest_rlregress.stack.lazy import torch

ENGINE = pytest.mark.needs("vllm-engine", "transformers")


def step(model):
    """The failing act, as trainers write it."""
    optimizer = torch.optim.AdamW(model.parameters(), 1e-6)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


@pytest.mark.reproduces("nan-step-exclamation-marks")
@pytest.mark.parametrize("source", ["one-gradient", "masked-token"])
def test_step(old, source):
    backward(old, source)
    with act():
        step(old)
    weights = [weight for parameter in old.parameters() for weight in parameter.flatten().tolist()]
    lost = sum(weight != weight for weight in weights) / len(weights)
    if lost != 0:
        silent(f"after the step {lost:.0%} of the weights are NaN")


@pytest.fixture
def emptied(engine):
    """The engine, whose cache is set to zero afterwards: NaN in a block of it outlasts new weights."""

    def empty(model):
        for layer in model.modules():
            cache = getattr(layer, "kv_cache", None)
            for tensor in cache if isinstance(cache, (list, tuple)) else [cache]:
                if hasattr(tensor, "zero_"):
                    tensor.zero_()

    yield engine
    engine.llm.apply_model(empty)
    engine.llm.reset_prefix_cache()


@ENGINE
@pytest.mark.reproduces("nan-step-exclamation-marks")
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rollout(emptied, old, temperature):
    backward(old, "one-gradient")
    with act():
        step(old)
        reload_by_worker(emptied.llm, old.state_dict().items())
        ids = [one.ids for one in emptied.generate(SHORT, 8, temperature=temperature, seed=0, ignore_eos=True)]
    if ids == [[0] * 8] * 2:
        silent("after the step every token that is sampled is token 0")


@ENGINE
@pytest.mark.guards("nan-step-exclamation-marks")
def test_engine_keeps_its_policy(emptied, subject, old):
    before = copy.deepcopy(old)
    backward(old, "masked-token")
    with act():
        subject(torch.optim.AdamW(old.parameters(), 1e-3), 1.0)
    reload_by_worker(emptied.llm, old.state_dict().items())
    off = scored_off(emptied, before)
    assert off <= tolerance(before), f"{off:.2g} nats a token from the policy before the step"


def trained():
    """Two equal small models with optimizers that have made a step."""
    made = []
    for _ in range(2):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4))
        steps = torch.optim.AdamW(model.parameters(), 1e-3)
        give_gradients(model)
        steps.step()
        steps.zero_grad()
        made.append((model, steps))
    return made


def give_gradients(model, bad=None):
    model(torch.linspace(-1, 1, 12).view(2, 6)).square().sum().backward()
    if bad is not None:
        model[0].weight.grad[3, 1] = bad


def state(model, optimizer):
    tensors = [*model.state_dict().values()]
    for kept in optimizer.state_dict()["state"].values():
        tensors += [kept[key] for key in sorted(kept)]
    return [copy.deepcopy(tensor) for tensor in tensors]


def equal(one, other):
    return all(torch.equal(torch.as_tensor(a), torch.as_tensor(b)) for a, b in zip(one, other, strict=True))


@pytest.mark.guards("nan-step-exclamation-marks")
@pytest.mark.parametrize("max_norm", [1e-3, 1e3])
def test_a_good_step_is_a_clipped_step(subject, max_norm):
    (model, mine), (twin, its) = trained()
    for one in (model, twin):
        give_gradients(one)
    expected = torch.nn.utils.clip_grad_norm_(twin.parameters(), max_norm).item()
    its.step()
    with act():
        assert subject(mine, max_norm) == expected, "not the norm before clipping"
    assert equal(state(model, mine), state(twin, its))
    assert not any(parameter.grad is not None and parameter.grad.any() for parameter in model.parameters())


@pytest.mark.guards("nan-step-exclamation-marks")
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), 3e38])
def test_a_bad_gradient_changes_nothing(subject, bad):
    """3e38 is finite, its square is not."""
    (model, mine), (twin, its) = trained()
    before = state(model, mine)
    give_gradients(model, bad)
    with act():
        assert not abs(subject(mine, 1.0)) < float("inf"), "the norm that was not finite is not returned"
    assert equal(state(model, mine), before), "weights or the optimizer's state changed"
    for one, steps in ((model, mine), (twin, its)):
        give_gradients(one)
        subject(steps, 1.0)
    assert equal(state(model, mine), state(twin, its)), "the next step is not as if the bad one had not been"
