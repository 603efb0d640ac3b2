from mutants import broken, replaces
from pytest_rlregress.remedies.losses import constant_length_mean


@broken(only="test_constant")
def width_of_the_batch(losses, mask, batch_sequences, max_tokens, ranks=1):
    return constant_length_mean(losses, mask, batch_sequences, mask.shape[1], ranks)


@broken(only="test_nan")
def mask_times_losses(losses, mask, batch_sequences, max_tokens, ranks=1):
    return (losses * mask).sum() * ranks / (batch_sequences * max_tokens)


# As with verl's loss_scale_factor set to the width that the gradient is compared with.
replaces("absent", ".test_drgrpo_divisor_follows_padding.told_no_length")(lambda batch: {"loss_scale_factor": 7})
replaces("changed", "verl.trainer.ppo.core_algos.agg_loss")(
    lambda original, losses, mask, mode: original(losses, mask, "no such mode")
)
