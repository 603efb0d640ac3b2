"""What each trainer calls a metric."""

from __future__ import annotations

#: Metric -> the names of trainers for it, the most telling first. The first that a run has is the one that is judged.
#: verl's are those of ``trainer/ppo/metric_utils.py`` and ``rollout_corr_helper.py``, TRL's of ``grpo_trainer.py``.
NAMES: dict[str, tuple[str, ...]] = {
    # verl's score is the judge's, its reward what a KL penalty left of it.
    "reward": ("critic/score/mean", "critic/rewards/mean", "reward"),
    "highest reward": ("critic/score/max", "critic/rewards/max"),
    "lowest reward": ("critic/score/min", "critic/rewards/min"),
    "spread of rewards": ("reward_std",),
    "groups without spread": ("frac_reward_zero_std",),
    "mean advantage": ("critic/advantages/mean",),
    "highest advantage": ("critic/advantages/max",),
    "lowest advantage": ("critic/advantages/min",),
    "aborted": ("response/aborted_ratio",),
    "gradient norm": ("actor/grad_norm", "grad_norm"),
    "entropy": ("actor/entropy", "actor/entropy_loss", "entropy"),
    "clip fraction": ("actor/pg_clipfrac", "clip_ratio/region_mean", "clip_ratio"),
    "cut short": ("response_length/clip_ratio", "completions/clipped_ratio"),
    "shortest completion": ("response_length/min", "completions/min_length"),
    "longest completion": ("response_length/max", "completions/max_length"),
    # Between the engine's log-probabilities and the trainer's. The last names are slime's and those of verl 0.6.
    "gap": (
        "sampling/sampling_logp_difference/mean",
        "training/rollout_probs_diff_mean",
        "rollout_corr/log_ppl_abs_diff",
        "rollout_corr/k3_kl",
        "train_rollout_logprob_abs_diff",
        "mismatch/mismatch_log_ppl_abs_diff",
        "mismatch/mismatch_k3_kl",
    ),
}
#: From what mean on a gap is more than rounding in bfloat16. Sound runs have some 0.01 nats a token, 0.004 of
#: probability, 0.001 of KL; where the sign of a token's difference does not matter, as in a sequence's mean, less.
LARGE_GAP = {
    "sampling/sampling_logp_difference/mean": 0.05,
    "train_rollout_logprob_abs_diff": 0.05,
    "training/rollout_probs_diff_mean": 0.03,
    "rollout_corr/log_ppl_abs_diff": 0.03,
    "mismatch/mismatch_log_ppl_abs_diff": 0.03,
    "rollout_corr/k3_kl": 0.02,
    "mismatch/mismatch_k3_kl": 0.02,
}
#: Names of TRL's, whose step is one update: at step 1 the policy is still the one that sampled.
UPDATES_ONCE_A_STEP = ("clip_ratio/region_mean", "clip_ratio")
#: Where wandb and TensorBoard have a step, the trainer's before the logger's.
STEPS = ("global_step", "training/global_step", "step", "_step")

_KNOWN = {name for names in NAMES.values() for name in names}


def known(printed: str) -> str | None:
    """Return a metric's name without the ``train/`` that transformers puts before it, if it is one that is judged."""
    name = printed.removeprefix("train/")
    return name if name in _KNOWN else None
