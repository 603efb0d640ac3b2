"""The command that a launch script comes to."""

import os

import pytest

from pytest_rlregress.commands.preflight.config import ConfigError
from pytest_rlregress.commands.preflight.launch import find_command

SCRIPT = """\
set -xeuo pipefail
export MODEL=${MODEL:-tiny}
mkdir -p out
python3 prepare.py --to data
SIZE=$(python3 -c "print(4 * 2)")
rm -rf kept
pip install something
ARGS=(data.train_batch_size=$SIZE)
FLAG=1 python3 -m verl.trainer.main_ppo "${ARGS[@]}" actor_rollout_ref.model.path="$MODEL" "$@" 2>&1 | tee out/log
touch after
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kept").mkdir()
    return tmp_path


def write(folder, text):
    (folder / "run.sh").write_text(text)


def test_finds_the_words_and_the_environment(folder):
    write(folder, SCRIPT)
    words, environ = find_command(["bash", "run.sh", "trainer.nnodes=2"], os.environ)
    program = ["python3", "-m", "verl.trainer.main_ppo"]
    assert words == [*program, "data.train_batch_size=8", "actor_rollout_ref.model.path=tiny", "trainer.nnodes=2"]
    assert (environ["FLAG"], environ["MODEL"]) == ("1", "tiny")
    assert (folder / "kept").is_dir()


def test_finds_the_command_of_a_submitted_job(folder):
    write(folder, "ray job submit --address x -- python3 -m verl.trainer.main_ppo data.seed=1\n")
    assert find_command(["bash", "run.sh"], os.environ)[0][-1] == "data.seed=1"


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("accelerate launch train.py --beta 0.04\n", ["accelerate", "launch", "train.py", "--beta", "0.04"]),
        ("trl grpo --config a.yaml\n", ["trl", "grpo", "--config", "a.yaml"]),
        ("python prepare.py\npython train.py --beta 1\n", ["python", "train.py", "--beta", "1"]),
    ],
)
def test_finds_commands_of_trl(folder, script, words):
    write(folder, script)
    assert find_command(["bash", "run.sh"], os.environ)[0] == words


def test_leaves_another_command_as_it_is():
    words = ["python3", "-m", "verl.trainer.main_ppo", "a.b=1"]
    assert find_command(words, {})[0] == words


@pytest.mark.parametrize(
    ("script", "says"), [("echo hello\n", "starts none of"), ("/opt/conda/bin/python train.py\n", "by its path")]
)
def test_says_why_a_script_has_no_command(folder, script, says):
    write(folder, script)
    with pytest.raises(ConfigError, match=says):
        find_command(["bash", "run.sh"], os.environ)
