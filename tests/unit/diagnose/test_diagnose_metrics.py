"""Signs of failures in what trainers write each step: real runs, sound and broken, and made series."""

from __future__ import annotations

import math
import random

import pytest
from installed import TESTS

from pytest_rlregress.commands.diagnose import metrics, signs
from pytest_rlregress.commands.diagnose.metrics import Run
from pytest_rlregress.failures import catalogue

RECORDED = TESTS / "metrics"
NAN = math.nan

#: What record_runs.py recorded -> the signs that must be found in it, and no other.
REAL = {
    "trl-sound.json": [],
    "trl-sound.log": [],
    "trl-sound.tfevents": [],
    "trl-sound-transformers.json": [],  # with a warmup
    "trl-sound-two-updates.json": [],  # every second step is off-policy, and clips
    "verl-sound.jsonl": [],
    "verl-sound.log": [],
    "verl-sound-one-update.jsonl": [],
    "verl-sound-one-update.log": [],
    "trl-no-sync.json": ["growing gap"],
    "trl-one-sync.json": ["growing gap"],
    "trl-one-sync-resumed.json": ["growing gap"],  # its history has the first run's
    "trl-one-sync-resumed.tfevents": ["growing gap"],
    "verl-broken-syncs.jsonl": ["growing gap"],
    "trl-temperature.json": ["gap from the first step"],
    "trl-zero-reward.json": ["reward of 0"],
    "verl-zero-reward.jsonl": ["reward of 0"],
    "verl-nan-reward.jsonl": ["reward that isn't a number"],  # as logged: null
    "trl-equal-rewards.json": ["equal rewards"],
    "trl-one-seed.json": ["no spread in any group"],
    "trl-nan-gradient.json": ["gradient that is not finite"],
    "trl-dropout.json": ["clipped on the policy that sampled"],
    "trl-never-ends.json": ["all at the limit"],
}


def read(path):
    if path.suffix == ".tfevents":
        pytest.importorskip("tensorboard")
    if runs := metrics.read_file(path):
        return runs[0]
    run = Run(str(path))
    run.feed(path.read_bytes())
    return run


def test_every_recorded_run_is_judged():
    assert {path.name for path in RECORDED.iterdir() if path.suffix not in (".py", "")} == REAL.keys()


@pytest.mark.parametrize("name", REAL)
def test_finds_the_signs_of_real_runs(name):
    run = read(RECORDED / name)
    assert len(run.steps) > 3
    assert [one.sign for one in signs.find([run])] == REAL[name]


def test_an_update_a_step_is_read_from_verls_console():
    """Where it is known, clipping in the first step is judged: it is 0 in a sound run, and would be a sign."""
    one, two = (read(RECORDED / f"verl-{name}.log") for name in ("sound-one-update", "sound"))
    assert one.get("clip fraction").values[0] == 0
    assert two.get("clip fraction").values[0] > 0.05
    [first] = two.settings["ppo_mini_batch_size"]
    two.settings["train_batch_size"] = {first}
    found = [one.sign for one in signs.find([two])]
    assert found == ["divergence before any update", "clipped on the policy that sampled"]


def test_logs_of_different_runs_stay_apart():
    logs = [read(RECORDED / name) for name in ("trl-no-sync.json", "trl-sound.json", "trl-temperature.json")]
    assert [one.sign for one in signs.find(logs)] == ["growing gap", "gap from the first step"]


def test_merges_the_same_sign_from_two_logs_of_a_run():
    logs = [read(RECORDED / "trl-no-sync.json") for _ in range(2)]
    logs[1].log = "again.log"
    [found] = signs.find(logs)
    assert found.log == f"{logs[0].log}, again.log"


def run_of(start=1, settings=None, **metrics):
    """A run with the given values at each step; names have dots for slashes."""
    run = Run("made.log", settings=settings or {})
    for step, values in enumerate(zip(*metrics.values(), strict=True), start):
        row = dict(zip((name.replace("__", "/") for name in metrics), values, strict=True))
        run.add(step, {name: value for name, value in row.items() if value is not None})
    return run


TRL_GAP = "sampling__sampling_logp_difference__mean"
noise = random.Random(0)
#: As bfloat16 has it, with outliers and a slow drift.
BF16 = [0.01 * (1 + step / 200) * noise.uniform(0.7, 1.4) * (4 if step % 50 == 7 else 1) for step in range(300)]
VERL_FLAT = {f"critic__score__{end}": [0.0] * 12 for end in ("mean", "max", "min")}
ON_POLICY = {"train_batch_size": {8.0}, "ppo_mini_batch_size": {8.0}, "ppo_epochs": {1.0}}

