"""A launch script runs with stand-ins: what it would start is handed over, and nothing of the user's changes."""

from __future__ import annotations

import json
import os
import socket
import sys
from contextlib import closing
from pathlib import Path

import pytest

from pytest_rlregress.cli import main
from pytest_rlregress.util import confinement, launch_script
from pytest_rlregress.util.launch_script import ScriptNotHeld, find_programs, is_script, run_script

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Landlock and seccomp are Linux'")


def describe(folder):
    """What a folder holds, to the last byte and time."""
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        found[path] = (status.st_mode, status.st_mtime_ns, path.read_bytes() if path.is_file() else b"")
    return found


@pytest.fixture
def script(tmp_path, monkeypatch):
    """Run a script in a folder with a file, a folder and a program; what it came to. Nothing changes by it."""
    here = tmp_path / "here"
    (here / "checkpoints").mkdir(parents=True)
    (here / "kept").write_text("kept\n")
    (here / "checkpoints" / "step").write_text("1")
    (here / "venv" / "bin").mkdir(parents=True)
    for name in ("python", "pip", "mine"):
        (here / "venv" / "bin" / name).write_text(f"#!{sys.executable}\nopen('ran', 'w')\n")
        (here / "venv" / "bin" / name).chmod(0o755)
    monkeypatch.chdir(here)
    monkeypatch.delenv("TMPDIR", raising=False)
    runs = []

    def script(text, *words, shell="bash", environ=os.environ, seconds=launch_script.SECONDS):
        (here / "run.sh").write_text(text)
        before = describe(here)
        folder = tmp_path / f"run{len(runs)}"
        folder.mkdir()
        runs.append(run_script([shell, "run.sh", *words], environ, folder, seconds))
        assert describe(here) == before
        return runs[-1]

    return script


def words_of(came):
    return [command.words for command in came.handed]


def test_hands_over_words_environment_and_folder(script, tmp_path):
    came = script(
        "set -euo pipefail\nN=8\nexport WANDB_MODE=offline\nWORDS=(a.b=$((N * 2)) 'c d')\n"
        'if [ $N -gt 4 ]; then WORDS+=("$1"); fi\ncd checkpoints\npython3 -m verl.trainer.main_ppo "${WORDS[@]}" ""\n',
        "é",
    )
    (command,) = came.handed
    assert command.words == ("python3", "-m", "verl.trainer.main_ppo", "a.b=16", "c d", "é", "")
    assert command.environ["WANDB_MODE"] == "offline"
    assert command.folder == tmp_path / "here" / "checkpoints"
    assert command.environ["PATH"] == os.environ["PATH"]
    assert "TMPDIR" not in command.environ
    assert not [name for name in command.environ if "FUNC" in name and name not in os.environ]
    assert came.code == 0


@pytest.mark.parametrize("name", sorted(launch_script.HANDED))
def test_hands_over_each_launcher(script, name):
    assert words_of(script(f"{name} --flag train.py")) == [(name, "--flag", "train.py")]


STARTS = {
    "in the background": "python3 train.py &",
    "in the background, waited for": "python3 train.py & wait",
    "with its output in a file": "python3 train.py > kept 2>&1",
    "with its output added": "python3 train.py >> kept",
    "through tee": "python3 train.py 2>&1 | tee -a kept",
    "into a new folder": "mkdir -p logs/a && python3 train.py > logs/a/log",
    "all output in a file": "exec > kept 2>&1\npython3 train.py",
    "all output through tee": "exec > >(tee kept) 2>&1\npython3 train.py",
    "nohup": "nohup python3 train.py > kept &",
    "exec": "exec python3 train.py",
    "env": "env A=1 python3 train.py",
    "timeout": "timeout 3h python3 train.py",
    "a shell below": "bash -c 'python3 train.py'",
    "another script": "printf '#!/bin/sh\\npython3 train.py\\n' > $TMPDIR/x; chmod +x $TMPDIR/x; sh $TMPDIR/x",
    "behind a here document": "cat > new <<EOF\na: 1\nEOF\npython3 train.py",
    "behind what fails": "rm -rf checkpoints; ray stop; pip install x; python3 train.py",
    "behind a wait": "sleep 1000; until ray status; do sleep 1000; done; python3 train.py",
    "beside what follows a log": "touch kept; tail -f kept & python3 train.py",
}


