import pytest

from pytest_rlregress.agreement.logprobs import mean_gap
from pytest_rlregress.failures.act import act
from pytest_rlregress.failures.silent import silent
from pytest_rlregress.scenarios.sampling.rollouts import (
    PROCESSED,
    RAW,
    sample,
    tolerance,
    trainer_logits,
    trainer_logprobs,
)
from pytest_rlregress.stack.lazy import torch


@RAW
@pytest.mark.reproduces("sampling-logprobs-temperature")
@pytest.mark.parametrize("temperature", [0.5, 1.5])
def test_by_default(raw_engine, trainer, temperature):
    with act():
        completions = sample(raw_engine, temperature=temperature)
    given, allowed = [one.logprobs for one in completions], tolerance(trainer, completions, temperature)
    off = mean_gap(given, trainer_logprobs(trainer, completions, temperature))
    if not off < allowed:
        at_1 = mean_gap(given, trainer_logprobs(trainer, completions, 1.0))
        assert at_1 < allowed, "log-probabilities of another temperature than the one asked for, and not of 1"
        silent(
            f"sampled at temperature {temperature}, log-probabilities of temperature 1: {off:.3f} nats a "
            "token from the trainer's"
        )


@PROCESSED
@pytest.mark.guards("sampling-logprobs-temperature")
@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.5])
def test_processed(processed_engine, trainer, subject, temperature):
    """The engine says of its tokens what the trainer's function says of them: the importance ratio is 1."""
    completions = sample(processed_engine, temperature=temperature)
    with act():
        found = [subject(logits, ids, temperature).tolist() for logits, ids in trainer_logits(trainer, completions)]
    off = mean_gap([one.logprobs for one in completions], found)
    assert off < tolerance(trainer, completions, temperature), (
        f"sampled at temperature {temperature}, engine and trainer are {off:.2g} nats a token apart"
    )


@pytest.fixture
def batch():
    """Logits ``[2, 3, 1024]`` in bfloat16 and ids."""
    generator = torch.Generator().manual_seed(0)
    logits = 4 * torch.randn(2, 3, 1024, generator=generator)
    return logits.bfloat16(), torch.randint(1024, (2, 3), generator=generator)


@pytest.mark.guards("sampling-logprobs-temperature")
@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.5])
def test_logprobs_and_gradient_as_in_float64(subject, batch, temperature):
    logits, ids = batch
    before = logits.clone()
    logits.requires_grad_()
    found = subject(logits, ids.int(), temperature)
    exact = (before.double() / temperature).log_softmax(-1)
    wanted = exact.gather(-1, ids[..., None])[..., 0]
    assert (found.dtype, found.shape) == (torch.float32, ids.shape)
    # What float32 costs, measured on the same numbers; bfloat16 would cost a thousand times that.
    rounding = ((before.float() / temperature).log_softmax(-1).double() - exact).abs().max()
    assert (found.double() - wanted).abs().max() <= 4 * rounding
    found.sum().backward()
    # d log p(id) / d logit, rounded to the logits' bfloat16: eight bits.
    gradient = (torch.nn.functional.one_hot(ids, 1024) - exact.exp()) / temperature
    assert torch.allclose(logits.grad.double(), gradient, rtol=2**-7, atol=1e-7)
    assert logits.detach().equal(before), "the caller's logits were changed"


@pytest.mark.guards("sampling-logprobs-temperature")
@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan")])
def test_rejects_a_temperature_that_is_not_positive(subject, batch, temperature):
    with pytest.raises(ValueError, match=str(temperature)):
        subject(*batch, temperature)


@pytest.mark.guards("sampling-logprobs-temperature")
def test_rejects_shapes_that_do_not_fit(subject, batch):
    logits, ids = batch
    for other in (ids[:, :-1], ids[:1], ids[0]):
        with pytest.raises(ValueError, match="shape"):
            subject(logits, other, 1.0)
