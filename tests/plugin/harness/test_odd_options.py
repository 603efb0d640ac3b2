"""Every option of every command takes any text: an answer, or an error that names the option or the value."""

from __future__ import annotations

import errno
import io
import math
import os
import subprocess
import sys
import time

import histories
import hypothesis
import pytest
from hypothesis import strategies as st
from installed import TESTS

from pytest_rlregress.cli import COMMANDS, _make_parser, main, parse

#: Of each command a line that is answered at once; those that would start other programs are only parsed.
LINES = {
    "list": ["list", "pad-is-eos"],
    "new": ["new", "my-failure", "--folder", "made/area"],
    "diagnose": ["diagnose", "train.log"],
    "preflight": ["preflight", "run.toml", "--hw=h100"],
    "audit": ["audit", "batch.jsonl"],
    "report": ["report", "records"],
    "expect": ["expect", "records", "--because=a", "--issue=b"],
    "moved": ["moved", "verl==1..2", "--offline"],
    "upgrade": ["upgrade", "six==1"],
    "bisect": ["bisect", "six", "test_it.py", "--good=1", "--bad=2"],
    "run": ["run", "--hw=h100", "--record-dir=out"],
    "rehearse": ["rehearse"],
}
PARSED = {"moved", "upgrade", "bisect", "run"}
ODD = {
    "empty": "",
    "blank": " ",
    "long": "x" * 5000,
    "400 digits": "9" * 400,
    "5000 digits": "9" * 5000,
    "negative": "-1",
    "zero": "0",
    "nan": "nan",
    "infinite": "inf",
    "1e308": "1e308",
    "superscript": "\u00b2",
    "not text": "\udcff\udcfe",
    "control": "\x1b[31mred\x1b[2J",
    "lines": "a\nb",
    "turned": "a\u202eb",
    "a folder": "folder",
    "a link to nothing": "dangling",
    "below a file": "train.log/x",
    "a device": "/dev/null",
    "memory": "/proc/self/mem",
    "bytes": "binary",
    "nothing in it": "nothing",
    "nobody's home": "~nobody-here/x",
    "a URL": "http://[::1",
    "commas": ",,",
    "an expression": "${x}$(touch hit)",
}
OPTIONS = [
    pytest.param(name, action, id=f"{name} {(action.option_strings or [action.dest])[-1]}")
    for name in COMMANDS
    for action in _make_parser([name])[1].choices[name]._actions
    if action.nargs != 0
]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working folder, with something for every command."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RLREGRESS_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "train.log").write_text("ValueError: something long enough\n")
    (tmp_path / "batch.jsonl").write_text('{"input": "a", "output": "b", "score": 1.0}\n' * 4)
    (tmp_path / "run.toml").write_bytes((TESTS / "configs/prime-rl-h100-7b-lora.toml").read_bytes())
    (tmp_path / "binary").write_bytes(bytes(range(256)) * 4)
    (tmp_path / "nothing").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "dangling").symlink_to("nowhere")
    return tmp_path


@pytest.fixture
def ask(folder, monkeypatch):
    """Run a command in this process, or only parse its arguments: exit code, and what it printed as a file gets it."""

    def ask(arguments, *, only_parse=False):
        out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"ValueError: something long enough\n")))
            patch.setattr(sys, "stdout", out)
            patch.setattr(sys, "stderr", err)
            try:
                code = main(arguments) if not only_parse else bool(parse(arguments)) - 1
            except SystemExit as end:
                code = end.code
        texts = []
        for stream in (out, err):
            stream.flush()
            texts.append(stream.buffer.getvalue().decode(errors="replace"))
        return code, *texts

    return ask


def with_value(name, action, value):
    """A command's line with this value of an option, or word."""
    line = LINES[name]
    if not action.option_strings:
        return [
            line[0],
            *(one for one in line[2:] if action.dest != "words"),
            *line[1:2] * (name == "bisect"),
            "--",
            value,
        ]
    flag = action.option_strings[-1]
    at = line.index(flag) if flag in line else len(line)
    return [*(one for one in line[:at] if not one.startswith(f"{flag}=")), *line[at + 2 :], f"{flag}={value}"]


def check(ask, name, action, value):
    code, out, err = ask(with_value(name, action, value), only_parse=name in PARSED)
    assert "Traceback" not in err, err[-3000:]
    assert code in (0, 1, 2, 3), (code, err)
    assert all(sign.isprintable() or sign in "\n\t\ufffd" for sign in out + err), ascii(out + err)
    assert "invalid _" not in err
    assert "invalid count" not in err
    if code == 2:
        assert err.strip()


@pytest.mark.parametrize(("name", "action"), OPTIONS)
def test_odd_value_is_taken_or_refused(ask, folder, name, action):
    if "records" in LINES[name]:
        histories.make(folder / "records", nights=2, tests=3)
    for value in ODD.values():
        check(ask, name, action, value)
    assert not (folder / "hit").exists()


