"""What identifies a failure: examples of its lines, with holes where something varies.

``KeyError: '{name}'`` is an exception's class and its message, ``Cannot place {number} bundles`` a line of a log.
A hole is ``{}`` for any text of up to 300 characters, ``{name}`` for a word without quotes, ``{number}``,
``{one|the other}``, or a list of words.toml by its name; ``where`` gives a hole of another name a regular
expression. A blank stands for any white space, and ``{{`` for a brace.
"""

from __future__ import annotations

import re
import signal as signals
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import product
from pathlib import Path
from typing import Any

from pytest_rlregress.util import toml_table

_TOKEN = re.compile(r"(?P<brace>\{\{|\}\})|\{(?P<hole>[^{}]*)\}|(?P<text>[^{}]+)|.")
_HOLES = {
    "": r".{0,300}?",
    "name": r"[^\s'\"`]+",
    "number": r"[-+]?\d[\d.,]*(?:e[-+]?\d+)?",
    "quote": r"['\"`]?",
    "who": r"(?:(?:\S+:|[^\x00-\x7f]+|\[[^\]\n]{1,80}\]|\([^)\n]{1,80}\)|line \d+:|Caused by:)\s+){0,4}",
    "start": r"\A\s*",
    "end": r"\s*$",
}
# Two capitals at least, so that "Error: …" and "Unsloth: …" are lines of a log.
_CLASS = re.compile(r"(?:\w+\.)*(?=\w*[a-z])(?P<name>[A-Z]\w*[A-Z]\w*)(?:: |$)")
#: A shorter text is on too many lines to search for it.
_SHORTEST_CLUE, _SHORTEST, _TELLING, _DISTINCTIVE = 3, 6, 8, 10


class ExampleError(ValueError):
    """An example that cannot be read; the message says what is allowed."""


