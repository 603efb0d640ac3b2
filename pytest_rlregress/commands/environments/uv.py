"""Run uv with the user's index settings: it ends when this process does, and its refusals come as one line."""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from pytest_rlregress.commands.environments import RequestError
from pytest_rlregress.util.processes import descendants
from pytest_rlregress.util.text import on_one_line

# These say which packages to take, which here the lock does.
_NOT_OURS = frozenset(
    f"UV_{name}"
    for name in (
        *("CONSTRAINT", "OVERRIDE", "EXCLUDE", "RESOLUTION", "PRERELEASE"),
        *("REQUIRE_HASHES", "NO_EDITABLE", "COMPILE_BYTECODE"),
    )
)
# A build such as 2.13.0+cpu, which only an index of PyTorch's own has; uv knows these by the label.
_NO_SUCH_BUILD = re.compile(r"no version of \S+==[\w.]+\+(cpu|cu\d+|rocm[\d.]+|xpu)\b")
_WRITTEN = ("out.txt", "pylock.release.toml")
_DISK_FULL = re.compile(rf"\(os error ({errno.ENOSPC}|{errno.EDQUOT})\)")


class Unbuildable(Exception):
    """A set of packages that cannot be resolved or installed: the message is uv's reason, on one line.

    Attributes:
        text: All that uv said.
        conflict: Why no set can be, whole; "" where it was another error, such as no network.
    """

    def __init__(self, reason: str, text: str, conflict: str = "") -> None:
        super().__init__(reason)
        self.text, self.conflict = text, conflict


class Installer:
    """Runs uv.

    Args:
        settings: Variables that say where packages come from, beside what uv reads itself.
        offline: Whether only uv's cache and local folders may be used.

    Raises:
        RequestError: uv is not installed.
    """

    def __init__(self, settings: Mapping[str, str], offline: bool) -> None:
        self.offline = offline
        self._uv = _find_uv()
        self._variables = {name: value for name, value in os.environ.items() if name not in _NOT_OURS}
        self._variables |= settings

    def pip(
        self,
        *arguments: str,
        files: Mapping[str, str],
        offline: bool = False,
        keep_open: Sequence[int] = (),
    ) -> str:
        """Run ``uv pip``; return what it wrote to ``out.txt`` or ``pylock.release.toml``.

        Args:
            arguments: For uv; files by their names.
            files: Name -> text, in the folder that uv is run for; ``uv.toml`` is its configuration.
            offline: Whether to use no more than the cache this time.
            keep_open: File descriptors that uv shall hold as long as it runs.

        Raises:
            Unbuildable: uv ended with an error.
            RequestError: The disk is full.
            KeyboardInterrupt: It was interrupted.
        """
        with TemporaryDirectory(prefix="rlregress-") as name:
            folder, variables, ours = Path(name), dict(self._variables), files.get("uv.toml", "")
            # uv reads the folder's uv.toml beside the user's own; a file that the user names takes the place of both.
            named = variables.get("UV_CONFIG_FILE")
            if named or variables.pop("UV_NO_CONFIG", None):
                theirs = Path(named).read_text(encoding="utf-8") if named else ""
                ours, variables["UV_CONFIG_FILE"] = f"{theirs}\n{ours}", str(folder / "uv.toml")
            for file, text in {**files, "uv.toml": ours}.items():
                (folder / file).write_text(text, encoding="utf-8")
            options = [str(folder / one) if one in files or one in _WRITTEN else one for one in arguments]
            command = ["pip", *options, "--project", name, *(["--offline"] if offline or self.offline else [])]
            try:
                self.run(*command, variables=variables, keep_open=keep_open)
            except Unbuildable as error:
                label = _NO_SUCH_BUILD.search(error.text)
                if label is None or "--torch-backend" in command:
                    raise
                try:
                    self.run(*command, "--torch-backend", label[1], variables=variables, keep_open=keep_open)
                except Unbuildable as other:
                    reason = f"{error}; with --torch-backend {label[1]}: {other}"
                    raise Unbuildable(reason, f"{error.text}\n{other.text}", error.conflict and reason) from None
            return "".join(file.read_text(encoding="utf-8") for file in map(folder.joinpath, _WRITTEN) if file.exists())

    def run(self, *arguments: str, variables: Mapping[str, str] | None = None, keep_open: Sequence[int] = ()) -> None:
        """Run uv. Raises as ``pip`` does."""
        uv = subprocess.Popen(
            [self._uv, *arguments, "--color=never", "--no-progress"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            env=variables or self._variables,
            pass_fds=keep_open,
        )
        try:
            output = uv.communicate()[1]
        except BaseException:
            _terminate(uv)
            raise
        if uv.returncode in (-2, 130):  # SIGINT, as a signal and as uv tells of it
            raise KeyboardInterrupt
        if _DISK_FULL.search(output):
            why = f"No space left on the disk: {summarize_error(output)}"
            raise RequestError(f"{why}. Free some; then the same command goes on from here.")
        if uv.returncode:
            reason = summarize_error(output) or f"uv ended with exit code {uv.returncode}"
            raise Unbuildable(reason, output, reason if "error: No solution found" in output else "")


def summarize_error(output: str) -> str:
    """Summarize an error of uv as one line: without its progress, a build's output and credentials."""
    error = re.search(r"^error: (.*)", output, re.MULTILINE | re.DOTALL)
    text = re.split(r"\n\s*\[std(?:out|err)\]|\n\s*(?:hint|warning): ", error[1] if error else output)[0]
    text = re.sub(r"^\s*cause: ", "\0", text, flags=re.MULTILINE)
    causes = [re.sub(r"(?<=//)[^/]*@", "", on_one_line(cause)) for cause in text.split("\0")]
    if causes[0].startswith("No solution found") and len(causes) > 1:
        del causes[0]
    return ": ".join(causes).rstrip(".")


def _terminate(uv: subprocess.Popen[str]) -> None:
    """End uv and what it started to build a package."""
    for pid in (uv.pid, *(process.pid for process in descendants(uv.pid))):
        with suppress(ProcessLookupError):
            os.kill(pid, 15)
    with suppress(subprocess.TimeoutExpired):
        uv.wait(10)
    uv.kill()


def _find_uv() -> str:
    with suppress(ImportError, FileNotFoundError):
        from uv import find_uv_bin

        return str(find_uv_bin())
    if found := shutil.which("uv"):
        return found
    raise RequestError("uv is needed to build environments, and is not installed here: pip install uv")