NUMBERS = {
    "audit": ["--eos", "--model-rows", "--temperature"],
    "preflight": ["--memory", "--parameters", "--prompt-tokens"],
    "rehearse": ["--steps", "--patience"],
    "upgrade": ["--repeat", "--timeout"],
    "bisect": ["--repeat", "--timeout"],
    "run": ["--gpus", "--timeout"],
}
ANY_TEXT = st.text(max_size=30) | st.from_regex(r"-?\d{1,30}(\.\d+)?(e\d+)?[bBmM]?", fullmatch=True)


@pytest.mark.parametrize(("name", "flag"), [(name, flag) for name, flags in NUMBERS.items() for flag in flags])
def test_number_is_above_zero_or_refused_by_the_options_name(ask, name, flag):
    """Whatever the text: an option's value is a number that its command can count with, or one sentence."""

    def check(text):
        code, _, err = ask([*LINES[name], f"{flag}={text}"], only_parse=True)
        if code == 0:
            value = getattr(parse([*LINES[name], f"{flag}={text}"]), flag.strip("-").replace("-", "_"))
            most = math.inf if flag in ("--timeout", "--patience") else 2**63
            assert all(0 <= one <= most for one in (value if flag == "--eos" else [value]))
        else:
            assert code == 2
            assert f"argument {flag}: " in err.splitlines()[-1]

    for text in (*ODD.values(), "1_0", "+1", " 1", "1 ", "0x10", "1e400", "-inf"):
        check(text)
    hypothesis.settings(max_examples=40, deadline=None)(
        hypothesis.given(ANY_TEXT.filter(lambda text: "\0" not in text))(check)
    )()


@pytest.mark.parametrize(
    ("name", "flag"),
    [
        ("upgrade", "--output"),
        ("upgrade", "--markdown"),
        ("bisect", "--json"),
        ("report", "--output"),
        ("report", "--json"),
    ],
)
@pytest.mark.parametrize(
    ("value", "why"), [("train.log/x", "isn't a folder"), ("folder", "is a folder"), ("", "isn't a path")]
)
def test_an_output_that_cannot_be_written_is_said_before_any_work(ask, name, flag, value, why):
    code, _, err = ask([*LINES[name], f"{flag}={value}"], only_parse=True)
    assert code == 2
    assert f"argument {flag}: {value!r}" in err
    assert why in err


PIPES = {
    "diagnose": ["diagnose", "pipe"],
    "audit": ["audit", "pipe"],
    "preflight": ["preflight", "pipe.yaml", "--hw=h100"],
    "report": ["report", "pipe"],
    "report compared": ["report", "--compare", "pipe", "pipe"],
    "expect": ["expect", "pipe", "--because=a", "--issue=b"],
    "expect file": ["expect", "records", "--because=a", "--issue=b", "--file=pipe"],
    "upgrade": ["upgrade", "six==1", "--requirements=pipe", "--no-network"],
    "bisect locks": ["bisect", "--good-lock=pipe", "--bad-lock=pipe", "pad-is-eos", "--no-network"],
    "bisect records": ["bisect", "--from-record=pipe", "--to-record=pipe", "pad-is-eos", "--no-network"],
    "moved": ["moved", "verl==0.9.1..0.9.1", "pipe.yaml", "--offline"],
    "run": ["run", "--hw=h100", "--record-dir=pipe"],
    "list": ["list", "--scenarios=pipe"],
}


@pytest.mark.slow
@pytest.mark.parametrize("line", PIPES.values(), ids=PIPES)
def test_a_pipe_that_nobody_writes_is_refused_or_read_once_written(folder, line):
    """It is refused, or opened to be read: then it gets a text, and the command ends."""
    for name in ("pipe", "pipe.yaml"):
        os.mkfifo(folder / name)
    if "records" in line:
        histories.make(folder / "records", nights=1, tests=3)
    command = subprocess.Popen(
        [sys.executable, "-m", "pytest_rlregress.cli", *line], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    while command.poll() is None:
        for name in ("pipe", "pipe.yaml"):
            write_if_read(folder / name)
        time.sleep(0.05)
    err = command.stderr.read().decode()
    command.stderr.close()
    assert "Traceback" not in err, err
    assert command.returncode in (0, 1, 2, 3)
    assert err.strip() or line[0] == "diagnose"  # which reads a pipe, and of such a text says that it shows nothing


def write_if_read(pipe):
    try:
        end = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    except OSError as error:
        if error.errno == errno.ENXIO:  # nobody reads it
            return
        raise
    with open(end, "wb") as stream:
        stream.write(b"\0 no line\xff\n")
