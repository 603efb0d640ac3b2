from mutants import broken, replaces


@broken(only="test_every_token")
def mean_of_the_micro_batch(losses, mask, batch_tokens, ranks=1):
    return (losses * mask).sum() / mask.sum() / 2


@broken(only="test_nan")
def mask_multiplied(losses, mask, batch_tokens, ranks=1):
    return (losses * mask).sum() * ranks / batch_tokens


# As verl's engines do; it takes the mean over micro batches for one over ranks.
replaces("absent", ".test_token_mean_micro_batch.told_nothing", only="test_verl")(
    lambda batch: {"batch_num_tokens": batch.batch_tokens, "dp_size": batch.parts}
)
replaces("changed", "verl.trainer.ppo.core_algos.agg_loss", only="test_verl")(
    lambda original, loss_mat, loss_mask, loss_agg_mode: original(loss_mat, loss_mask, "seq-mean-token-mean")
)