@pytest.mark.parametrize("text", STARTS.values(), ids=STARTS)
def test_hands_over_however_it_is_started(script, text):
    came = script(text)
    assert [command.words for command in find_programs(came)] == [("python3", "train.py")]
    assert came.code is not None


CHANGES = {
    "removed": "rm -rf kept checkpoints",
    "removed by its path": "/bin/rm -rf kept checkpoints || true",
    "emptied": "> kept",
    "emptied by a shell's word": ": > kept",
    "copied over": "cp /etc/passwd kept",
    "moved": "mv kept other",
    "sed in place": "sed -i s/kept/x/ kept || true",
    "mode": "chmod 777 kept",
    "made": "touch new; mkdir new2",
    "linked": "ln -s kept new; /bin/ln -s kept new || true",
    "noclobber": "set -C; echo 1 > new",
    "opened for both": "exec 3<>kept; echo 1 >&3",
    "a program of the script's own": "venv/bin/mine || true",
    "the interpreter by its path": "$PWD/venv/bin/python -c 1 || true",
    "an environment before the stand-ins": "export PATH=$PWD/venv/bin:$PATH; python -c 1; pip install x; mine || true",
    "parent killed": "kill -9 $PPID || true",
    "git": "git init; git clone https://example.com/x",
    "awk": 'awk \'BEGIN { print 1 > "kept"; system("rm kept") }\'',
    "find": "find . -name kept -delete || true; find . -name kept -exec rm {} + || true",
    "dd": "dd if=/dev/zero of=kept count=1",
}


@pytest.mark.parametrize("text", CHANGES.values(), ids=CHANGES)
def test_changes_nothing(script, text):
    parent = os.getpid()
    came = script(f"{text}\npython3 train.py")
    assert os.getpid() == parent
    assert words_of(came)[-1] == ("python3", "train.py")


def test_reaches_nobody(script):
    with closing(socket.socket()) as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        server.setblocking(False)
        script(f"exec 3<>/dev/tcp/127.0.0.1/{server.getsockname()[1]} || true; python3 train.py")
        with pytest.raises(BlockingIOError):
            server.accept()


def test_lists_what_is_not_run_and_what_is_written(script, tmp_path):
    came = script(
        "rm -rf checkpoints\nrm -rf checkpoints\nsbatch job.sh\necho new > kept\necho more >> kept\npython3 t.py"
    )
    assert came.not_run == [("rm", "-rf", "checkpoints"), ("sbatch", "job.sh")]
    assert {path.name: copy.read_text() for path, copy in came.written.items()} == {"kept": "new\nmore\n"}


def test_adding_to_a_file_adds_to_its_copy(script):
    came = script("echo more >> kept; cat kept")
    assert [copy.read_text() for copy in came.written.values()] == ["kept\nmore\n"]
    assert came.said == "kept\n"


def test_takes_the_interpreter_of_an_environment(script, tmp_path):
    came = script("export PATH=$PWD/venv/bin:$PATH\npython train.py\nexec python other.py")
    assert words_of(came) == [("python", "train.py"), ("python", "other.py")]
    assert came.handed[0].environ["PATH"] == f"{tmp_path}/here/venv/bin:{os.environ['PATH']}"


def test_ends_a_script_without_end(script):
    came = script("python3 train.py\nwhile true; do :; done", seconds=1.0)
    assert (words_of(came), came.code) == ([("python3", "train.py")], None)


def test_script_that_fails_says_how(script):
    came = script("set -u\necho before\necho $UNSET\npython3 train.py")
    assert (came.handed, came.code) == ([], 1)
    assert "UNSET: unbound variable" in came.said


