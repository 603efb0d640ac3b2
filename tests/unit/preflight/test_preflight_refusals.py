"""``rlregress preflight``: values that verl and TRL refuses together, and that what it proposes is taken."""

from __future__ import annotations

import pytest
from installed import TESTS

from pytest_rlregress.commands.preflight.config import PlannedRun

GSPO, GRPO = TESTS / "configs" / "verl-h200-gspo-3b.yaml", TESTS / "configs" / "trl-h100-grpo-1.5b.yaml"
ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
FIXED = f"{ACTOR}.use_dynamic_bsz=false"
MICRO, LOG_PROB = f"{ACTOR}.ppo_micro_batch_size", f"{ROLLOUT}.log_prob_micro_batch_size"
PADDING, SP = "actor_rollout_ref.model.use_remove_padding", f"{ACTOR}.ulysses_sequence_parallel_size=2"
FILTER, POOL = "algorithm.filter_groups", "reward.reward_model.enable_resource_pool"
RESUME = "trainer.resume_from_path"
EIGHT = "trainer.n_gpus_per_node=8"
COLOCATE = ["use_vllm=true", "vllm_mode=colocate"]
EVALUATED = ["eval_strategy=steps", "num_generations=8"]
REFUSED = {
    "no size": (GSPO, [FIXED, f"{MICRO}_per_gpu=null"], f"{MICRO}_per_gpu"),
    "two sizes": (GSPO, [FIXED, f"{MICRO}_per_gpu=4", f"{MICRO}=8"], MICRO),
    "no size of log-probabilities": (
        GSPO,
        [FIXED, f"{MICRO}_per_gpu=4", f"{LOG_PROB}_per_gpu=null"],
        f"{LOG_PROB}_per_gpu",
    ),
    "padding": (GSPO, [SP, f"{PADDING}=false", EIGHT], PADDING),
    "no metric": (GSPO, [f"{FILTER}.enable=true", f"{FILTER}.metric=null"], f"{FILTER}.metric"),
    "late metric": (
        GSPO,
        [f"{FILTER}.enable=true", f"{FILTER}.metric=acc", "reward.reward_model.enable=true", f"{POOL}=false"],
        POOL,
    ),
    "no step": (GSPO, ["trainer.resume_mode=resume_path", f"{RESUME}=/a/b"], RESUME),
    "no path": (GSPO, ["trainer.resume_mode=resume_path", f"{RESUME}=null"], "trainer.resume_mode"),
    "greedy": (GSPO, [f"{ROLLOUT}.val_kwargs.do_sample=true", f"{ROLLOUT}.temperature=0"], f"{ROLLOUT}.temperature"),
    "mode": (GSPO, [f"{ROLLOUT}.mode=sync"], f"{ROLLOUT}.mode"),
    "evaluation": (
        GRPO,
        [*EVALUATED, "per_device_eval_batch_size=3", "accelerate.num_processes=2"],
        "per_device_eval_batch_size",
    ),
    "engines": (
        GRPO,
        [*COLOCATE, "vllm_tensor_parallel_size=2", "accelerate.num_processes=3"],
        "vllm_tensor_parallel_size",
    ),
    "no reference": (GRPO, ["sync_ref_model=true", "beta=0.0"], "sync_ref_model"),
    "adapter": (GRPO, ["sync_ref_model=true", "beta=0.1", "use_peft=true"], "sync_ref_model"),
}
TAKEN = {
    "tokens are counted": (GSPO, [f"{MICRO}_per_gpu=null", f"{ACTOR}.use_dynamic_bsz=true"]),
    "no padding": (GSPO, [SP, f"{PADDING}=true", EIGHT]),
    "verl's own metric": (GSPO, [f"{FILTER}.enable=true"]),
    "metric": (GSPO, [f"{FILTER}.enable=true", f"{FILTER}.metric=reward"]),
    "older trainer": (GSPO, [f"{FILTER}.enable=true", f"{FILTER}.metric=null", "trainer.use_v1=false"]),
    "step": (GSPO, ["trainer.resume_mode=resume_path", f"{RESUME}=/a/global_step_3"]),
    "auto": (GSPO, ["trainer.resume_mode=auto", f"{RESUME}=/a"]),
    "no evaluation": (GRPO, ["per_device_eval_batch_size=3", "accelerate.num_processes=2"]),
    "whole groups": (GRPO, [*EVALUATED, "per_device_eval_batch_size=4", "accelerate.num_processes=2"]),
    "fewer generations": (
        GRPO,
        [*EVALUATED, "num_generations_eval=2", "per_device_eval_batch_size=1", "accelerate.num_processes=2"],
    ),
    "server": (
        GRPO,
        ["use_vllm=true", "vllm_mode=server", "vllm_tensor_parallel_size=2", "accelerate.num_processes=3"],
    ),
    "reference": (GRPO, ["sync_ref_model=true", "beta=0.1", "use_peft=false"]),
}


@pytest.fixture
def refused(preflight):
    """Run the command: (key, what to write) of each finding about refused values, and the report."""

    def refused(file, *changes):
        _, report = preflight(file, "--hw=h200", *changes)
        found = [(one["key"], one["instead"]) for one in report["findings"] if one["failure"] == "refused-values"]
        return found, report

    return refused


@pytest.fixture
def newest(monkeypatch):
    """The trainer's release is the one whose refusals are known."""
    monkeypatch.setattr(PlannedRun, "is_release", lambda run, package, specifier: True)


@pytest.mark.parametrize(("file", "changes", "key"), REFUSED.values(), ids=REFUSED)
def test_finds_values_that_are_refused_and_proposes_one_that_is_not(refused, newest, file, changes, key):
    found, _ = refused(file, *changes)
    assert [one for one, _ in found] == [key]
    written = found[0][1].replace(": ", "=").splitlines()[-1]
    written = written if written.startswith(key) else f"{key.rpartition('.')[0]}.{written}"
    found, report = refused(file, *changes, written)
    assert (found, "refused-values" in report["checked"]) == ([], True)


@pytest.mark.parametrize(("file", "changes"), TAKEN.values(), ids=TAKEN)
def test_takes_values_that_go_together(refused, newest, file, changes):
    assert refused(file, *changes)[0] == []


@pytest.mark.parametrize("name", ["no metric", "late metric", "mode", "no reference", "adapter"])
def test_does_not_judge_a_release_that_is_not_known(refused, monkeypatch, name):
    monkeypatch.setattr(PlannedRun, "is_release", lambda run, package, specifier: None)
    file, changes, _ = REFUSED[name]
    found, report = refused(file, *changes)
    assert found == []
    assert [one for one in report["not_checked"] if one["failure"] == "refused-values"]
    monkeypatch.setattr(PlannedRun, "is_release", lambda run, package, specifier: False)
    assert refused(file, *changes)[0] == []


def test_names_the_last_step_of_a_folder(refused, tmp_path):
    for number in (9, 30):
        (tmp_path / f"global_step_{number}").mkdir()
    found, _ = refused(GSPO, "trainer.resume_mode=resume_path", f"{RESUME}={tmp_path}")
    assert found == [(RESUME, f"{RESUME}={tmp_path}/global_step_30")]
