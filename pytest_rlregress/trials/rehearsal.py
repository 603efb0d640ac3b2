"""A rehearsal as a test: what ``upgrade`` and ``bisect`` run for the command behind ``--``."""

from __future__ import annotations

import hashlib
import json
import shlex
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_rlregress.environments import RequestError

_NAME = 60  # characters of a command that stand in a test's name
_SOUND, _FOUND, _PARTIAL = 0, 1, 3
# A rehearsal that says nothing for ten minutes ends by itself. What is known of a test holds while its file is the
# same: with the digests it is another one where a file changed that the command names.
_TEST = '''\
"""The rehearsal of a command, written by rlregress."""

import pytest

from pytest_rlregress.trials.rehearsal import check_sound

COMMAND = {command!r}
FILES = {files!r}


@pytest.mark.isolated(timeout=7200)
@pytest.mark.parametrize("command", [COMMAND], ids=[{name!r}])
def test_rehearsal(command):
    check_sound(command)
'''


def write_test(command: Sequence[str], folder: Path) -> Path:
    """Write a test that rehearses a command; returns its file.

    Args:
        command: The user's words, as from the current folder.
        folder: Where tests of commands are kept; is made.

    Raises:
        RequestError: There is no such program.
    """
    if shutil.which(command[0]) is None:
        raise RequestError(f"there is no program {command[0]!r} to rehearse")
    named = [Path(word) for part in command for word in (part, part.rpartition("=")[2])]
    files = {str(file): hashlib.sha256(file.read_bytes()).hexdigest() for file in named if file.is_file()}
    name = textwrap.shorten(shlex.join(command).replace("::", ":"), _NAME, placeholder=" …")
    digest = hashlib.sha256(shlex.join(command).encode()).hexdigest()
    folder.mkdir(parents=True, exist_ok=True)
    place = folder / f"test_rehearsal_{digest[:16]}.py"
    place.write_text(_TEST.format(command=[*command], files=files, name=name), encoding="utf-8")
    return place


def check_sound(command: Sequence[str]) -> None:
    """Rehearse a command by ``rlregress rehearse`` of this environment; its findings fail the test.

    A rehearsal in part skips it, with what could not be checked.

    Args:
        command: The words, as behind ``rlregress rehearse --``.
    """
    program = Path(sys.executable).with_name("rlregress")
    asked = [str(program), "rehearse", "--json", "--", *command]
    ended = subprocess.run(asked, stdout=subprocess.PIPE, text=True, check=False)
    if not ended.stdout:
        pytest.fail(f"rlregress rehearse said nothing, and ended with exit code {ended.returncode}", pytrace=False)
    said = json.loads(ended.stdout)
    if ended.returncode == _PARTIAL:
        pytest.skip(said["sentence"])
    if ended.returncode == _FOUND:
        findings = "\n".join(f"{found['check']}: {found['why']}" for found in said["findings"])
        pytest.fail(f"{said['sentence']}\n{findings}", pytrace=False)
    if ended.returncode != _SOUND:
        pytest.fail("; ".join(said["ended"]) or said["sentence"], pytrace=False)
