"""Output follows its terminal or pipe: lines fit a terminal, a pipe has no colours, a shell completes."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import termios

import histories
import pytest
from installed import TESTS

from pytest_rlregress.cli import COMMANDS, main
from pytest_rlregress.util.terminal import takes_colours
from pytest_rlregress.util.text import CleanStream, columns, wrapped

#: Commands that answer without a network, a stack or another process.
ANSWERED = {
    "list": ["list"],
    "one failure": ["list", "pad-is-eos"],
    "diagnose": ["diagnose", "train.log", "verl.jsonl"],
    "preflight": ["preflight", "run.yaml", "--hw=h100"],
    "audit": ["audit", "batch.jsonl"],
    "report": ["report", "records", "--markdown", "night.md"],
    "expect": ["expect", "records", "--because=it was renamed", "--issue=https://example.org/issues/12"],
}
HELP = {f"{name} --help": [name, "--help"] for name in COMMANDS}


@pytest.fixture
def answer(tmp_path, monkeypatch, capsys):
    """Return what a command prints on a terminal of so many columns; None is a pipe."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.log").write_text("\x1b[31mRuntimeError: CUDA out of memory. Tried to allocate 20 MiB\x1b[0m\n")
    (tmp_path / "batch.jsonl").write_text('{"input": "a", "output": "b", "score": 1.0}\n' * 4)
    shutil.copy(TESTS / "metrics/verl-sound.jsonl", tmp_path / "verl.jsonl")
    shutil.copy(TESTS / "configs/verl-h200-gspo-3b.yaml", tmp_path / "run.yaml")

    def answer(command, width):
        if "records" in command and not (tmp_path / "records").exists():
            histories.make(tmp_path / "records", nights=2, tests=4)
        monkeypatch.setenv("COLUMNS", str(width or 60))  # which says nothing about a pipe
        monkeypatch.setattr(sys.stdout, "isatty", lambda: width is not None)
        with contextlib.suppress(SystemExit):  # of --help
            main([*command])
        printed = capsys.readouterr()
        return printed.out + printed.err

    return answer


def too_long(text, width):
    """Lines of prose that could have been broken: no code, nothing that is to be copied or laid out."""
    code = re.compile(r"^ {4,}|`| {2}\S|^\||^rlregress |^#|^- |^usage: |^\S+ = |^ {2}(rlregress|--)|https?://")
    return [line for line in text.splitlines() if len(line) > width and " " in line.strip() and not code.search(line)]


@pytest.mark.parametrize("command", [*ANSWERED.values(), *HELP.values()], ids=[*ANSWERED, *HELP])
def test_lines_fit_the_terminal_and_no_word_is_lost(answer, command):
    texts = {width: answer(command, width) for width in (40, 80, 200, None)}
    words = {width: " ".join(re.sub(r"-{3,}", "", text).split()) for width, text in texts.items()}
    assert words[40] == words[80] == words[200] == words[None]
    assert "\x1b" not in "".join(texts.values())
    if "--help" not in command:
        assert texts[200] == texts[None]
        assert not too_long(texts[None], 100)
    assert not too_long(texts[80], 80)


@pytest.mark.parametrize("width", [40, 60, 100])
def test_a_command_in_backticks_stays_on_one_line(width):
    command = (
        "`rlregress preflight --hw=h100 --memory=80 -- python3 -m verl.trainer.main_ppo data.train_batch_size=256`"
    )
    before = columns.set(width)
    try:
        lines = wrapped(f"Ask before a card is rented, with what you start: {command}, then rent it.", rest="  ")
    finally:
        columns.reset(before)
    assert any(command in line for line in lines)
    assert all(len(line) <= width for line in lines if "`" not in line)


def test_a_lone_backtick_glues_nothing():
    assert max(map(len, wrapped("word ` " + "word " * 60))) <= 100


@pytest.mark.parametrize(
    ("variables", "on_terminal", "in_pipe"),
    [
        ({}, True, False),
        ({"NO_COLOR": "1"}, False, False),
        ({"NO_COLOR": ""}, True, False),
        ({"FORCE_COLOR": "1"}, True, True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False, False),
        ({"TERM": "dumb"}, False, False),
    ],
)
def test_colours_of_others_follow_the_terminal_and_the_user(monkeypatch, variables, on_terminal, in_pipe):
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    for is_terminal, expected in ((True, on_terminal), (False, in_pipe)):
        stream = io.StringIO()
        stream.isatty = lambda is_terminal=is_terminal: is_terminal
        CleanStream(stream, colours=takes_colours(stream)).write("\x1b[31mred\x1b[0m \x1b[2J")
        assert ("\x1b[31mred" in stream.getvalue()) is expected
        assert "\x1b[2J" not in stream.getvalue()


def print_on_terminal(width, *command):
    """Return what a command prints on a terminal of so many columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    variables = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR")}
    child = subprocess.Popen(
        [sys.executable, "-m", "pytest_rlregress.cli", *command],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=variables,
    )
    os.close(theirs)
    printed = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # Linux's end of a terminal
            break
        if not part:
            break
        printed += part
    os.close(ours)
    assert child.wait() == 0
    return printed.decode().replace("\r\n", "\n")


def test_a_real_terminal_is_asked_for_its_width():
    narrow = print_on_terminal(60, "list", "pad-is-eos")
    assert 50 < max(map(len, narrow.splitlines())) <= 60
    assert "\x1b" not in narrow
    assert 90 < max(map(len, print_on_terminal(300, "list", "pad-is-eos").splitlines())) <= 100


@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh"])
def test_prints_the_completion_of_a_shell(capsys, shell):
    pytest.importorskip("shtab")
    with pytest.raises(SystemExit, match="0"):
        main(["--print-completion", shell])
    printed = capsys.readouterr().out
    for word in (*COMMANDS, "prompt-tokens", "because", "record-dir"):
        assert word in printed


def test_bash_completes_a_command_an_option_and_a_file(tmp_path, capsys):
    pytest.importorskip("shtab")
    with pytest.raises(SystemExit, match="0"):
        main(["--print-completion", "bash"])
    (tmp_path / "completion").write_text(capsys.readouterr().out)
    (tmp_path / "train.log").touch()
    script = "source completion\n" + "".join(
        f"COMP_WORDS=(rlregress {words}); COMP_CWORD={len(words.split())}; _shtab_rlregress; echo ${{COMPREPLY[@]}}\n"
        for words in ("pref", "preflight --mem", "diagnose tr")
    )
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["preflight", "--memory", "train.log"]


def test_completion_says_what_it_lacks(capsys, monkeypatch):
    with pytest.raises(SystemExit, match="2"):
        main(["--print-completion", "none"])
    assert "'none' isn't a known shell. Known: bash, zsh, tcsh" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "shtab", None)
    with pytest.raises(SystemExit, match="2"):
        main(["--print-completion", "bash"])
    assert "pip install 'pytest-rlregress[completion]'" in capsys.readouterr().err
