"""What a trial takes of the user's configuration of pytest: his ini file, but of addopts and variables only a list.

A trial runs the user's tests as he does, and writes nothing of his: no report, no record, no coverage. So of
``addopts`` and ``PYTEST_ADDOPTS`` it takes the options that are listed here and those that a conftest.py of his
declares; the others are named.
"""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pytest_rlregress.environments import RequestError
from pytest_rlregress.util.surroundings import working_folder

# They say what is run and how, and write nothing. An option that another program's plugin has may write anything.
_TAKEN = {
    *("-p", "-W", "--pythonwarnings", "-o", "--override-ini", "-c", "--config-file", "--rootdir", "--confcutdir"),
    *("--import-mode", "--strict", "--strict-markers", "--strict-config", "--noconftest", "--assert", "--ignore"),
    *(
        "--ignore-glob",
        "--deselect",
        "-k",
        "-m",
        "--doctest-modules",
        "--doctest-glob",
        "--doctest-continue-on-failure",
    ),
    *("--asyncio-mode", "--anyio-mode", "--ds", "--dc", "--hypothesis-profile", "--hypothesis-seed", "--timeout"),
    *("--hw", "--rl-timeout", "--rl-memory", "--rl-stall", "--rl-long", "--rl-quick", "--rl-require", "--rl-goldens"),
}
#: Variables that a trial doesn't get: where a run of the user's writes, and his addopts, of which it takes the list.
LEFT_OUT = (
    *("PYTHONHOME", "PYTEST_ADDOPTS", "RLREGRESS_RECORD_DIR", "RLREGRESS_UPDATE_GOLDENS"),
    *("GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT", "GITHUB_ENV", "GITHUB_PATH", "GITHUB_STATE"),
)
# Variables that decide how tests end, whoever runs them. The cache is where a trial is kept, and not part of one.
_DECIDES = (
    *("RLREGRESS_", "PYTEST_", "PYTHON", "VLLM_", "TORCH", "PYTORCH_", "CUDA_", "NCCL_", "HF_", "TRANSFORMERS_"),
    *("RAY_", "VERL_", "TRL_", "TOKENIZERS_", "HYPOTHESIS_", "OMP_", "MKL_"),
)
_PASSING = {
    "PYTEST_CURRENT_TEST",
    "PYTEST_VERSION",
    "PYTEST_XDIST_WORKER",
    "PYTEST_XDIST_TESTRUNUID",
    "RLREGRESS_CACHE_DIR",
}
# Files in which pytest looks for its settings, with the tables that are its own.
_TOML_FILES = {"pyproject.toml": ("tool", "pytest"), "pytest.toml": (), ".pytest.toml": ()}
_INI_FILES = {"pytest.ini": "pytest", ".pytest.ini": "pytest", "tox.ini": "pytest", "setup.cfg": "tool:pytest"}


@dataclass(frozen=True)
class Options:
    """The words of ``addopts`` and ``PYTEST_ADDOPTS`` that a trial takes, and the others."""

    taken: tuple[str, ...] = ()
    left: tuple[str, ...] = ()


def read_options(arguments: Sequence[str]) -> Options:
    """Read what the ini file and the environment add to pytest's options, for tests named so.

    Raises:
        RequestError: pytest cannot read them.
    """
    # What the ini file asks of a run is read and not obeyed.
    of_a_run = ("required_plugins", "filterwarnings", "strict", "strict_config")
    overrides = [part for name in of_a_run for part in ("-o", f"{name}=")]
    places = [word.partition("::")[0] for word in arguments]
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
            patch.delenv("PYTEST_PLUGINS", raising=False)
            quiet = ["--noconftest", "--capture=no", "--assert=plain"]
            config = pytest.Config.fromdictargs({}, [*quiet, *overrides, *places])
        words = [*config.getini("addopts"), *shlex.split(os.environ.get("PYTEST_ADDOPTS", ""))]
    except (pytest.UsageError, ValueError) as error:
        raise RequestError(f"pytest's configuration cannot be read: {error}") from None
    conftests = "".join(_read(folder / "conftest.py") for folder in _folders_above(arguments))
    return choose(words, frozenset(re.findall(r"""["'](--?[\w-]+)["']""", conftests)))


def choose(words: Iterable[str], of_conftests: frozenset[str] = frozenset()) -> Options:
    """Divide options into those that a trial takes and the others; a word without a dash goes with the one before."""
    taken: list[str] = []
    left: list[str] = []
    into = left
    for word in words:
        if word.startswith("-"):
            name = word.partition("=")[0] if word.startswith("--") else word[:2]
            into = taken if name in _TAKEN or name in of_conftests else left
        into.append(word)
    return Options(tuple(taken), tuple(left))


def make_key(arguments: Sequence[str]) -> Mapping[str, Any]:
    """Return what of the user's configuration decides how a trial ends, for the key of what is kept of it."""
    variables = {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith(_DECIDES) and name not in _PASSING and name not in LEFT_OUT
    }
    settings = [text for folder in _folders_above(arguments) for text in _list_settings(folder)]
    return {"variables": variables, "settings": settings}


def _folders_above(arguments: Sequence[str]) -> list[Path]:
    """Return the folders of tests and the working folder, with all above them."""
    here = working_folder()
    named = {here, *(here / word.partition("::")[0] for word in arguments)}
    return sorted({folder for one in named for folder in (one, *one.parents)})


def _list_settings(folder: Path) -> Iterator[str]:
    """Yield the settings of pytest in the files of a folder; a file that isn't what its name says, as it is."""
    for name, tables in _TOML_FILES.items():
        if text := _read(folder / name):
            try:
                table: Any = tomllib.loads(text)
                for part in tables:
                    table = table.get(part, {})
                text = json.dumps(table, default=str) if table else ""
            except (ValueError, AttributeError, RecursionError):
                pass
            yield from filter(None, [text])
    for name, section in _INI_FILES.items():
        if text := _read(folder / name):
            parser = configparser.RawConfigParser()
            try:
                parser.read_string(text)
                text = json.dumps(parser.items(section)) if parser.has_section(section) else ""
            except configparser.Error:
                pass
            yield from filter(None, [text])


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    except OSError:
        return ""
