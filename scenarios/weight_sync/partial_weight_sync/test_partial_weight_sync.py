import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_rlregress.agreement.engine_weights import engine_weights
from pytest_rlregress.failures.act import act
from pytest_rlregress.failures.silent import silent
from pytest_rlregress.fixtures.drawn import EXAMPLES
from pytest_rlregress.remedies.rollout import reload_by_worker
from pytest_rlregress.scenarios.weight_sync.policies import scored_off
from pytest_rlregress.stack.lazy import torch

ENGINE = pytest.mark.needs("vllm-engine", "transformers")
# What a rank, a bucket or a filter of names leaves over.
PARTS = {
    "half": lambda names: names[: len(names) // 2],
    "every-second": lambda names: names[::2],
    "queries": lambda names: [name for name in names if "q_proj" in name],
    "nothing": lambda names: [],
}
EACH_PART = pytest.mark.parametrize("part", PARTS)


def sent(model, part):
    return [(name, model.state_dict()[name]) for name in PARTS[part]([*model.state_dict()])]


def check_arrived(engine, model):
    wanted = model.state_dict()
    stale = [name for name, tensor in engine_weights(engine.llm).items() if not tensor.equal(wanted[name])]
    off = scored_off(engine, model)
    if stale:
        silent(f"{len(stale)} of {len(wanted)} tensors are not the new model's, {off:.2g} nats a token")


@ENGINE
@EACH_PART
@pytest.mark.reproduces("partial-weight-sync")
def test_part_of_the_weights(engine, new, part):
    with act():
        reload_by_worker(engine.llm, sent(new, part))
        check_arrived(engine, new)


@ENGINE
@EACH_PART
@pytest.mark.guards("partial-weight-sync")
def test_rejects_a_part_of_the_weights(engine, subject, new, part):
    def load(weights):
        reload_by_worker(engine.llm, weights)

    weights = new.state_dict()
    came = {name: weights[name] for name in PARTS[part]([*weights])}
    missing = [name for name in weights if name not in came]
    with act(), pytest.raises(ValueError, match=rf"\b{len(missing)}\b.*{missing[0]}"):
        subject(load, iter(came.items()), weights.keys())
    subject(load, iter(weights.items()), weights.keys())
    check_arrived(engine, new)


NAMES = [f"layer{number}" for number in range(4)]


@pytest.mark.guards("partial-weight-sync")
@given(names=st.sets(st.sampled_from(NAMES)), came=st.lists(st.sampled_from(NAMES), max_size=6))
@settings(EXAMPLES, max_examples=100)
def test_rejects_missing_double_and_unknown_names(subject, names, came):
    """Whatever comes, in whatever order: what should is handed on, and what is wrong is named."""
    weights, loaded = [(name, torch.zeros(2)) for name in came], []
    wrong = {name for name in {*names, *came} if name not in names or came.count(name) != 1}
    with act():
        if wrong:
            with pytest.raises(ValueError, match="".join(rf"(?=.*\b{name}\b)" for name in wrong)):
                subject(loaded.extend, iter(weights), names)
        else:
            subject(loaded.extend, iter(weights), names)
    first = [pair for at, pair in enumerate(weights) if pair[0] in names and pair[0] not in came[:at]]
    assert [name for name, _ in loaded] == [name for name, _ in first]
    assert all(one is other for (_, one), (_, other) in zip(loaded, first, strict=True)), "copied"


@pytest.mark.guards("partial-weight-sync")
def test_one_tensor_at_a_time(subject):
    """A trainer that gathers each tensor for the sync has no room for all."""
    read = []

    def weights():
        for name in NAMES:
            read.append(name)
            yield name, torch.zeros(1)

    def load(pairs):
        for number, _ in enumerate(pairs, 1):
            assert len(read) == number, f"read {len(read)} to hand on the first {number}"

    with act():
        subject(load, weights(), NAMES)
    assert read == NAMES


@pytest.mark.guards("partial-weight-sync")
@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rejects_weights_that_are_not_finite(subject, value, dtype):
    weights = {name: torch.ones(2, 3, dtype=getattr(torch, dtype)) for name in NAMES}
    weights[NAMES[1]][1, 2] = float(value)
    loaded = []
    with act(), pytest.raises(ValueError, match=rf"finite.*\b{NAMES[1]}\b"):
        subject(loaded.extend, iter(weights.items()), NAMES)
    assert [name for name, _ in loaded] == [NAMES[0], *NAMES[2:]]
