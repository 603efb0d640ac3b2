"""verl's trainer as a fixture: its numbers are checked, its failures named, and nothing of it is left."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from installed import SUPPORT

from pytest_rlregress.fixtures import step_properties, step_record, verl_process, verl_record, verl_settings, verl_step
from pytest_rlregress.fixtures.step_record import StepSettings
from pytest_rlregress.stack import InterfaceMissing

TOLERANCE = 1e-5
SETTINGS = StepSettings(prompts=4, samples_per_prompt=4)
MEASURED = {verl_record.LOG_PPL: 2e-7, verl_record.K3: 0.0}


def long_run(test):
    """A run of verl's trainer, in a process of its own and with ``--rl-long`` only."""
    needed = pytest.mark.needs("verl-trainer", "ray-cluster", "vllm-engine", "transfer-queue")
    return pytest.mark.long(pytest.mark.isolated(timeout=900)(needed(test)))


def made_run(*numbers, left=(), measured=MEASURED):
    unseen = dict.fromkeys(step_properties.PROPERTIES, "made here")
    steps = tuple(verl_record.VerlRecord(number=number, not_seen=unseen, measured=measured) for number in numbers)
    return verl_record.VerlRun(steps, left)


def test_accepts_a_sound_run():
    verl_record.check(made_run(1, 2), 2, TOLERANCE)


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (made_run(1, 2, measured={verl_record.LOG_PPL: 2e-7}), r"^step 1: verl measures rollout_corr/\w+ nan"),
        (made_run(1, 2, measured={verl_record.K3: 0.0}), r"^step 1: verl measures rollout_corr/\w+ nan"),
        (made_run(1, 2, measured=MEASURED | {verl_record.LOG_PPL: 0.002}), "engine and trainer disagree"),
        (made_run(1, 2, measured=MEASURED | {verl_record.K3: 4e-6}), "engine and trainer disagree"),
        (made_run(1), "1 steps were recorded, 2 were asked for"),
        (made_run(1, 2, left=("process 7, raylet",)), "left behind: process 7, raylet"),
    ],
)
def test_rejects_each_broken_run(run, message):
    with pytest.raises(AssertionError, match=message):
        verl_record.check(run, 2, TOLERANCE)


def test_questions_of_a_run_are_distinct():
    problems = verl_settings.draw_problems(SETTINGS, 40)
    assert len(set(problems)) == len(problems) == 160


@pytest.mark.parametrize(
    ("has", "lacks"),
    [
        (["utils"], r"verl\.plugin\.platform, which verl [\d.]+ doesn't have"),
        (["utils", "plugin/platform"], r"attention_utils to import without flash-attn; that of verl [\d.]+ doesn't"),
    ],
)
def test_names_the_interface_that_verl_lacks(tmp_path, monkeypatch, has, lacks):
    for folder in has:
        (tmp_path / "verl" / folder).mkdir(parents=True)
    (tmp_path / "verl" / "__init__.py").touch()
    (tmp_path / "verl" / "utils" / "attention_utils.py").write_text("from flash_attn.bert_padding import unpad_input\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "verl", raising=False)
    with pytest.raises(InterfaceMissing, match=lacks):
        verl_step.check_interface("legacy")


@pytest.fixture
def trainer():
    with verl_step.start(SETTINGS, on_cpu=True) as trainer:
        yield trainer
    assert not trainer.folder.exists()


def find_red(record):
    """Return the properties of a step that do not hold."""
    return {name for name, _ in step_record.find_complaints(record, TOLERANCE)}


@long_run
def test_each_alteration_turns_its_property_red(trainer):
    import verl_mutants

    altered = dict(enumerate((name for name in verl_mutants.MEANT if "sync" not in name), 2))
    # A broken sync shows in the next step's rollout too; the last ones are those after a run's first.
    for name in ("half a sync", "the head not synced", "no sync"):
        altered[max(altered) + 2] = name
    for _ in range(2):
        altered[max(altered) + 1] = "no sync"
    steps = max(altered) + 2
    stale = {step for step in range(2, steps + 1) if "sync" in altered.get(step - 1, "")}
    run = trainer.run(
        steps,
        limit=1500,
        environment={"PYTHONPATH": str(SUPPORT), verl_mutants.VARIABLE: json.dumps(altered)},
        modules=["verl_mutants"],
    )
    red = {step.number: find_red(step) for step in run.steps}
    for number, names in red.items():
        print(f"{number:3} {altered.get(number, 'whole'):40} {', '.join(sorted(names))}")
    for number, names in red.items():
        meant = {"agreement", "verl's measure"} if number in stale else set()
        if number in altered:
            assert names >= meant | {verl_mutants.MEANT[altered[number]]}, f"step {number}, {altered[number]}: {names}"
        else:
            assert names == meant, f"step {number}, which is whole: {names}"


def test_only_dead_sockets_are_removed():
    """A run of verl beside this one has its own, with such names too."""
    paths = [Path(f"/tmp/rl-colocate-zmq-test{os.getpid()}-{whose}.sock") for whose in ("dead", "other")]
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in paths]
        for path, one in zip(paths, sockets, strict=True):
            stack.callback(path.unlink, missing_ok=True)
            one.bind(str(path))
            one.listen()
        sockets[0].close()
        verl_process.remove_dead_sockets()
        assert [path.exists() for path in paths] == [False, True]


