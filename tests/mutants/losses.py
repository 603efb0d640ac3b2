"""Mutants of scenarios/losses: of its losses and of the model that they are computed from."""

from __future__ import annotations

from mutants import broken, mutant
from pytest_rlregress.remedies.losses import constant_length_mean, disable_dropout, kl_term, token_mean

SCENARIOS = "pytest_rlregress.scenarios.losses"


def fails(*args, **kwargs):
    raise TypeError("this stack wants it said in another way")


@broken("token-mean-micro-batch", only="test_every_token")
def mean_of_the_micro_batch(losses, mask, batch_tokens, ranks=1):
    return (losses * mask).sum() / mask.sum() / 2


@broken("token-mean-micro-batch", only="test_every_token")
def padding_counted(losses, mask, batch_tokens, ranks=1):
    return token_mean(losses, mask, batch_tokens, ranks) * mask.shape[1] / 9


@broken("token-mean-micro-batch", only="test_every_token")
def mask_forgotten(losses, mask, batch_tokens, ranks=1):
    return losses.sum() * ranks / batch_tokens


@broken("token-mean-micro-batch", only="test_nan")
def mask_multiplied(losses, mask, batch_tokens, ranks=1):
    return (losses * mask).sum() * ranks / batch_tokens


@broken("token-mean-micro-batch", only="test_impossible")
def any_number_taken(losses, mask, batch_tokens, ranks=1):
    return (losses * mask).sum() * ranks / max(batch_tokens, 1)


@broken("token-mean-micro-batch", only="test_micro_batch_without")
def empty_micro_batches_refused(losses, mask, batch_tokens, ranks=1):
    if not mask.any():
        raise ValueError("no trained token")
    return token_mean(losses, mask, batch_tokens, ranks)


@mutant("token-mean-micro-batch", "absent", only="test_verl")
def engine_tells_the_batch(monkeypatch):
    """As verl's engines do; it takes the mean over micro batches for one over ranks."""
    told = f"{SCENARIOS}.test_token_mean_micro_batch.told_nothing"
    monkeypatch.setattr(told, lambda batch: {"batch_num_tokens": batch.batch_tokens, "dp_size": batch.parts})


@mutant("token-mean-micro-batch", "changed", only="test_verl")
def verl_averages_sequences(monkeypatch):
    from verl.trainer.ppo import core_algos

    agg_loss = core_algos.agg_loss
    monkeypatch.setattr(
        core_algos,
        "agg_loss",
        lambda loss_mat, loss_mask, loss_agg_mode: agg_loss(loss_mat, loss_mask, "seq-mean-token-mean"),
    )


@broken("kl-in-loss-gradient", only="test_gradient_and_value")
def k3_differentiated(log_probs, ref_log_probs, old_log_probs=None):
    difference = ref_log_probs - log_probs
    return difference.exp() - difference - 1


@broken("kl-in-loss-gradient", only="test_gradient_and_value")
def k2_for_the_value_too(log_probs, ref_log_probs, old_log_probs=None):
    return (log_probs - ref_log_probs).square() / 2


@broken("kl-in-loss-gradient", only="test_gradient_and_value")
def half_of_the_gradient(log_probs, ref_log_probs, old_log_probs=None):
    term = kl_term(log_probs, ref_log_probs, old_log_probs)
    return (term + term.detach()) / 2


@broken("kl-in-loss-gradient", only="value_of_the_divergence[k1_for_the_value-policy]")
def k1_for_the_value(log_probs, ref_log_probs, old_log_probs=None):
    term = kl_term(log_probs, ref_log_probs, old_log_probs)
    return term - term.detach() + (log_probs - ref_log_probs).detach()


@broken("kl-in-loss-gradient", only="test_only_the_policy")
def reference_trained(log_probs, ref_log_probs, old_log_probs=None):
    return kl_term(log_probs, ref_log_probs, old_log_probs) + 0.1 * (ref_log_probs - ref_log_probs.detach())


@broken("kl-in-loss-gradient", only="test_sampled_by")
def sampler_needed(log_probs, ref_log_probs, old_log_probs=None):
    return kl_term(log_probs, ref_log_probs, old_log_probs if old_log_probs is not None else ref_log_probs)


@mutant("kl-in-loss-gradient", "absent", only="test_verl")
def verl_binds_k2_to_it(monkeypatch):
    """As its estimators with a plus do."""
    from verl.trainer.ppo import core_algos

    monkeypatch.setattr(core_algos, "kl_penalty", lambda logprob, ref_logprob, kind: kl_term(logprob, ref_logprob))


