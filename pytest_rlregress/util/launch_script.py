"""Run a launch script up to the commands that it would train with: no file changes, nothing is trained or removed.

The script runs as it is, held by the kernel (``confinement``). Interpreters and launchers are stand-ins without effect;
their words and environment are handed over. What else would change something is listed, and does nothing either. What
the script writes to a file goes to another one; who reads that file later in the script gets what was there before.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from pytest_rlregress.util import asked_calls
from pytest_rlregress.util.asked_calls import AskedCalls, Started

SECONDS = 60.0
_SHELL = re.compile(r"(?:ba|da|k|z)?sh")
#: What is handed over.
HANDED = frozenset(("python", "python3", "accelerate", "torchrun", "trl", "ray", "uv", "deepspeed"))
_PYTHON = re.compile(r"python[\d.]*")
#: Programs that only tell something; all others are stand-ins.
_TELLS = frozenset(
    """
    [ ash awk basename bash bc cat cmp column comm cut dash date df diff dir dirname du echo egrep env expand expr
    factor false fgrep file find fmt fold free getconf getent gawk grep groups head hostname id jq join ksh ldd less
    locale logname ls lscpu lspci lsof mawk md5sum mktemp more nice nl nohup nproc numactl numfmt nvidia-smi od paste
    pathchk pgrep pr printenv printf ps pwd readlink realpath rev rocm-smi sed seq sh sha256sum shuf sort stat stdbuf
    strings sum tac tail tee test timeout tput tr true tsort tty uname uniq uptime wc which who whoami xargs zsh
    """.split()  # noqa: SIM905
)
_FOLLOWS = {"-f", "-F", "--follow", "-fn", "--retry"}
# An environment that the script activates comes before the stand-ins; functions come before both.
_ALSO_FUNCTIONS = ("pip", "pip3", "conda", "huggingface-cli", "hf", "wandb", "sleep")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/tty", "/dev/stdout", "/dev/stderr")
_OWN_FILE = re.compile(r"/dev/fd/\d+|/proc/(?:self|\d+)/fd/\d+")


class ScriptNotHeld(Exception):
    """The kernel can't hold a script here, so it was not run."""


@dataclass(frozen=True)
class HandedCommand:
    """A command of a script that was handed over: its words, the environment and the folder it would run with."""

    words: tuple[str, ...]
    environ: Mapping[str, str]
    folder: Path


@dataclass
class ScriptRun:
    """What a script came to.

    Attributes:
        handed: Commands, in their order.
        not_run: Others that would have changed something, each once.
        written: Files that it would have written, with where their content is.
        code: Its exit code; None where it took too long and was ended.
        said: What it printed.
    """

    handed: list[HandedCommand] = field(default_factory=list)
    not_run: list[tuple[str, ...]] = field(default_factory=list)
    written: dict[Path, Path] = field(default_factory=dict)
    code: int | None = None
    said: str = ""


def is_script(words: Sequence[str]) -> bool:
    """Return whether a command is a shell with a script, or a script of a shell."""
    if not words:
        return False
    if _SHELL.fullmatch(Path(words[0]).name):
        return any(not word.startswith("-") for word in words[1:])
    try:
        with open(words[0], "rb") as file:
            first = file.readline(200)
    except OSError:
        return False
    return first.startswith(b"#!") and bool(re.search(rb"[/ ](?:ba|da|k|z)?sh\b", first))


def run_script(words: Sequence[str], environ: Mapping[str, str], folder: Path, seconds: float = SECONDS) -> ScriptRun:
    """Run a script with stand-ins, and return what it came to.

    Args:
        words: A shell with its script, or a script.
        environ: What the script would be started with.
        folder: Empty; what the script writes is kept here, and nothing elsewhere changes.
        seconds: After which it is ended.

    Raises:
        ScriptNotHeld: The kernel can't hold it, or there is no such shell: it was not run.
    """
    program = shutil.which(words[0], path=environ.get("PATH", os.defpath))
    if program is None:
        raise ScriptNotHeld(f"there is no {words[0]}")
    return _Script(folder.resolve(), environ).run([os.path.abspath(program), *words[1:]], seconds)


class _Script:
    """A run of a script, with a folder of stand-ins, one of its temporary files and one of what it writes."""

    def __init__(self, folder: Path, environ: Mapping[str, str]) -> None:
        self.folder, self.environ, self.came = folder, environ, ScriptRun()
        self.programs, self.temporary, self.kept = folder / "programs", folder / "tmp", folder / "written"
        for one in (self.programs, self.temporary, self.kept):
            one.mkdir()
        self.made: set[str] = set()
        self.functions = {
            f"BASH_FUNC_{name}%%": f'() {{ "{self.programs / name}" "$@"; }}' for name in (*HANDED, *_ALSO_FUNCTIONS)
        }
        self._make_stand_ins()

    def _make_stand_ins(self) -> None:
        nothing = self.folder / "nothing"
        nothing.write_text("#!/bin/sh\nexit 0\n")
        nothing.chmod(0o755)
        names = {*HANDED, *_ALSO_FUNCTIONS, "rm", "mkdir", "sbatch", "srun", "pkill"}
        for place in self.environ.get("PATH", os.defpath).split(os.pathsep):
            if os.path.isdir(place):
                names.update(os.listdir(place))
        for name in names - _TELLS:
            (self.programs / name).symlink_to(nothing)

    def run(self, words: list[str], seconds: float) -> ScriptRun:
        """Run it to its end."""
        paths = f"{self.programs}{os.pathsep}{self.environ.get('PATH', os.defpath)}"
        ours, theirs = socket.socketpair()
        log = self.folder / "log"
        with ours, theirs, log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", asked_calls.__name__, str(self.folder), str(theirs.fileno()), *words],
                env={**self.environ, **self.functions, "PATH": paths, "TMPDIR": str(self.temporary)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                pass_fds=[theirs.fileno()],
            )
            theirs.close()
            end = time.monotonic() + seconds
            try:
                left = AskedCalls(self._write, self._start).answer(ours, lambda: time.monotonic() > end)
                self.came.code = None if time.monotonic() > end else process.wait()
            except OSError as error:
                left = [f"what it opens and starts: {error.strerror}"]
            finally:
                with suppress(ProcessLookupError):  # those it started are of its session
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        unconfined = self.folder / "unconfined"
        if unconfined.exists():
            left = unconfined.read_text(encoding="utf-8").splitlines()
        self.came.said = log.read_text(encoding="utf-8", errors="replace")
        if left:
            raise ScriptNotHeld(f"the kernel can't hold it: {'; '.join(left)}")
        return self.came

    def _start(self, started: Started) -> bool:
        """Note what a script starts, and return whether it may: a stand-in, or a program that only tells something."""
        path = os.path.normpath(os.path.join(started.folder, started.path))
        name = os.path.basename(path)
        is_ours = path.startswith(f"{self.programs}/")
        if name == "tail" and not _FOLLOWS.isdisjoint(started.words):  # it would not end
            return False
        if not is_ours and (name in _TELLS or not os.path.exists(path) or is_script([path])):
            return True
        words = (name if is_ours else started.words[0], *started.words[1:])
        if name in HANDED or _PYTHON.fullmatch(name):
            folder = Path(started.folder)
            self.came.handed.append(HandedCommand(words, self._restore(started.environ), folder))
        elif name != "sleep" and words not in self.came.not_run:
            self.came.not_run.append(words)
        if name == "mkdir":
            self.made |= {os.path.normpath(os.path.join(started.folder, word)) for word in words[1:]}
        return is_ours

    def _restore(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return an environment without what was put into it here."""
        kept = {name: value for name, value in environ.items() if name not in self.functions and name != "_"}
        ours = f"{self.programs}{os.pathsep}"
        kept["PATH"] = kept.get("PATH", "").replace(ours, "")
        if kept.get("TMPDIR") == str(self.temporary):
            kept.pop("TMPDIR")
            if "TMPDIR" in self.environ:
                kept["TMPDIR"] = self.environ["TMPDIR"]
        return kept

    def _write(self, path: str, flags: int) -> int | None:
        """Return another file to write to in the place of the user's; None for the script's own and for devices."""
        if path in _DEVICES or _OWN_FILE.fullmatch(path) or f"{path}/".startswith(f"{self.folder}/"):
            return None
        real = Path(path)
        if real.is_dir() or not (real.parent.is_dir() or self._would_be(real.parent)):
            return None  # the kernel says what is wrong with it
        kept = self.came.written.get(real)
        if kept is None:
            kept = self.kept / f"{len(self.came.written)}-{real.name}"[:200]
            kept.touch()
            if real.is_file() and not flags & os.O_TRUNC:
                shutil.copyfile(real, kept)
            self.came.written[real] = kept
        elif flags & os.O_TRUNC:
            kept.write_bytes(b"")
        return os.open(kept, flags & (os.O_ACCMODE | os.O_APPEND) | os.O_CREAT, 0o600)

    def _would_be(self, folder: Path) -> bool:
        """Return whether the script would have made a folder."""
        return any(f"{one}/".startswith(f"{folder}/") for one in self.made)


def find_programs(run: ScriptRun) -> Iterator[HandedCommand]:
    """Yield the commands that may be a trainer's: those that run a program's file or module, not code or a tool."""
    for command in run.handed:
        words = command.words
        module = words[words.index("-m") + 1] if "-m" in words[:-1] else ""
        starts = any(word.endswith(".py") for word in words[1:]) or module.partition(".")[0] not in ("", "pip", "venv")
        if starts or os.path.basename(words[0]) == "trl":
            yield command
