"""`rlregress new`: what it writes runs, says what is missing, and names the error that it was made from."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import textwrap
from types import SimpleNamespace

import documents
import pytest
from installed import CHECKOUT
from patience import PATIENCE
from test_documented_projects import copied_project, pytest_in

from pytest_rlregress.cli import main
from pytest_rlregress.commands.new import error_text
from pytest_rlregress.failures import catalogue

pytestmark = pytest.mark.slow

TRACEBACK = """\
(Worker pid=7) Traceback (most recent call last):
(Worker pid=7)   File "/opt/venv/lib/python3.11/site-packages/vllm/v1/engine/core.py", line 12, in step
(Worker pid=7)     return self.load(path)
(Worker pid=7)   File "/home/me/train.py", line 80, in load
(Worker pid=7)     raise ShardError(f"shard {n} of {path} is 12.5 GiB")
(Worker pid=7) mylib.ShardError: shard 3 of /data/run-7/w.pt is 12.5 GiB (at 0x7f01ab), not 13
"""
BARE = TRACEBACK.replace(
    "mylib.ShardError: shard 3 of /data/run-7/w.pt is 12.5 GiB (at 0x7f01ab), not 13", "KeyError: 5"
)
CRASH = "Fatal Python error: Floating point exception\n\nThread 0x01 (most recent call first):\n"
WRAPPED = (
    "ray.exceptions.RayTaskError(ValueError): \x1b[36mray::step()\x1b[39m (pid=9, ip=10.0.0.1) failed on every rank\n"
)
CUDA = "CUDA error: misaligned address\n"
ERRORS = {
    "numbers": (TRACEBACK, "ShardError", "shard {number} of {name} is {number} GiB (at {name}), not {number}", None),
    "key": (BARE, "KeyError", "{number}", "train.py:load"),
    "crash": (CRASH, None, None, None),
    "ray": (WRAPPED, "ValueError", "ray::step() (pid={number}, ip={number}) failed on every rank", None),
    "cuda": (CUDA, None, "CUDA error: misaligned address", None),
}


@pytest.fixture
def new(monkeypatch, tmp_path, capsys):
    """``new(*arguments, text=…)``: exit code and what was printed, of the command in an empty folder ``scenarios``."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scenarios").mkdir()

    def new(*arguments, text=TRACEBACK):
        stdin = io.TextIOWrapper(io.BytesIO(text.encode()))
        monkeypatch.setattr(sys, "stdin", stdin)
        code = main(["new", *arguments])
        printed = capsys.readouterr()
        return SimpleNamespace(code=code, out=printed.out, err=printed.err)

    return new


def ruff(folder, *files):
    config = CHECKOUT / "pyproject.toml"
    for command in (["check", "--no-cache"], ["format", "--diff"]):
        command = [sys.executable, "-m", "ruff", *command, "--config", str(config), *files]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", ERRORS)
def test_diagnose_names_the_error_it_was_made_from(new, name, tmp_path):
    text, exception, message, frame = ERRORS[name]
    done = new("my-failure", "--folder", "scenarios/shards", text=text)
    assert done.code == 0, done.err
    assert "the signature is right" in done.out
    (signature,) = catalogue.load([tmp_path / "scenarios"])["my-failure"].signatures
    assert signature.exception == exception
    assert (signature.message and signature.message.text) == message
    assert [one.text for one in signature.frames] == ([frame] if frame else [])
    assert (signature.signal == "SIGFPE") == (name == "crash")
    (tmp_path / "run.log").write_text(text)
    assert main(["diagnose", "--scenarios", "scenarios", "run.log"]) == 1


def test_recognises_the_failure_with_numbers_of_another_run(new, tmp_path):
    new("my-failure", "--folder", "scenarios/shards")
    known = catalogue.load([tmp_path / "scenarios"]).values()
    other = (
        TRACEBACK.replace("shard 3", "shard 41").replace("run-7", "run-8").replace("12.5", "9").replace("7f01ab", "7e")
    )
    assert error_text.named_in(other.encode(), known) == ["my-failure"]
    assert not error_text.named_in(TRACEBACK.replace("not 13", "as asked").encode(), known)


def test_names_the_components_of_the_traceback(new, tmp_path):
    new("my-failure", "--folder", "scenarios/shards")
    assert catalogue.load([tmp_path / "scenarios"])["my-failure"].components == {"vllm": "any"}


