import io
import os
import subprocess
import sys

import pytest

from pytest_rlregress.failures.act import act

WORK = """
import sys
with open("result.txt", "w", encoding="utf-8") as result:
    result.write("reward 0.68")
for stream in (sys.stdout, sys.stderr):
    print({text!a}, "done", file=stream)
"""

CONSOLES = {
    "gbk": {"PYTHONIOENCODING": "gbk"},
    "ascii": {"PYTHONIOENCODING": "ascii:strict"},
    "latin-1": {"PYTHONIOENCODING": "latin-1"},
    "C-locale": {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0", "PYTHONIOENCODING": ":strict"},
}


def work(folder, environ, text="\u2705", stdout=subprocess.PIPE):
    """A real process that writes its result and then prints: how it ended, and that result."""
    command = [sys.executable, "-S", "-c", WORK.format(text=text)]
    pipes = {"stdout": stdout, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
    done = subprocess.run(command, cwd=folder, env=environ, timeout=60, **pipes)
    return done, (folder / "result.txt").read_text()


def environment(console):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "LC_", "LANG"))}
    return {**kept, **CONSOLES[console]}


@pytest.mark.reproduces("console-encoding")
@pytest.mark.parametrize("console", CONSOLES)
def test_printing_fails_the_work(tmp_path, console):
    with act():
        done, result = work(tmp_path, environment(console))
    last = done.stderr.decode().splitlines()[-1]
    assert done.returncode == 0, f"{result!r} was written, and the process ended with exit {done.returncode}: {last}"


@pytest.mark.reproduces("console-encoding")
def test_printing_raises():
    print("\u2705", file=io.TextIOWrapper(io.BytesIO(), encoding="gbk"))


@pytest.mark.guards("console-encoding")
@pytest.mark.parametrize("console", CONSOLES)
@pytest.mark.parametrize(
    ("text", "printed"),
    [("\u2705", "\u2705".encode()), ("\u5b8c\u6210", "\u5b8c\u6210".encode()), ("\udc80", rb"\udc80")],
    ids=["check-mark", "chinese", "lone-surrogate"],
)
def test_printing_any_text(tmp_path, subject, console, text, printed):
    with act():
        done, result = work(tmp_path, subject(environment(console)), text)
    assert (done.returncode, result) == (0, "reward 0.68"), done.stderr.decode()
    assert done.stdout.split() == done.stderr.split() == [printed, b"done"]


@pytest.mark.guards("console-encoding")
@pytest.mark.needs("linux")
def test_printing_on_a_terminal(tmp_path, subject):
    ours, console = os.openpty()
    with act():
        try:
            done, result = work(tmp_path, subject(environment("gbk")), stdout=console)
            assert (done.returncode, result) == (0, "reward 0.68"), done.stderr.decode()
            assert os.read(ours, 100).split() == ["\u2705".encode(), b"done"]
        finally:
            os.close(ours)
            os.close(console)
