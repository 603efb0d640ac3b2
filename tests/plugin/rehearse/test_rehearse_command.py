"""``rlregress rehearse`` of a command that trains nothing: one sentence each, and nothing is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

RLREGRESS = [sys.executable, "-m", "pytest_rlregress.cli", "rehearse"]


@pytest.fixture
def rehearse(tmp_path):
    """Run ``rlregress rehearse`` with these arguments in an empty folder."""
    (tmp_path / "here").mkdir()
    (tmp_path / "tmp").mkdir()

    def run(*arguments, **environ):
        return subprocess.run(
            [*RLREGRESS, *arguments],
            cwd=tmp_path / "here",
            env={**os.environ, "TMPDIR": str(tmp_path / "tmp"), **environ},
            capture_output=True,
            text=True,
        )

    return run


def test_no_command(rehearse):
    ended = rehearse()
    assert ended.returncode == 2
    assert ended.stderr.startswith("rlregress rehearse: no command: write")


def test_no_such_program(rehearse):
    ended = rehearse("--", "trll", "grpo")
    assert (ended.returncode, ended.stderr) == (2, "rlregress rehearse: there is no program 'trll'\n")


def test_one_step_shows_no_sync(rehearse):
    ended = rehearse("--steps", "1", "--", "true")
    assert ended.returncode == 2
    assert "write 2 or more" in ended.stderr


def test_a_folder_that_holds_something(rehearse, tmp_path):
    (tmp_path / "kept").write_text("")
    ended = rehearse("--keep", str(tmp_path), "--", "true")
    assert ended.returncode == 2
    assert "isn't an empty folder" in ended.stderr


def test_a_command_that_trains_nothing(rehearse, tmp_path):
    ended = rehearse("--", "true")
    assert ended.returncode == 2
    assert "made no trainer of TRL's or verl's that trained" in ended.stdout
    assert ended.stdout.splitlines()[-1] == "true: nothing was rehearsed"
    assert os.listdir(tmp_path / "tmp") == []


def test_a_script_that_fails_is_quoted(rehearse):
    ended = rehearse("--json", "--", sys.executable, "-c", "raise KeyError('train.parquet')")
    assert ended.returncode == 2
    document = json.loads(ended.stdout)
    assert document["ended"] == ["the command ended with exit code 1 before it trained: KeyError: 'train.parquet'"]
    assert document["result"] == "unchecked"


def test_another_trainer_is_ended_before_it_begins(rehearse, tmp_path):
    (tmp_path / "verl").mkdir()
    (tmp_path / "verl/__init__.py").write_text("open('begun', 'w')\n")
    ended = rehearse("--", sys.executable, "-c", "import verl; open('trained', 'w')", PYTHONPATH=str(tmp_path))
    assert ended.returncode == 2
    assert "the command was ended: of verl, python -m verl.trainer.main_ppo is rehearsed" in ended.stdout
    assert not (tmp_path / "here/trained").exists()


def test_a_command_that_hangs(rehearse):
    ended = rehearse("--patience", "1", "--", "sleep", "1000")
    assert ended.returncode == 2
    assert "said nothing for 1 seconds and was ended" in " ".join(ended.stdout.split())


def test_the_sitecustomize_of_the_user_runs_too(rehearse, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.own = 5\n")
    script = "import sys, json; raise SystemExit(sys.own)"
    ended = rehearse("--", sys.executable, "-c", script, PYTHONPATH=str(tmp_path))
    assert "exit code 5" in ended.stdout


def test_of_the_packages_beside_this_one_nothing_is_found(rehearse, tmp_path):
    script = (
        "import pytest_rlregress.util.text, importlib.util as u; raise SystemExit(4 if u.find_spec('xdist') else 3)"
    )
    ended = rehearse("--", sys.executable, "-S", "-c", f"import sitecustomize; {script}")
    assert "exit code 3" in ended.stdout, ended.stdout


def test_a_script_changes_nothing_beside_its_trainer(rehearse, tmp_path):
    (tmp_path / "kept").write_text("")
    (tmp_path / "run.sh").write_text("set -e\npip install trl\nrm ../kept\nsbatch job\n")
    ended = rehearse("--json", "--", "bash", str(tmp_path / "run.sh"))
    named = [one["what"] for one in json.loads(ended.stdout)["not_rehearsed"]]
    assert named == ["pip install trl", "rm ../kept", "sbatch job"]
    assert (tmp_path / "kept").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_nothing_behind(tmp_path, number):
    (tmp_path / "tmp").mkdir()
    script = "import tempfile; tempfile.mkdtemp()\n"
    script += "import os, time; os.fork() or os.setpgid(0, 0); open('pid' + str(os.getpid()), 'w'); time.sleep(1000)"
    running = subprocess.Popen(
        [*RLREGRESS, "--", sys.executable, "-c", script],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path / "tmp")},
        stderr=subprocess.PIPE,
        text=True,
    )
    while len(started := [name for name in os.listdir(tmp_path) if name.startswith("pid")]) < 2:
        assert running.poll() is None
        time.sleep(0.05)
    running.send_signal(number)
    assert running.wait() == 128 + number
    assert os.listdir(tmp_path / "tmp") == []
    for name in started:
        with pytest.raises(ProcessLookupError):
            os.kill(int(name.removeprefix("pid")), 0)


def test_as_is_says_that_verl_is_not_watched_yet(rehearse):
    ended = rehearse("--as-is", "--", "python3", "-m", "verl.trainer.main_ppo", "trainer.n_gpus_per_node=8")
    assert ended.returncode == 2
    assert ended.stderr.splitlines() == [
        "rlregress rehearse: --as-is watches TRL's GRPOTrainer only yet, and not verl: rehearse it without --as-is"
    ]


def test_as_is_ends_a_script_of_verls_before_it_begins(rehearse, tmp_path):
    (tmp_path / "verl/trainer").mkdir(parents=True)
    (tmp_path / "verl/__init__.py").write_text("")
    (tmp_path / "verl/trainer/__init__.py").write_text("")
    (tmp_path / "verl/trainer/main_ppo.py").write_text("open('trained', 'w')\n")
    (tmp_path / "run.sh").write_text(f"{sys.executable} -m verl.trainer.main_ppo\n")
    ended = rehearse("--as-is", "--", "bash", str(tmp_path / "run.sh"), PYTHONPATH=str(tmp_path))
    assert ended.returncode == 2
    assert "the command was ended: --as-is watches TRL's GRPOTrainer only yet" in ended.stdout
    assert not (tmp_path / "here/trained").exists()


def test_as_is_leaves_a_script_as_it_is(rehearse, tmp_path):
    (tmp_path / "kept").write_text("")
    (tmp_path / "run.sh").write_text("echo $TMPDIR $CUDA_VISIBLE_DEVICES $WANDB_MODE; rm ../kept; touch made\n")
    ended = rehearse("--as-is", "--", "bash", str(tmp_path / "run.sh"), CUDA_VISIBLE_DEVICES="3", WANDB_MODE="online")
    assert ended.stdout.startswith(f"{tmp_path / 'tmp'} 3 online\n")
    assert not (tmp_path / "kept").exists()
    assert (tmp_path / "here/made").exists()
    assert ended.returncode == 2
    assert "made no trainer of TRL's or verl's that trained" in ended.stdout


def test_as_is_an_error_while_it_gets_in_ends_nothing(rehearse, tmp_path):
    for name in ("trl", "trl/trainer"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("")
    (tmp_path / "trl/trainer/grpo_trainer.py").write_text("")
    script = "import trl.trainer.grpo_trainer; open('trained', 'w')"
    ended = rehearse("--as-is", "--json", "--", sys.executable, "-c", script, PYTHONPATH=str(tmp_path))
    assert (tmp_path / "here/trained").exists()
    assert ended.returncode == 2
    [error] = json.loads(ended.stdout)["errors"]
    assert "'trl.trainer.grpo_trainer' has no attribute 'GRPOTrainer'" in error


def test_as_is_a_signal_is_the_commands(tmp_path):
    script = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(7)); open('up', 'w')\n"
    script += "while True: time.sleep(0.1)"
    running = subprocess.Popen(
        [*RLREGRESS, "--as-is", "--", sys.executable, "-c", script],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    )
    while not (tmp_path / "up").exists():
        assert running.poll() is None
        time.sleep(0.05)
    running.send_signal(signal.SIGTERM)
    said, _ = running.communicate()
    assert running.returncode == 2
    assert "ended with exit code 7" in " ".join(said.split())