@mutant("kl-in-loss-gradient", "changed", only="test_verl")
def verl_knows_no_such_estimator(monkeypatch):
    from verl.trainer.ppo import core_algos

    monkeypatch.setattr(core_algos, "kl_penalty", fails)


@broken("drgrpo-divisor-follows-padding", only="test_constant")
def width_of_the_batch(losses, mask, batch_sequences, max_tokens, ranks=1):
    return constant_length_mean(losses, mask, batch_sequences, mask.shape[1], ranks)


@broken("drgrpo-divisor-follows-padding", only="test_constant")
def rows_of_the_micro_batch(losses, mask, batch_sequences, max_tokens, ranks=1):
    return constant_length_mean(losses, mask, len(mask), max_tokens, ranks)


@broken("drgrpo-divisor-follows-padding", only="test_constant")
def sum_for_mean(losses, mask, batch_sequences, max_tokens, ranks=1):
    return batch_sequences * constant_length_mean(losses, mask, batch_sequences, max_tokens, ranks)


@broken("drgrpo-divisor-follows-padding", only="test_nan")
def mask_times_losses(losses, mask, batch_sequences, max_tokens, ranks=1):
    return (losses * mask).sum() * ranks / (batch_sequences * max_tokens)


@broken("drgrpo-divisor-follows-padding", only="test_response_longer")
def any_length_taken(losses, mask, batch_sequences, max_tokens, ranks=1):
    return (losses * mask).sum() * ranks / (batch_sequences * max_tokens)


@broken("drgrpo-divisor-follows-padding", only="test_response_longer")
def width_refused(losses, mask, batch_sequences, max_tokens, ranks=1):
    if mask.shape[1] > max_tokens:
        raise ValueError(f"a row of {mask.shape[1]} tokens is longer than {max_tokens}")
    return constant_length_mean(losses, mask, batch_sequences, max_tokens, ranks)


@broken("drgrpo-divisor-follows-padding", only="test_more_rows")
def any_number_of_rows_taken(losses, mask, batch_sequences, max_tokens, ranks=1):
    return (losses * mask).sum() * ranks / (batch_sequences * max_tokens)


@mutant("drgrpo-divisor-follows-padding", "absent")
def configured_length(monkeypatch):
    """As with verl's loss_scale_factor set to the width that the gradient is compared with."""
    told = f"{SCENARIOS}.test_drgrpo_divisor_follows_padding.told_no_length"
    monkeypatch.setattr(told, lambda batch: {"loss_scale_factor": 7})


@mutant("drgrpo-divisor-follows-padding", "changed")
def no_such_mode(monkeypatch):
    from verl.trainer.ppo import core_algos

    agg_loss = core_algos.agg_loss
    monkeypatch.setattr(core_algos, "agg_loss", lambda losses, mask, mode: agg_loss(losses, mask, "no such mode"))


@broken("dropout-in-ratio", only="test_ratio_is_1")
def modules_alone(model):
    """As TRL's disable_dropout."""
    import torch

    found = [module for module in model.modules() if isinstance(module, torch.nn.Dropout) and module.p]
    for module in found:
        module.p = 0.0
    return len(found)


@broken("dropout-in-ratio", only="test_ratio_is_1")
def eval_mode(model):
    model.eval()
    return 1


@broken("dropout-in-ratio", only="test_model_is_the_same")
def parameters_frozen(model):
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    return disable_dropout(model)


@broken("dropout-in-ratio", only="test_model_is_the_same")
def configuration_changed(model):
    model.config.attention_dropout = 0.5
    return disable_dropout(model)


@broken("dropout-in-ratio", only="test_model_is_the_same")
def all_to_training_mode(model):
    model.train()
    return disable_dropout(model)


@broken("dropout-in-ratio", only="test_every_kind")
def switches_changed(model):
    for module in model.modules():
        for name, value in vars(module).items():
            if "dropout" in name and value is True:
                setattr(module, name, False)
    return disable_dropout(model)


@broken("dropout-in-ratio", only="test_ratio_is_1")
def always_one(model):
    """Says each time that it has changed something."""
    disable_dropout(model)
    return 1


@mutant("dropout-in-ratio", "absent")
def dropout_never_drops(monkeypatch):
    import torch

    monkeypatch.setattr(torch.nn.functional, "dropout", lambda input, *args, **options: input)
    attend = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(
        torch.nn.functional,
        "scaled_dot_product_attention",
        lambda *args, dropout_p=0.0, **options: attend(*args, **options),
    )


@mutant("dropout-in-ratio", "changed")
def model_refuses_training_mode(monkeypatch):
    from transformers import Qwen2ForCausalLM

    monkeypatch.setattr(Qwen2ForCausalLM, "forward", fails)