def test_second_failure_gets_its_own_folder(new, tmp_path):
    new("my-failure", "--folder", "scenarios/shards")
    assert new("another-one", "--folder", "scenarios/shards", "--subject", "mylab.shards:whole", text=CRASH).code == 0
    found = catalogue.load([tmp_path / "scenarios"])
    assert found.keys() == {"my-failure", "another-one"}
    assert found["another-one"].subject == "mylab.shards:whole"
    assert "(subject)" in (tmp_path / "scenarios/shards/another_one/test_another_one.py").read_text()
    ruff(tmp_path, "scenarios")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["My_Failure", "--folder", "scenarios/new"], "lower-case words with dashes"),
        (["dataproto-concat-keys", "--folder", "scenarios/new"], "dataproto-concat-keys exists, in "),
        (["beside", "--folder", "scenarios/new"], "beside exists, in "),
        (["named", "--folder", "scenarios/new", "--scenarios", "elsewhere"], "named exists, in "),
        (["my-failure", "--folder", "scenarios"], "holds areas; give one of them or a new one: shards"),
        (["my-failure", "--folder", "scenarios/shards/beside"], "is the folder of a failure: give the one above it"),
        (["my-failure", "--folder", "code/train.py"], "isn't a folder"),
        (["my-failure", "--folder", "code/train.py/inside"], "isn't a folder"),
        (["there", "--folder", "scenarios/shards"], "shards/there exists, and nothing is overwritten"),
        (
            ["my-failure", "--folder", "scenarios/new", "--subject", "no/name"],
            "allowed: a function of pytest_rlregress",
        ),
    ],
)
def test_rejects_wrong_arguments_and_writes_nothing(new, tmp_path, arguments, said):
    new("beside", "--folder", "scenarios/shards")
    (tmp_path / "elsewhere").mkdir()
    new("named", "--folder", "elsewhere/seam")
    (tmp_path / "code").mkdir()
    (tmp_path / "code/train.py").write_text("")
    (tmp_path / "scenarios/shards/there").mkdir()
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    done = new(*arguments)
    assert done.code == 2
    assert said in done.err
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert not (tmp_path / "scenarios/new").exists()


@pytest.mark.parametrize("side", ["reproduces", "guards"])
def test_refuses_an_area_with_a_failure_that_lacks_a_side(new, tmp_path, side):
    new("beside", "--folder", "scenarios/shards")
    tests = tmp_path / "scenarios/shards/beside/test_beside.py"
    tests.write_text(tests.read_text().replace(f'pytest.mark.{side}("beside")', "pytest.mark.slow"))
    done = new("my-failure", "--folder", "scenarios/shards")
    assert done.code == 2
    assert "beside/failure.toml: no test of its folder " + side in done.err
    assert f'write one with pytest.mark.{side}("beside") first' in done.err
    assert not (tmp_path / "scenarios/shards/my_failure").exists()


def test_rejects_a_text_without_an_error(new, tmp_path):
    done = new("my-failure", "--folder", "scenarios/shards", text="step 3: reward 0.5\n")
    assert done.code == 2
    assert "give a traceback to its last line" in done.err
    assert not (tmp_path / "scenarios/shards").exists()


def test_warns_of_an_error_that_is_documented_already(new):
    text = "ValueError: vllm version None not supported and SGLang also not Found\n"
    assert (
        "documented already, it seems: undeclared-trainer-dependency"
        in new("my-failure", "--folder", "scenarios/a", text=text).err
    )


def test_asks_a_terminal_to_pipe_in_an_error(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    assert main(["new", "my-failure", "--folder", "scenarios/batch"]) == 2
    assert "pipe one in: rlregress new my-failure --folder scenarios/batch < error.txt" in capsys.readouterr().err


def test_skeleton_runs_in_the_users_repository(new, tmp_path):
    """With the lines that the command prints it is collected, both sides run, and fail with what is to be written."""
    done = new("my-failure", "--folder", "tests/lab/shards", text=CUDA)  # no component: none is checked before
    _, _, lines = done.out.partition("pytest sees it once pyproject.toml has:\n")
    assert lines.splitlines()[1] == '  rlregress_scenarios = "tests/lab"'
    (tmp_path / "pyproject.toml").write_text(textwrap.dedent(lines))
    assert "pytest sees it once" not in new("second", "--folder", "tests/lab/shards", text=CUDA).out
    kept = {name: value for name, value in os.environ.items() if "RLREGRESS" not in name}
    command = [sys.executable, "-m", "pytest", "--hw=cpu", "-q", "-p", "no:cacheprovider", "-k", "my-failure"]
    done = subprocess.run(command, cwd=tmp_path, env=kept, capture_output=True, text=True, timeout=PATIENCE)
    answer = "FAILED on cpu: my-failure: 1 of 1 guard regressed, 1 of 1 reproduction changed."
    assert answer in done.stdout, done.stdout + done.stderr
    assert "to be written: the act that fails" in done.stdout
    assert "to be written: what holds with the remedy" in done.stdout


def test_prints_the_output_of_the_document(tmp_path):
    """In a copy of this project: the command prints that, and the skeleton is one that linter and pytest take."""
    project = copied_project(tmp_path)
    document = documents.text("writing-a-scenario.md")
    (project / "error.txt").write_text(document.partition("## 1.")[2].split("```")[1].removeprefix("\n"))
    block = document.partition("$ rlregress new ")[2].partition("\n\n")[0]
    arguments, *printed = [line.strip() for line in block.splitlines()]
    words = arguments.removesuffix(" < error.txt").split()
    environment = {**os.environ, "PYTHONPATH": str(project)}
    command = [sys.executable, "-m", "pytest_rlregress.cli", "new", *words]
    with (project / "error.txt").open() as stdin:
        done = subprocess.run(command, cwd=project, env=environment, stdin=stdin, capture_output=True, text=True)
    assert [line.strip() for line in done.stdout.splitlines()] == printed, done.stderr
    files = [line for line in printed if line.endswith(".py")]
    ruff(project, *files)
    run = pytest_in(project, "--hw=cpu", "-v", "-k", "weights_only")
    assert run.count("CHANGED") >= 1, run
    assert "key 'subject'" not in run
    mutants = pytest_in(project, "tests/stack/scenarios/test_mutants.py", "-k", "weights-only", "--co", "-q")
    assert "weights-only-resume-stack_that_fails_otherwise" in mutants
