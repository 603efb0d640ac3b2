"""Read a launch script: what it starts is checked, as the shell would give it, and what else it does is listed."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pytest_rlregress.commands.preflight.config import ConfigError, ConfigPosition, PlannedRun
from pytest_rlregress.util.launch_script import HandedCommand, ScriptNotHeld, ScriptRun, find_programs, run_script
from pytest_rlregress.util.surroundings import working_folder
from pytest_rlregress.util.text import clean, wrapped

_NAMED = 8
_BY_HAND = "what it starts can be checked by hand: rlregress preflight -- python3 …"
#: What a shell or a script sets for itself.
_OF_SHELLS = {"PWD", "OLDPWD", "SHLVL", "_", "PATH", "TMPDIR"}


def read_script(
    words: Sequence[str],
    environ: Mapping[str, str],
    before: Mapping[str, str],
    read: Callable[[Sequence[str], Mapping[str, str]], PlannedRun],
) -> PlannedRun:
    """Run a script with stand-ins, and read the first command of it that composes a configuration.

    Args:
        words: A shell with its script, or a script.
        environ: What the script is started with.
        before: The environment without what was written in front of the script.
        read: Reads a command with its environment.

    Raises:
        ConfigError: The kernel can't hold the script, or nothing that it starts composes a configuration.
    """
    title, folder = " ".join(words), TemporaryDirectory(prefix="rlregress-")
    try:
        came = run_script(words, environ, Path(folder.name))
    except ScriptNotHeld as error:
        raise ConfigError(f"{title}: {error}. It was not run; {_BY_HAND}") from None
    refused = []
    for command in find_programs(came):
        try:
            with contextlib.chdir(command.folder):
                run = read([_find_copy(word, command, came) for word in command.words], command.environ)
        except ConfigError as error:
            refused.append(f"{clean(shlex.join(command.words), 100)}: {error}")
            continue
        run.environ = {**command.environ, **run.environ}
        for name, value in command.environ.items():
            if before.get(name) != value and name not in _OF_SHELLS:
                run.places.setdefault(name, ConfigPosition(argument=f"{name}={value}"))
        run.script = _describe(came, command)
        run.folder = folder
        return run
    if refused:
        raise ConfigError(f"{title}: {'. '.join(refused)}")
    last = (came.said.strip().splitlines() or ["it printed nothing"])[-1]
    ended = f"it ended with exit code {came.code}" if came.code is not None else "it took too long and was ended"
    raise ConfigError(f"{title}: it starts no program that could be verl's or TRL's; {ended}: {clean(last, 200)}")


def _find_copy(word: str, command: HandedCommand, came: ScriptRun) -> str:
    """Return a word with the copy of a file that the script wrote in the place of the file."""
    before, equals, name = word.rpartition("=")
    copy = came.written.get(Path(os.path.normpath(command.folder / name)))
    return f"{before}{equals}{copy}" if copy and copy.stat().st_size else word


def _describe(came: ScriptRun, checked: HandedCommand) -> dict[str, Any]:
    others = [command.words for command in came.handed if command is not checked]
    return {
        "checked": shlex.join(checked.words),
        "not_run": list(dict.fromkeys(map(shlex.join, [*others, *came.not_run]))),
        "written": list(map(_shorten, came.written)),
        "code": came.code,
        "copies": {str(copy): str(path) for path, copy in came.written.items()},
    }


def tell_script(script: Mapping[str, Any]) -> Iterator[str]:
    """Yield lines about a script: what was checked of it, not run, and written to a copy."""
    yield from wrapped(f"of the script, checked: {clean(script['checked'], 400)}", rest="  ")
    for what, some in (("not run", script["not_run"]), ("written to a copy", script["written"])):
        named = [clean(one, 120) for one in some[:_NAMED]]
        named += [f"{len(some) - _NAMED} more"] if len(some) > _NAMED else []
        if named:
            yield from wrapped(f"of the script, {what}: {'; '.join(named)}", rest="  ")
    if script["code"] is None:
        yield "the script took too long and was ended: what it would have started later is not known"


def name_originals(text: str, script: Mapping[str, Any]) -> str:
    """Return a report's text with the names of the user's files in the place of their copies."""
    for copy, path in script.get("copies", {}).items():
        text = text.replace(copy, _shorten(Path(path)))
    return text


def _shorten(path: Path) -> str:
    here = working_folder()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