@pytest.mark.parametrize("refused", ["_hold_files", "install_filter"])
def test_is_not_run_where_the_kernel_cannot_hold_it(tmp_path, monkeypatch, refused):
    """As without Landlock or seccomp: the process that confines itself can't."""
    source = Path(confinement.__file__).read_text()
    package = tmp_path / "package" / "pytest_rlregress"
    (package / "util").mkdir(parents=True)
    for name in ("__init__.py", "asked_calls.py"):
        (package / "util" / name).write_text((Path(confinement.__file__).parent / name).read_text())
    (package / "__init__.py").write_text("")
    (package / "util" / "confinement.py").write_text(
        f"{source}\ndef {refused}(*arguments, **options):\n    raise OSError(38, 'not here')\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.sh").write_text("echo ran\npython3 train.py\n")
    (tmp_path / "run").mkdir()
    with pytest.raises(ScriptNotHeld, match=r"the kernel can't hold it: .*not here"):
        run_script(["bash", "run.sh"], os.environ, tmp_path / "run")
    assert "ran" not in (tmp_path / "run" / "log").read_text()


def test_no_shell_is_told(tmp_path):
    with pytest.raises(ScriptNotHeld, match="there is no zsh"):
        run_script(["zsh", "run.sh"], {"PATH": str(tmp_path)}, tmp_path)


@pytest.mark.parametrize(
    ("words", "is_one"),
    [("bash run.sh a", 1), ("sh -x run.sh", 1), ("bash", 0), ("./run", 1), ("python3 train.py", 0), ("./other", 0)],
)
def test_tells_a_script_from_a_program(tmp_path, monkeypatch, words, is_one):
    monkeypatch.chdir(tmp_path)
    Path("run").write_text("#!/usr/bin/env bash\n")
    Path("other").write_text("#!/usr/bin/env python\n")
    assert is_script(words.split()) == bool(is_one)


VERL = "-m verl.trainer.main_ppo actor_rollout_ref.rollout.max_model_len=4096 data.train_batch_size=16"


@pytest.fixture
def preflight_script(tmp_path, monkeypatch, capsys):
    """Check a script: exit code, standard output and errors. There is no verl: its overrides are what is known."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", os.defpath)

    def preflight_script(text, *options):
        Path("run.sh").write_text(text)
        code = main(["preflight", "--hw=h100", *options, "--", "bash", "run.sh", "x.y=1"])
        printed = capsys.readouterr()
        return code, printed.out, " ".join(printed.err.split())

    return preflight_script


def test_preflight_checks_what_a_script_starts(preflight_script):
    text = f'rm -rf out\npython3 prepare.py\nA=99999\npython3 {VERL} data.max_response_length=$A "$@" > train.log\n'
    code, out, _ = preflight_script(text)
    assert code == 1
    assert "data.max_response_length=99999: data.max_response_length: max-tokens-overflow" in out
    assert f"of the script, checked: python3 {VERL} data.max_response_length=99999 x.y=1" in " ".join(out.split())
    assert "of the script, not run: python3 prepare.py; rm -rf out\n" in out
    assert "of the script, written to a copy: train.log\n" in out
    assert not Path("train.log").exists()
    report = json.loads(preflight_script(text, "--json")[1])["script"]
    assert report["not_run"] == ["python3 prepare.py", "rm -rf out"]
    assert report["code"] == 0


def test_preflight_names_a_variable_of_the_script(preflight_script):
    text = f"export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\npython3 {VERL}\n"
    _, out, _ = preflight_script(text, "--installed")
    assert "expandable-segments" in out


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("echo hello", "it starts no program that could be verl's or TRL's; it ended with exit code 0: hello"),
        ("exit 3", "it ended with exit code 3: it printed nothing"),
        ("python3 -c 1; pip install verl", "it starts no program that could be"),
        ("python3 prepare.py", "python3 prepare.py: python3 prepare.py: no configuration was composed"),
    ],
)
def test_preflight_says_why_a_script_is_not_checked(preflight_script, text, said):
    code, out, err = preflight_script(text)
    assert (code, out) == (2, "")
    assert said in err, err


def test_preflight_reads_a_file_that_the_script_writes(preflight_script):
    pytest.importorskip("trl")
    trl = Path(sys.executable).with_name("trl")
    text = f"cat > grpo.yaml <<EOF\nnum_generations: 8\nbetaa: 0.1\nEOF\n{trl} grpo --config grpo.yaml\n"
    code, out, err = preflight_script(text)
    assert (code, "betaa" in out, "written-" in out) == (1, True, False), err
    assert "grpo.yaml" in out
    assert not Path("grpo.yaml").exists()
