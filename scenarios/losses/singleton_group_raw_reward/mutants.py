"""Broken remedies of singleton-group-raw-reward, and stacks that differ."""

from __future__ import annotations

from mutants import broken, mutant
from pytest_rlregress.remedies.losses import check_groups

SCENARIO = "pytest_rlregress.scenarios.losses.singleton_group_raw_reward.test_singleton_group_raw_reward"


@broken(only="test_other_groups")
def unchecked(groups, size):
    from pytest_rlregress.remedies.batch import object_column

    return object_column(groups)


@broken(only="test_groups_of")
def sorted_by_group(groups, size):
    return check_groups(sorted(groups), size)


@mutant("absent")
def id_of_the_prompt(monkeypatch):
    monkeypatch.setattr(
        f"{SCENARIO}.group_ids",
        lambda trajectories: ["a"] * trajectories,
    )


@mutant("changed")
def groups_of_one_refused(monkeypatch):
    """By verl itself, in words of its own."""
    from verl.trainer.ppo import core_algos

    def refuse(rewards, mask, index, **options):
        raise ValueError("group of one")

    monkeypatch.setattr(core_algos, "compute_grpo_outcome_advantage", refuse)
