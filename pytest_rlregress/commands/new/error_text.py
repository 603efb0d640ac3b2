"""What identifies a failure in the text of its error: found by what reads logs, and made independent of the one run."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePath

from pytest_rlregress.diagnosis.events import Event, read_events
from pytest_rlregress.diagnosis.findings import name_text
from pytest_rlregress.diagnosis.reader import Search
from pytest_rlregress.failures.catalogue import Failure
from pytest_rlregress.failures.signatures import escape
from pytest_rlregress.stack import component_of

# What differs from run to run, and the hole for it: paths, addresses, numbers.
_CHANGING = {r"(?<![\w.:/])/[^\s'\"`:;,()]+": "{name}", r"\b0x[\da-fA-F]+": "{name}", r"\d+(?:[.,]\d+)*": "{number}"}
_CHANGING_PART = re.compile("|".join(f"({part})" for part in _CHANGING))
_LONGEST = 160
# A message with fewer letters, such as KeyError's, identifies nothing by itself.
_FEWEST_LETTERS = 8


class ErrorTextError(ValueError):
    """A text that shows no error; the message says what is wanted."""


@dataclass(frozen=True)
class ErrorText:
    """An error as its text shows it.

    Attributes:
        headline: Exception or signal, and message.
        exception: The class, without its module.
        says: An example of class and message: of its first line, with holes for what changes from run to run.
        frame: File and function of the last frame, where class and message identify too little.
        signal: Of a crash.
        components: Of the stack, those in the traceback in its order.
        others: Headlines of the other errors in the text.
    """

    headline: str
    exception: str | None = None
    says: str | None = None
    frame: str | None = None
    signal: str | None = None
    components: tuple[str, ...] = ()
    others: tuple[str, ...] = ()


def read(text: bytes) -> ErrorText:
    """Read the first error of a text; of exceptions that one led to another, the last.

    Raises:
        ErrorTextError: It shows none.
    """
    chains = read_events([text], Search(()))
    found = [event for *_, event in chains if event.outcome.exceptions or event.outcome.signal or event.said]
    if not found:
        raise ErrorTextError(
            "no error in it: give a traceback to its last line, such as 'ValueError: …', or the lines of a crash"
        )
    outcome, headlines = found[0].outcome, list(dict.fromkeys(event.headline for event in found))
    exception, message = _class(outcome.exceptions), _message(found[0])
    known = outcome.signal or len(re.findall("[a-zA-Z]", re.sub(r"\{.*?\}", "", message))) >= _FEWEST_LETTERS
    says = ": ".join(filter(None, (exception, message)))
    return ErrorText(
        headlines[0],
        exception,
        None if outcome.signal else says,
        None if known else _frame(outcome.frames),
        outcome.signal,
        _components(outcome.frames),
        tuple(headlines[1:]),
    )


def named_in(text: bytes, failures: Iterable[Failure]) -> list[str]:
    """Return the ids of those failures that ``rlregress diagnose`` names in a text."""
    return [failure.id for failure in name_text(text, tuple(failures))]


def _class(exceptions: tuple[str, ...]) -> str | None:
    names = [name.rpartition(".")[2] for name in exceptions]
    # Ray wraps what a task raised: RayTaskError(ValueError).
    return next((name for name in names if name != "RayTaskError"), None)


def _message(event: Event) -> str:
    line = next(filter(None, event.said), event.outcome.message).split("\n")[0].strip()
    if len(line) > _LONGEST:
        line = line[:_LONGEST].rpartition(" ")[0] or line[:_LONGEST]
    kept, written = 0, []
    for part in _CHANGING_PART.finditer(line):
        written += [escape(line[kept : part.start()]), list(_CHANGING.values())[(part.lastindex or 1) - 1]]
        kept = part.end()
    return "".join([*written, escape(line[kept:])])


def _frame(frames: tuple[str, ...]) -> str | None:
    if not frames:
        return None
    file, _, function = frames[-1].rpartition(":")
    return f"{escape(PurePath(file).name)}:{escape(function)}"


def _components(frames: tuple[str, ...]) -> tuple[str, ...]:
    modules = [frame.rpartition("site-packages/")[2] for frame in frames if "site-packages/" in frame]
    found = [component_of(module.partition(":")[0].removesuffix(".py").replace("/", ".")) for module in modules]
    return tuple(dict.fromkeys(name for name in found if name))