BROKEN = {
    "0 from the start, verl": (run_of(**VERL_FLAT), "reward of 0", "possible"),
    "0 in the middle of a run": (run_of(501, **VERL_FLAT), "reward of 0", "possible"),
    "0, its spread not logged": (run_of(reward=[0.0] * 10), "reward of 0", "possible"),
    "the same for all": (run_of(reward=[-1.0] * 10, reward_std=[0.0] * 10), "equal rewards", "possible"),
    "advantages lost": (
        run_of(
            critic__score__mean=[0.1 * n for n in range(12)],
            critic__score__max=[1.0] * 12,
            critic__score__min=[0.0] * 12,
            critic__advantages__max=[0.0] * 12,
            critic__advantages__min=[0.0] * 12,
        ),
        "advantages of 0",
        "possible",
    ),
    "groups of one": (
        run_of(
            critic__rewards__max=[1.0, 0.8] * 5,
            critic__rewards__min=[0.0, 0.1] * 5,
            critic__advantages__max=[0.999999, 0.799999] * 5,
            critic__advantages__min=[0.0, 0.1] * 5,
        ),
        "advantage = reward",
        "possible",
    ),
    "NaN, then the limit": (
        run_of(
            actor__grad_norm=[0.1, 0.2, NAN, NAN, NAN],
            response_length__min=[3, 5, 4, 64, 64],
            response_length__max=[60, 64, 64, 64, 64],
        ),
        "gradient that is not finite",
        "certain",
    ),
    "NaN, lengths were never different": (
        run_of(grad_norm=[0.1, NAN, NAN, NAN], completions__min_length=[8.0] * 4, completions__max_length=[8.0] * 4),
        "gradient that is not finite",
        "possible",
    ),
    "NaN, the policy's output too": (
        run_of(actor__grad_norm=[NAN], actor__entropy=[NAN]),
        "gradient that is not finite",
        "possible",
    ),
    "NaN to the end": (run_of(grad_norm=[0.1, NAN, NAN, NAN]), "gradient that is not finite", "possible"),
    "NaN reward": (
        run_of(critic__score__mean=[0.5, NAN, 0.4], critic__advantages__mean=[0.0, NAN, 0.0]),
        "reward that isn't a number",
        "certain",
    ),
    "growing in bfloat16": (run_of(**{TRL_GAP: [0.01 * 1.3**n for n in range(20)]}), "growing gap", "possible"),
    "growing, with a dip": (
        run_of(**{TRL_GAP: [0.01, 0.06, 0.1, 0.2, 0.005, 0.3, 0.4, 0.5]}),
        "growing gap",
        "possible",
    ),
    "growing, of probabilities": (
        run_of(training__rollout_probs_diff_mean=[0.004, 0.1, 0.4, 0.8, 0.81]),
        "growing gap",
        "possible",
    ),
    "the first gap of two grows": (
        run_of(
            rollout_corr__log_ppl_abs_diff=[0.001] * 5, training__rollout_probs_diff_mean=[0.004, 0.1, 0.4, 0.8, 0.81]
        ),
        "growing gap",
        "possible",
    ),
    "constant": (run_of(501, **{TRL_GAP: [0.2, 0.25, 0.19, 0.22]}), "gap from the first step", "possible"),
    "no tool call, verl": (run_of(tool_call_counts__max=[0.0] * 10), "no tool call", "possible"),
    "no tool call, TRL": (run_of(tools__call_frequency=[0.0] * 10), "no tool call", "possible"),
    "clipped, TRL": (run_of(clip_ratio__region_mean=[0.05, 0.1]), "clipped on the policy that sampled", "possible"),
    "clipped, verl with an update a step": (
        run_of(settings=ON_POLICY, actor__pg_clipfrac=[0.05, 0.0]),
        "clipped on the policy that sampled",
        "possible",
    ),
    "ended, held for cut short": (
        run_of(
            completions__clipped_ratio=[1.0] * 10,
            completions__min_length=[3.0 + n for n in range(10)],
            completions__max_length=[64.0] * 10,
        ),
        "all cut short, of several lengths",
        "possible",
    ),
    "a sequence's ratio, tokens agree": (
        run_of(sampling__importance_sampling_ratio__mean=[0.5] * 6, **{TRL_GAP: [0.002] * 6}),
        "importance ratio far from 1",
        "possible",
    ),
    "another policy than itself": (
        run_of(settings=ON_POLICY, actor__ppo_kl=[0.2] * 6),
        "divergence before any update",
        "possible",
    ),
    "at the limit, verl": (run_of(response_length__clip_ratio=[1.0] * 10), "all at the limit", "possible"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_finds_each_sign_in_a_broken_run(name):
    run, sign, confidence = BROKEN[name]
    [found] = signs.find([run])
    assert (found.sign, found.is_certain, found.log) == (sign, confidence == "certain", "made.log")


def test_each_sign_is_tried_and_points_to_documented_failures():
    found = [one for run, *_ in BROKEN.values() for one in signs.find([run])]
    texts = signs.TEXTS
    assert {one.sign for one in found} | {sign for named in REAL.values() for sign in named} == set(texts)
    documented = catalogue.load([catalogue.SHIPPED])
    assert {name for text in texts.values() for name in text["ids"]} <= set(documented)
    assert all(set(text) == {"ids", "means", "confirm"} for text in texts.values())
    assert all(len(texts[one.sign]["ids"]) == 1 for one in found if one.is_certain)


SOUND = {
    "nothing": run_of(),
    "NaN once, the policy's output is sound": run_of(grad_norm=[NAN], entropy=[0.5]),
    "NaN, the policy's output too, and over": run_of(grad_norm=[0.1, NAN, 0.1], entropy=[0.5, NAN, 0.5]),
    "rewards that come late": run_of(reward=[0.0] * 30 + [0.01], reward_std=[0.0] * 30 + [0.1]),
    "the first steps of a hard task": run_of(reward=[0.0] * 9, reward_std=[0.0] * 9),
    "a mean of 0 with spread": run_of(reward=[0.0] * 12, reward_std=[1.0] * 12),
    "rewards of -1 and 1": run_of(
        critic__score__mean=[0.0] * 12, critic__score__max=[1.0] * 12, critic__score__min=[-1.0] * 12
    ),
    "rewards not defined": run_of(reward=[NAN] * 12, reward_std=[NAN] * 12),
    "a group or two without spread": run_of(reward=[0.5] * 12, frac_reward_zero_std=[1.0] * 11 + [0.9]),
    "solved in the end": run_of(reward=[0.1, *[1.0] * 20], frac_reward_zero_std=[0.5, *[1.0] * 20]),
    "spread logged, no reward": run_of(frac_reward_zero_std=[1.0] * 12),
    "all aborted in a step": run_of(
        critic__score__mean=[0.5, NAN, 0.4],
        critic__advantages__mean=[0.0, NAN, 0.0],
        response__aborted_ratio=[0.0, 1.0, 0.0],
    ),
    "one reward not defined, advantages are": run_of(
        critic__score__mean=[0.5, NAN, 0.4], critic__advantages__mean=[0.0, 0.0, 0.0]
    ),
    "float16 looks for its scale": run_of(grad_norm=[math.inf, NAN, NAN, 0.3, 0.2], reward_std=[0.1] * 5),
    "a step that was skipped": run_of(grad_norm=[0.3, 0.2, NAN, 0.3, 0.2, NAN, 0.1]),
    "a norm that was never a number": run_of(grad_norm=[NAN] * 20, reward_std=[0.2] * 20),
    "bfloat16": run_of(**{TRL_GAP: BF16}),
    "bfloat16, from the middle on": run_of(500, **{TRL_GAP: BF16[200:]}),
    "three decimals": run_of(training__rollout_probs_diff_mean=[0.0, 0.004, 0.003, 0.005, 0.004, 0.003]),
    "outliers": run_of(**{TRL_GAP: [0.01, 0.01, 0.2, 0.01, 0.01, 0.3, 0.01, 0.01, 0.01]}),
    "an outlier at first": run_of(**{TRL_GAP: [0.2, 0.01, 0.02, 0.01, 0.01]}),
    "too few steps": run_of(**{TRL_GAP: [0.3, 0.3]}),
    "several updates a step": run_of(
        settings=ON_POLICY | {"ppo_mini_batch_size": {4.0}}, actor__pg_clipfrac=[0.09, 0.03]
    ),
    "a critic with other batches": run_of(
        settings=ON_POLICY | {"ppo_mini_batch_size": {4.0, 8.0}}, actor__pg_clipfrac=[0.09, 0.03]
    ),
    "settings not known": run_of(actor__pg_clipfrac=[0.09, 0.03]),
    "a mean over ten steps": run_of(10, clip_ratio__region_mean=[0.05, 0.1]),
    "clipped later": run_of(clip_ratio__region_mean=[0.0, 0.4, 0.1]),
    "one completion ended": run_of(completions__clipped_ratio=[1.0] * 20 + [0.99]),
    "advantages of groups": run_of(
        critic__rewards__max=[1.0] * 10,
        critic__rewards__min=[0.0] * 10,
        critic__advantages__max=[1.0, 0.9, 1.3, 1.2, 1.0] * 2,
        critic__advantages__min=[-0.7] * 10,
    ),
}


@pytest.mark.parametrize("name", SOUND)
def test_finds_no_sign_in_a_sound_run(name):
    assert signs.find([SOUND[name]]) == []


def test_keeps_a_bounded_number_of_steps():
    run = Run("long.log")
    for number in range(1, 30_000):
        run.feed(b"step:%d - critic/score/mean:0.5\n" % number)
    assert (len(run.steps), len(run.get("reward"))) == (20_000, 20_000)


def test_reads_no_more_of_a_log_that_goes_back_and_forth():
    run = Run("long.log")
    run.feed(b"step:1 - critic/score/mean:0.5\nstep:2 - critic/score/mean:0.5\n" * 10_000)
    run.feed(b"step:3 - critic/score/mean:0.5\n")
    assert list(run.steps) == [1, 2]
