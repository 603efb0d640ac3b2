from mutants import broken, fails, replaces
from pytest_rlregress.remedies.losses import kl_term


@broken(only="test_gradient_and_value")
def k3_differentiated(log_probs, ref_log_probs, old_log_probs=None):
    difference = ref_log_probs - log_probs
    return difference.exp() - difference - 1


@broken(only="value_of_the_divergence[k1_for_the_value-policy]")
def k1_for_the_value(log_probs, ref_log_probs, old_log_probs=None):
    term = kl_term(log_probs, ref_log_probs, old_log_probs)
    return term - term.detach() + (log_probs - ref_log_probs).detach()


# As its estimators with a plus do.
replaces("absent", "verl.trainer.ppo.core_algos.kl_penalty", only="test_verl")(
    lambda logprob, ref_logprob, kind: kl_term(logprob, ref_logprob)
)
replaces("changed", "verl.trainer.ppo.core_algos.kl_penalty", only="test_verl")(fails)
