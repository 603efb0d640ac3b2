"""verl's trainer as a fixture: its numbers are checked, its failures named, and nothing of it is left."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_rlregress.fixtures import arithmetic, verl_process, verl_record, verl_step
from pytest_rlregress.fixtures.step_record import StepSettings
from pytest_rlregress.stack import InterfaceMissing
from pytest_rlregress.util import processes

TOLERANCE = 1e-5
SETTINGS = StepSettings(prompts=4, samples_per_prompt=4)
COMPLETIONS = 16


def long_run(test):
    """A run of verl's trainer, in a process of its own and with ``--rl-long`` only."""
    needed = pytest.mark.needs("verl-trainer", "ray-cluster", "vllm-engine")
    return pytest.mark.long(pytest.mark.isolated(timeout=900)(needed(test)))


def made_step(number=1, **changes):
    texts = ["abcde" * n for n in range(1, COMPLETIONS + 1)]
    completions = tuple(verl_record.ScoredText(text, 40, arithmetic.reward(text, 40)) for text in texts)
    step = verl_record.VerlStepRecord(
        number=number,
        loss=-0.02,
        grad_norm=0.9,
        reward=sum(scored.score for scored in completions) / COMPLETIONS,
        log_ppl_abs_diff=2e-7,
        k3_kl=0.0,
        moved=0.01,
        response_length=14.0,
        seconds=2.0,
        completions=completions,
        metrics={},
    )
    return replace(step, **changes)


def test_a_run_as_it_should_be():
    verl_record.check(verl_record.VerlRun((made_step(1), made_step(2)), (), 70.0), 2, COMPLETIONS, TOLERANCE)


STEP = made_step()
SCORED = STEP.completions[0]
MUTANTS = {
    "stale weights": ({"log_ppl_abs_diff": 0.002}, "engine and trainer disagree"),
    "no agreement logged": ({"log_ppl_abs_diff": math.nan}, "engine and trainer disagree"),
    "one token far off": ({"k3_kl": 4e-6}, "from the trainer's"),
    "no gradient": ({"grad_norm": 0.0}, "the gradient's norm is 0.0"),
    "infinite gradient": ({"grad_norm": math.inf}, "the gradient's norm is inf"),
    "loss": ({"loss": math.nan}, "the loss is nan"),
    "no update": ({"moved": 0.0}, "left the policy as it was"),
    "a completion lost": ({"completions": STEP.completions[1:]}, "15 completions, not 16"),
    "reward of another text": (
        {"completions": (replace(SCORED, score=SCORED.score + 0.025), *STEP.completions[1:])},
        "was given 0.150000, its reward for 40 letters is 0.125000",
    ),
    "mean of other rewards": ({"reward": STEP.reward + 0.01}, "verl trained on a mean reward"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_step_that_is_off(name):
    changes, message = MUTANTS[name]
    with pytest.raises(AssertionError, match=f"^step 1: .*{message}"):
        verl_record.check_step(made_step(**changes), COMPLETIONS, TOLERANCE)


@pytest.mark.parametrize(
    ("steps", "left", "message"),
    [
        ((1,), (), r"logged the steps \[1\], not 1 to 2"),
        ((1, 3), (), r"logged the steps \[1, 3\]"),
        ((1, 2), ("process 7, raylet",), "left behind: process 7, raylet"),
    ],
)
def test_a_run_that_is_off(steps, left, message):
    with pytest.raises(AssertionError, match=message):
        verl_record.check(verl_record.VerlRun(tuple(map(made_step, steps)), left, 70.0), 2, COMPLETIONS, TOLERANCE)


def test_a_verl_without_platforms(tmp_path, monkeypatch):
    package = tmp_path / "verl"
    package.mkdir()
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "verl", raising=False)
    with pytest.raises(InterfaceMissing, match=r"verl\.plugin\.platform, which verl [\d.]+ has not"):
        verl_step.check_interface("legacy")


def test_a_verl_that_wants_flash_attn(tmp_path, monkeypatch):
    package = tmp_path / "verl"
    (package / "plugin" / "platform").mkdir(parents=True)
    (package / "utils").mkdir()
    (package / "__init__.py").touch()
    (package / "utils" / "attention_utils.py").write_text("from flash_attn.bert_padding import unpad_input\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "verl", raising=False)
    with pytest.raises(InterfaceMissing, match=r"attention_utils without flash-attn, which verl [\d.]+ has not"):
        verl_step.check_interface("legacy")
    verl_step.check_interface("legacy", on_cpu=False)


@pytest.fixture
def trainer():
    with verl_step.start(SETTINGS, on_cpu=True) as trainer:
        yield trainer
    assert not trainer.folder.exists()


@long_run
def test_broken_syncs_show_in_their_step(trainer):
    receiver = {"actor_rollout_ref.rollout.engine_kwargs.vllm.worker_extension_cls": "verl_mutants.MutantReceiver"}
    run = trainer.run(6, settings=receiver, environment={"PYTHONPATH": str(Path(__file__).parent)})
    found = {}
    for step in run.steps:
        try:
            verl_record.check_step(step, COMPLETIONS, TOLERANCE)
        except AssertionError as error:
            found[step.number] = str(error)
    print({step.number: step.log_ppl_abs_diff for step in run.steps})
    assert found.keys() == {2, 4, 6}  # behind the syncs that verl_mutants breaks
    assert all("engine and trainer disagree" in message for message in found.values())


BINDS = """
import socket, sys, time
one = socket.socket(socket.AF_UNIX)
one.bind(sys.argv[1])
print("bound", flush=True)
time.sleep(60)
"""


def test_sockets_of_another_run_of_verl_are_left_alone(tmp_path):
    names = [Path(f"/tmp/rl-colocate-zmq-test{os.getpid()}-{whose}.sock") for whose in ("ours", "theirs")]
    with ExitStack() as stack:
        ours = subprocess.Popen(["sleep", "60"])
        trainer = verl_process.TrainerProcess(tmp_path, ours)
        bound = [subprocess.Popen([sys.executable, "-c", BINDS, str(n)], stdout=subprocess.PIPE) for n in names]
        for process in (ours, *bound):
            stack.callback(process.wait)
            stack.callback(process.kill)
        for process, name in zip(bound, names, strict=True):
            stack.callback(name.unlink, missing_ok=True)
            assert process.stdout.readline() == b"bound\n"
        trainer._family[processes.living(bound[0].pid)] = "ray::WorkerDict"
        trainer._look()
        bound[0].kill()
        bound[0].wait()
        assert trainer.left() == [str(names[0])]
        trainer.end()
        assert [name.exists() for name in names] == [False, True]


@long_run
@pytest.mark.parametrize("part", verl_process.PARTS)
def test_a_part_is_killed_in_the_middle_of_a_step(trainer, part):
    killed, seen = [], []

    def kill(process):
        seen[:] = [process]
        if not killed and verl_record.read(process.folder) and (pid := process.part(part)):
            os.kill(pid, signal.SIGKILL)
            killed.append((pid, process.seconds))

    with pytest.raises(verl_process.VerlRunFailed) as failed:
        trainer.run(50, tick=kill)
    [(pid, at)] = killed
    [process] = seen
    print(str(failed.value)[:1500], process.seconds - at)
    assert f"{verl_process.PARTS[part]} (process {pid})" in str(failed.value).splitlines()[1]
    assert process.seconds - at < verl_process.NOTICE_SECONDS + 30
    assert not process.left()
    assert not process.shared_memory()