@cache
def _word_lists() -> dict[str, list[str]]:
    text = Path(__file__).with_name("words.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


@dataclass(frozen=True)
class Example:
    """An example of a text; it is compiled when it is first searched for.

    Attributes:
        where: Regular expressions of the holes that have a name of their own.
        to_end: Whether nothing follows it.
    """

    text: str
    where: Mapping[str, str] = field(default_factory=dict, hash=False)
    to_end: bool = False

    def check(self) -> None:
        """Raise an ExampleError if a hole is not known."""
        for is_hole, part in self._parts:
            if is_hole and not self._words(part) and part not in self.where and part not in _HOLES:
                known = ", ".join(f"{{{name}}}" for name in (*_HOLES, *_word_lists(), "one|another"))
                raise ExampleError(f"{self.text!r}: no hole is called {part!r}; allowed: {known}, or a key of where")

    @cached_property
    def regex(self) -> re.Pattern[str]:
        """The regular expression that it stands for."""
        parts = (self._hole(part) if is_hole else _escaped(part) for is_hole, part in self._parts)
        end = "$" if self.to_end else ""
        return re.compile("".join(parts) + end, re.DOTALL | re.MULTILINE)

    def search(self, text: str) -> re.Match[str] | None:
        """Find the example in a text."""
        return self.regex.search(text)

    @cached_property
    def anchors(self) -> frozenset[str]:
        """Texts, one of which is wherever the example is; the empty text among them if nothing is known of it."""
        longest = max((part for is_hole, part in self._parts if not is_hole), key=len, default="").strip()
        if len(longest) >= _DISTINCTIVE:
            return frozenset({longest})
        choices = [(self._words(part) or ["\0"]) if is_hole else [part] for is_hole, part in self._parts]
        runs = ("".join(one).split("\0") for one in product(*choices))
        return frozenset(max(run, key=len).strip() for run in runs)

    @cached_property
    def _parts(self) -> list[tuple[bool, str]]:
        """Whether it is a hole, and what is in it; or the text between two."""
        parts: list[tuple[bool, str]] = []
        for token in _TOKEN.finditer(self.text):
            if token["hole"] is not None:
                parts.append((True, token["hole"]))
            elif not (token["brace"] or token["text"]):
                raise ExampleError(f"{self.text!r} has a single brace; write {{{{ or }}}} for one")
            else:
                text = token["text"] or token[0][0]
                parts.append((False, parts.pop()[1] + text if parts and not parts[-1][0] else text))
        return parts

    def _hole(self, hole: str) -> str:
        words = self._words(hole)
        return f"(?:{'|'.join(map(_escaped, words)) if words else self.where.get(hole) or _HOLES[hole]})"

    def _words(self, hole: str) -> list[str]:
        return hole.split("|") if "|" in hole else [] if hole in self.where else _word_lists().get(hole, [])


def _escaped(text: str) -> str:
    return r"\s+".join(map(re.escape, re.split(r"\s+", text)))


@dataclass(frozen=True)
class Outcome:
    """The outcome of a test, whichever way it ended.

    Attributes:
        kind: ``passed``, ``failed`` (an exception), ``skipped``, ``blocked`` (not run: a component that it needs is
            broken), ``crashed`` (the process died) or ``hung``.
        phase: Where it ended: ``setup``, or ``call`` once its act had begun.
        exceptions: Dotted class names of the exception and of its bases, most derived first.
        message: ``str(exception)``, the reason of a skip, or how the process died.
        frames: ``file:function`` of the traceback or of the stack at death.
        signal: Name of the signal the process died of, such as ``SIGFPE``.
        log: What the process wrote to its log during the test.
        lacks: The interface that the test needs and the installed version doesn't have, as a sentence that
            names both.
        undriven: The component that failed while the test prepared its act, with the exception, as a sentence.
        mistake: What is wrong with the test itself, as a sentence, such as a name that is not defined.
    """

    kind: str
    phase: str = "call"
    exceptions: tuple[str, ...] = ()
    message: str = ""
    frames: tuple[str, ...] = ()
    signal: str | None = None
    log: str = ""
    lacks: str = ""
    undriven: str = ""
    mistake: str = ""


@dataclass(frozen=True)
class Signature:
    """A pattern that identifies a failure in an exception, a crash or a log.

    Attributes:
        exception: The class, without its module.
        message: What its message has, or without a class what a line of a log says.
        frames: One of these is in the stack.
        signal: That the process died of.
        kind: How a test ends that has it: ``failed``, ``crashed`` or ``hung``.
        log: What is in the log of the test.
        clues: Of a weak signature, one that other programs produce too: what else their logs do not have.
        confirm: What would confirm the failure, for people, where a log has none of the clues.
    """

    exception: str | None = None
    message: Example | None = None
    frames: tuple[Example, ...] = ()
    signal: str | None = None
    kind: str | None = None
    log: Example | None = None
    clues: tuple[Example, ...] = ()
    confirm: str = ""

    def matches(self, outcome: Outcome) -> bool:
        """Return whether an outcome bears it: every key that it gives must match."""
        return all(self.compare(outcome).values())

    def compare(self, outcome: Outcome) -> dict[str, bool]:
        """Compare an outcome with it: whether it matches, by what the signature asks of it."""
        wanted, found = self.exception, {}
        if self.kind:
            found["way it ended"] = self.kind == outcome.kind
        if wanted:
            found["class"] = any(wanted in (name, name.rpartition(".")[2]) for name in outcome.exceptions)
        if self.message:
            found["message"] = bool(self.message.search(outcome.message))
        if self.signal:
            found["signal"] = outcome.signal == self.signal
        if self.log:
            found["log"] = bool(self.log.search(outcome.log))
        if self.frames:
            found["stack"] = any(frame.search(seen) for frame in self.frames for seen in outcome.frames)
        return found

    @property
    def is_line(self) -> bool:
        """Whether it is a line of a log alone, that needs no exception or crash around it."""
        return self.message is not None and not (self.exception or self.signal or self.frames or self.log or self.kind)

    @property
    def is_quotable(self) -> bool:
        """Whether its message says enough where the class is left out.

        As in an ERROR record of a program that caught the exception, and logs no more than its message.
        """
        if not (self.exception and self.message) or self.signal or self.frames or self.log or self.kind:
            return False
        return all(len(text) >= _QUOTABLE for text in self.message.anchors)

    @cached_property
    def anchors(self) -> frozenset[str]:
        """Texts, one of which is on every line that its message is on, also where it is wrapped once."""
        if self.message is None:
            return frozenset()
        return frozenset(part for text in self.message.anchors for part in _unsplittable_parts(text))


_QUOTABLE = 16


def _unsplittable_parts(text: str) -> list[str]:
    """Return a telling word of a text, or two halves of which no single wrap cuts both."""
    longest = max(text.split(), key=len, default="")
    if len(longest) >= _DISTINCTIVE and not longest.isalpha():
        return [longest]
    spaces = [at for at, character in enumerate(text) if character == " "]
    for at in sorted(spaces, key=lambda at: abs(at - len(text) // 2)):
        halves = [text[:at], text[at + 1 :]]
        if all(len(half) >= _SHORTEST and " " in half for half in halves):
            return halves
    return [longest if len(longest) >= _TELLING and not longest.isalpha() else text]


def escape(text: str) -> str:
    """Return the example of a text without holes."""
    return text.replace("{", "{{").replace("}", "}}")


def split_class(example: str) -> tuple[str | None, str]:
    """Split an example into the class of an exception, if it begins with one, and the rest."""
    found = _CLASS.match(example)
    return (found["name"], example[found.end() :]) if found else (None, example)


_RULES: dict[str, toml_table.Rule] = {
    "says": toml_table.texts,
    "in": toml_table.texts,
    "signal": toml_table.rule(lambda value: str(value) in signals.Signals.__members__, "a signal of this system"),
    "kind": toml_table.one_of("failed", "crashed", "hung"),
    "log": toml_table.texts,
    "with": toml_table.texts,
    "confirm": toml_table.text,
}
_IDENTIFYING = ("says", "in", "signal", "log")


def read(table: Mapping[str, Any], where: Mapping[str, str], place: str, error: type[Exception]) -> list[Signature]:
    """Return the signatures of a table: one for each thing it says, in each log.

    Args:
        table: As it is in ``failure.toml``.
        where: The regular expressions of the failure's own holes.
        place: Where it is, for messages.
        error: Raised where the table is malformed.
    """
    values = toml_table.check(table, place, error, {}, _RULES)
    if not any(key in values for key in _IDENTIFYING):
        raise error(f"{place}: identifies nothing; give {', '.join(_IDENTIFYING)}")
    if "with" in values and "confirm" not in values:
        raise error(f"{place}: key 'with' without 'confirm'")
    for clue in values.get("with", ()):
        if any(len(anchor) < _SHORTEST_CLUE for anchor in Example(clue, where).anchors):
            raise error(f"{place}: key 'with': {clue!r} has fewer than {_SHORTEST_CLUE} plain characters in a row")
    for hole, expression in where.items():
        try:
            re.compile(expression)
        except (re.error, TypeError) as problem:
            raise error(f"{place}: the hole {hole!r} isn't a regular expression ({problem})") from None

    def example(text: str, to_end: bool = False) -> Example:
        made = Example(text, where, to_end)
        try:
            made.check()
        except ExampleError as problem:
            raise error(f"{place}: {problem}") from None
        return made

    signatures = []
    for said, log in product(values.get("says", [""]), values.get("log", [""])):
        exception, message = split_class(said)
        signatures.append(
            Signature(
                exception,
                example(message) if message else None,
                # A frame's example, file:function, ends where it names the function and not only the file.
                tuple(example(one, to_end=":" in one and not one.endswith(":")) for one in values.get("in", ())),
                values.get("signal"),
                values.get("kind"),
                example(log) if log else None,
                tuple(map(example, values.get("with", ()))),
                values.get("confirm", ""),
            )
        )
    return signatures
