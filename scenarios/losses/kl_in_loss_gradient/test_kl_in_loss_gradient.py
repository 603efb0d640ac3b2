import pytest

from pytest_rlregress.failures.act import act
from pytest_rlregress.failures.silent import silent
from pytest_rlregress.scenarios.losses import trainers
from pytest_rlregress.stack.lazy import torch

TOKENS = 8
TIMES_FLOOR = 8  # how many times the measured rounding two gradients may be apart


class Policies:
    """A policy over eight tokens, a reference and the policy that sampled, in float64: every expectation is a sum."""

    def __init__(self):
        draw = torch.Generator().manual_seed(0)
        logits, reference, sampler = torch.randn(3, TOKENS, generator=draw, dtype=torch.float64)
        self.logits = logits.requires_grad_()
        self.log_probs = self.logits.log_softmax(-1)
        self.reference = reference.log_softmax(-1)
        self.sampler = (self.logits.detach() + 0.3 * sampler).log_softmax(-1)
        self.divergence = (self.log_probs.exp() * (self.log_probs - self.reference)).sum()
        self.gradient = self.gradient_of(self.divergence)
        probs, ratio = self.log_probs.detach().exp(), self.log_probs.detach() - self.reference
        by_hand = probs * (ratio - (probs * ratio).sum())
        #: Rounding: the divergence's gradient by torch and by hand, one float64 step at least.
        self.floor = max(self.off(by_hand), torch.finfo(torch.float64).eps)

    def gradient_of(self, value):
        return torch.autograd.grad(value, self.logits, retain_graph=True)[0]

    def expected(self, estimate, sampled_by):
        """The gradient that sampling from a policy gives in the mean, of an estimate for each token."""
        return self.gradient_of((sampled_by.detach().exp() * estimate).sum())

    def off(self, gradient):
        return ((gradient - self.gradient).norm() / self.gradient.norm()).item()


@pytest.fixture
def policies():
    return Policies()


def check_gradient(policies, gradient, estimator):
    off = policies.off(gradient)
    if not off <= TIMES_FLOOR * policies.floor:
        silent(f"the expected gradient of {estimator} is {off:.0%} off that of the KL divergence")


@pytest.mark.reproduces("kl-in-loss-gradient")
@pytest.mark.parametrize("estimator", ["kl", "low_var_kl"])
def test_verl_kl_penalty(policies, estimator):
    with act():
        estimate = trainers.core_algos().kl_penalty(policies.log_probs, policies.reference, estimator)
        check_gradient(policies, policies.expected(estimate, policies.log_probs), estimator)


@pytest.mark.reproduces("kl-in-loss-gradient")
def test_trl_kl_without_its_correction(policies, tiny_qwen, tmp_path):
    """With advantages of 0 the loss is the divergence's estimate alone, over a row for each token."""
    from dataclasses import replace

    from pytest_rlregress.agreement.policy_batch import drawn_batch

    settings = {"beta": 1.0, "use_bias_correction_kl": False, "loss_type": "bnpo"}
    loss = trainers.trl_grpo_loss(tiny_qwen, tmp_path, **settings)
    batch = drawn_batch([1] * TOKENS)
    log_probs, reference = (
        torch.nn.functional.pad(one.detach()[:, None], (0, 1)) for one in (policies.log_probs, policies.reference)
    )
    log_probs.requires_grad_()
    given = {"log_probs": log_probs, "old_log_probs": log_probs.detach(), "ref_log_probs": reference}
    with act():
        mean = loss(replace(batch, **given, advantages=0 * batch.advantages))
        each = TOKENS * torch.autograd.grad(mean, log_probs)[0][:, 0]
        check_gradient(policies, policies.expected(each * policies.log_probs, policies.log_probs), "TRL's KL")


@pytest.mark.guards("kl-in-loss-gradient")
@pytest.mark.parametrize("sampled_by", ["policy", "itself", "other"])
def test_gradient_and_value_of_the_divergence(policies, subject, sampled_by):
    sampler = policies.sampler if sampled_by == "other" else policies.log_probs.detach()
    with act():
        term = subject(policies.log_probs, policies.reference, *([] if sampled_by == "itself" else [sampler]))
    off = policies.off(policies.expected(term, sampler))
    assert off <= TIMES_FLOOR * policies.floor, f"the expected gradient is {off:.3g} off"
    value, wanted = (sampler.exp() * term).sum().item(), policies.divergence.item()
    assert value == pytest.approx(wanted, rel=TIMES_FLOOR * policies.floor, abs=0)
    assert (term >= 0).all()


@pytest.mark.guards("kl-in-loss-gradient")
def test_only_the_policy_is_trained(subject):
    numbers = -torch.rand(3, 2, 4, generator=torch.Generator().manual_seed(0))
    log_probs, reference, sampler = (one.clone().requires_grad_() for one in numbers)
    with act():
        term = subject(log_probs, reference, sampler)
    assert (term.shape, term.dtype) == (log_probs.shape, log_probs.dtype)
    gradients = torch.autograd.grad(term.sum(), (log_probs, reference, sampler), allow_unused=True)
    assert [one is not None and bool(one.any()) for one in gradients] == [True, False, False]
    same = subject(log_probs, log_probs.detach(), sampler)
    assert not same.any()
    assert not torch.autograd.grad(same.sum(), log_probs)[0].any()
