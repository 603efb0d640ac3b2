"""Broken remedies of kl-in-loss-gradient, and stacks that differ."""

from __future__ import annotations

from mutants import broken, fails, mutant
from pytest_rlregress.remedies.losses import kl_term


@broken(only="test_gradient_and_value")
def k3_differentiated(log_probs, ref_log_probs, old_log_probs=None):
    difference = ref_log_probs - log_probs
    return difference.exp() - difference - 1


@broken(only="value_of_the_divergence[k1_for_the_value-policy]")
def k1_for_the_value(log_probs, ref_log_probs, old_log_probs=None):
    term = kl_term(log_probs, ref_log_probs, old_log_probs)
    return term - term.detach() + (log_probs - ref_log_probs).detach()


@mutant("absent", only="test_verl")
def verl_binds_k2_to_it(monkeypatch):
    """As its estimators with a plus do."""
    from verl.trainer.ppo import core_algos

    monkeypatch.setattr(core_algos, "kl_penalty", lambda logprob, ref_logprob, kind: kl_term(logprob, ref_logprob))


@mutant("changed", only="test_verl")
def verl_knows_no_such_estimator(monkeypatch):
    from verl.trainer.ppo import core_algos

    monkeypatch.setattr(core_algos, "kl_penalty", fails)
