"""Run uv with the user's index settings: it ends when this process does, and its refusals come as one line."""

from __future__ import annotations

import configparser
import errno
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pytest_rlregress.environments import RequestError
from pytest_rlregress.util.processes import descendants
from pytest_rlregress.util.surroundings import home
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
# What says in uv's variables or files where packages come from.
_INDEXES_OF_UV = {
    *("UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_INDEX", "UV_EXTRA_INDEX_URL"),
    *("index", "index-url", "extra-index-url", "no-index"),
}
_TRUE = ("y", "yes", "t", "true", "on", "1")
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


# -- where packages come from ----------------------------------------------------------------------------------------


def read_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """Read what pip is configured with, in variables or files, as variables by which uv uses the same.

    What uv has of its own is left out. The indexes are taken together, from uv or from pip: one's default with the
    other's extras is what nobody configured. So are the links.

    Raises:
        RequestError: A file of theirs cannot be read.
    """
    of_pip, of_uv, variables = _read_pip(environ), _read_known_to_uv(environ).keys(), {}
    if not of_uv & _INDEXES_OF_UV:
        if of_pip.get("no-index", "").lower() in _TRUE:
            variables["UV_DEFAULT_INDEX"] = "file:///nonexistent"  # uv has no variable for --no-index
        else:
            if url := of_pip.get("index-url", "").strip():
                variables["UV_DEFAULT_INDEX"] = url
            if more := of_pip.get("extra-index-url", "").split():
                variables |= {"UV_INDEX": " ".join(more), "UV_INDEX_STRATEGY": "unsafe-best-match"}
    # pip passes over a folder that is not there, uv ends with an error.
    places = map(os.path.expanduser, of_pip.get("find-links", "").split())
    links = [place for place in places if "://" in place or os.path.exists(place)]
    if links and not of_uv & {"UV_FIND_LINKS", "find-links"}:
        variables["UV_FIND_LINKS"] = ",".join(links)
    if of_pip.get("cert") and "SSL_CERT_FILE" not in of_uv:
        variables["SSL_CERT_FILE"] = of_pip["cert"].strip()
    return variables


@dataclass(frozen=True)
class PackageSources:
    """Where packages come from.

    Attributes:
        indexes: URLs of the simple repository API, the first to be asked first.
        links: Folders of distributions, and pages that link to some.
    """

    indexes: tuple[str, ...]
    links: tuple[str, ...]


def read_sources(environ: Mapping[str, str]) -> PackageSources:
    """Read where uv and pip are configured to take packages from, for what reads an index itself.

    Raises:
        RequestError: A file of theirs cannot be read.
    """
    known = _read_known_to_uv(environ) | read_settings(environ)
    tables = [one for one in known.get("index", ()) if isinstance(one, dict)]
    default = next((one["url"] for one in tables if one.get("default")), "https://pypi.org/simple")
    default = known.get("UV_DEFAULT_INDEX") or known.get("UV_INDEX_URL") or known.get("index-url") or default
    more = [*known.get("UV_INDEX", "").split(), *known.get("UV_EXTRA_INDEX_URL", "").split()]
    more = [re.sub(r"^[\w-]+=(?=\w+:)", "", one) for one in more]  # an index may have a name
    more += [one["url"] for one in tables if not one.get("default")]
    more += known.get("extra-index-url", ())
    links = [*filter(None, known.get("UV_FIND_LINKS", "").split(",")), *known.get("find-links", ())]
    indexes = () if known.get("no-index") else dict.fromkeys([*more, default])
    return PackageSources(tuple(one.rstrip("/") for one in indexes), tuple(dict.fromkeys(links)))


def _read_known_to_uv(environ: Mapping[str, str]) -> dict[str, Any]:
    """Read what uv has of its own: variables, and the keys of its files, the user's and the first of the system's.

    https://docs.astral.sh/uv/concepts/configuration-files
    """
    user, *system = (Path(folder, "uv/uv.toml") for folder in (*_list_config_folders(environ), "/etc"))
    files = [file for file in (next(filter(Path.is_file, system), user), user) if file.is_file()]
    if environ.get("UV_NO_CONFIG"):
        files = []
    elif named := environ.get("UV_CONFIG_FILE"):
        files = [Path(named)]
    known: dict[str, Any] = {name: value for name, value in environ.items() if value}
    for file in files:
        try:
            whole = tomllib.loads(file.read_text(encoding="utf-8"))
            known |= whole | whole.get("pip", {})
        except (OSError, ValueError) as error:
            raise RequestError(f"{file}: no configuration that uv could read: {error}") from None
    return known


def _read_pip(environ: Mapping[str, str]) -> dict[str, str]:
    """Read what ``pip install`` is configured with: the nearest source of each setting is its only one.

    https://pip.pypa.io/en/stable/topics/configuration/#location
    """
    named = environ.get("PIP_CONFIG_FILE", "")
    user, *shared = (Path(folder, "pip/pip.conf") for folder in _list_config_folders(environ))
    of_user = [Path(environ.get("HOME") or home() or "/", ".pip/pip.conf"), user]
    files = [*shared, Path("/etc/pip.conf"), *of_user, Path(sys.prefix, "pip.conf")]  # the nearest comes last
    if os.path.exists(named):  # takes the place of the user's: https://github.com/pypa/pip/issues/10643
        files = [*(file for file in files if file not in of_user), Path(named)]
    parser = configparser.RawConfigParser()
    parser.optionxform = lambda key: key.lower().replace("_", "-")  # type: ignore[assignment,method-assign]
    try:
        parser.read([] if named == os.devnull else files, encoding="utf-8")
    except (ValueError, configparser.Error) as error:
        raise RequestError(f"no configuration that pip could read: {on_one_line(str(error))}") from None
    found = {
        key: value for part in ("global", "install") if parser.has_section(part) for key, value in parser[part].items()
    }
    variables = {
        name[4:].lower().replace("_", "-"): value
        for name, value in environ.items()
        if name.startswith("PIP_") and value
    }
    return found | variables


def _list_config_folders(environ: Mapping[str, str]) -> list[str]:
    """List the folders of the user's and then the system's configurations."""
    user = environ.get("XDG_CONFIG_HOME") or os.path.join(environ.get("HOME") or home() or "/", ".config")
    return [user, *filter(None, (environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(os.pathsep))]