WAITS = """
import subprocess, sys
import pytest
from pytest_rlregress.fixtures import verl_process
from pytest_rlregress.util import cache

HOLDS = "import fcntl, sys, time; f = open(sys.argv[1], 'w'); fcntl.flock(f, 2); print(flush=True); time.sleep(15)"

@pytest.mark.isolated(timeout=12)
def test_waits(tmp_path):
    with subprocess.Popen([sys.executable, "-c", HOLDS, cache.folder() / "verl.lock"], stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        with verl_process.start(tmp_path, {}, {}, launcher=(sys.executable, "-c", "pass")) as trainer:
            assert other.poll() is not None and trainer.process.wait() == 0
"""


@pytest.mark.slow
def test_waiting_for_another_verl_run_does_not_count_against_the_limit(run, tmp_path, monkeypatch):
    monkeypatch.setenv("RLREGRESS_CACHE_DIR", str(tmp_path))
    run(WAITS).assert_outcomes(passed=1)


@long_run
@pytest.mark.parametrize("part", verl_process.PARTS)
def test_a_part_is_killed_in_the_middle_of_a_step(trainer, part):
    killed, seen = [], []

    def kill(process):
        seen[:] = [process]
        if not killed and verl_record.read_metrics(process.folder) and (pid := process.part(part)):
            os.kill(pid, signal.SIGKILL)
            killed.append((pid, process.seconds))

    with pytest.raises(verl_process.VerlRunFailed) as failed:
        trainer.run(50, tick=kill)
    [(pid, at)] = killed
    [process] = seen
    print(str(failed.value)[:1500], process.seconds - at)
    assert "took longer than" not in str(failed.value)
    assert f"{verl_process.PARTS[part]} (process {pid})" in str(failed.value).splitlines()[1]
    assert not process.left()


@long_run
def test_checkpoint_that_is_loaded_in_part_is_noticed(trainer, tmp_path):
    import verl_mutants

    through = trainer.run(2, settings={"trainer.default_local_dir": tmp_path, "trainer.save_freq": 1})
    resumes = {"trainer.resume_mode": "resume_path", "trainer.resume_from_path": tmp_path / "global_step_1"}
    for part in ("weights", "moments"):
        altered = {"PYTHONPATH": str(SUPPORT), verl_mutants.VARIABLE: json.dumps({1: f"{part} not loaded"})}
        resumed = trainer.run(2, settings=resumes, environment=altered, modules=["verl_mutants"])
        with pytest.raises(AssertionError, match=f"step 2 began with other {part} than were saved"):
            verl_record.check_resumed(resumed, through)


@long_run
def test_engine_that_dies_after_the_last_step_is_not_a_stall(verl_step):
    def kill(process):
        if len(verl_record.read_metrics(process.folder)) == 2 and (pid := process.part("VLLM::EngineCore")):
            os.kill(pid, signal.SIGKILL)

    assert len(verl_step.run(2, tick=kill).steps) == 2
