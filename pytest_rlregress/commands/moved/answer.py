"""The answer in text and JSON: what moved by section, what wasn't read, one sentence."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from packaging.version import Version

from pytest_rlregress.commands.moved.findings import Finding, Kind, show
from pytest_rlregress.commands.moved.reading import Answer
from pytest_rlregress.util.coverage import Coverage, Result, Unchecked
from pytest_rlregress.util.text import LINE_WIDTH, plural, wrapped

_MOST_LINES = 20
_KINDS = [*Kind]
_NOUNS = {
    Kind.KEY: "key of yours gone or refused",
    Kind.DEFAULT: "default that you inherit moved",
    Kind.NAME: "call that no longer binds",
    Kind.ENGINE: "engine default moved",
    Kind.METADATA: "requirement that forbids it",
}
_NOUNS_OF_SEVERAL = {
    Kind.KEY: "keys of yours gone or refused",
    Kind.DEFAULT: "defaults that you inherit moved",
    Kind.NAME: "calls that no longer bind",
    Kind.ENGINE: "engine defaults moved",
    Kind.METADATA: "requirements that forbid it",
}


@dataclass(frozen=True)
class Moved:
    """The answer to one question.

    Attributes:
        package: What moves.
        ends: The release that it comes from, and the one that it goes to.
        title: Whose run it is: a program, files, or all of a trainer's.
        answer: What was found.
    """

    package: str
    ends: tuple[str, str]
    title: str
    answer: Answer = field(default_factory=Answer)

    @property
    def findings(self) -> list[Finding]:
        """Those that concern the run, in their order."""
        return [one for one in self.ordered if one.concerns]

    @property
    def ordered(self) -> list[Finding]:
        """All of them: by section, then what concerns the run, then by rank."""
        return sorted(
            self.answer.findings, key=lambda one: (_KINDS.index(one.kind), not one.concerns, one.rank, one.key)
        )

    @property
    def result(self) -> Result:
        """How it ended: what concerns the run counts first, and nothing unread is green."""
        unread = {one: Unchecked(one, (one,)) for one in self.answer.not_read}
        return Coverage.of(self.answer.checked, unread).judge(self.findings)

    @property
    def sentence(self) -> str:
        """The answer on a line."""
        counts = []
        for kind in _KINDS:
            count = sum(one.kind is kind for one in self.findings)
            if count:
                counts.append(f"{count} {_NOUNS[kind] if count == 1 else _NOUNS_OF_SEVERAL[kind]}")
        way = f"{self.package} {self.ends[0]} → {self.ends[1]}"
        if counts:
            return f"{way}: {', '.join(counts)}."
        if self.result is Result.UNCHECKED:
            return f"{way}: nothing was compared."
        in_part = " in what was read" if self.result is Result.PARTIAL else ""
        return f"{way}: nothing that concerns {self.title} moved{in_part}."


def as_json(moved: Moved) -> dict[str, Any]:
    """Return the answer as ``--json`` prints it."""
    findings = [asdict(one) | {"kind": one.kind.name.lower()} for one in moved.ordered]
    return {
        "package": moved.package,
        "from": moved.ends[0],
        "to": moved.ends[1],
        "program": moved.title,
        "result": moved.result.word,
        "findings": findings,
        "checked": moved.answer.checked,
        "not_read": moved.answer.not_read,
        "notes": moved.answer.notes,
        "sentence": moved.sentence,
    }


def as_text(moved: Moved, verbose: bool) -> str:
    """Return the answer as lines: at most 20 unless ``verbose``."""
    shown = moved.ordered if verbose else moved.findings
    end = [*_list_end(moved, verbose), moved.sentence]
    sections = [(kind, [one for one in shown if one.kind is kind]) for kind in _KINDS]
    sections = [(kind, some) for kind, some in sections if some]
    room = _MOST_LINES - len(end) - len(sections)
    lines = []
    for at, (kind, some) in enumerate(sections):
        lines.append(kind.value[0].upper() + kind.value[1:])
        later = 2 * len(sections[at + 1 :])  # a line for what is shown of each, one for what isn't
        parts = [list_lines(one, moved, verbose) for one in some]
        for number, part in enumerate(parts):
            left = len(parts) - number
            needed = sum(map(len, parts[number:]))
            if not verbose and number and needed > room - later and len(part) + 1 > room - later:
                lines.append(f"  and {left} more: -v")
                room -= 1
                break
            lines += part
            room -= len(part)
    return "\n".join(part for line in (*lines, *end) for part in wrapped(line, rest="      "))


def _list_end(moved: Moved, verbose: bool) -> Iterator[str]:
    unread = moved.answer.not_read
    if verbose:
        yield from (line for one in unread for line in wrapped(f"Not read: {one}", rest="  "))
        yield from (line for one in moved.answer.notes for line in wrapped(one, rest="  "))
        yield f"Compared: {'; '.join(moved.answer.checked) or 'nothing'}."
        return
    if unread:
        more = f" (and {plural(len(unread) - 1, 'more thing')}: -v)" if len(unread) > 1 else ""
        yield f"Not read: {unread[0]}{more}"
    yield from moved.answer.notes[:1]
    aside = len(moved.answer.findings) - len(moved.findings)
    if aside:
        yield f"{aside} more moved and {'does' if aside == 1 else 'do'} not concern this run: -v"


def list_lines(one: Finding, moved: Moved, verbose: bool) -> list[str]:
    """Return a finding as a line, with ``verbose`` its reason and place below."""
    text = f"{one.key}: {describe(one, moved, verbose)}"
    if one.why and not one.instead and not verbose and one.kind is Kind.KEY:
        text = f"{text}: {one.why}"
    if not verbose:
        most = 1 if one.kind in (Kind.DEFAULT, Kind.ENGINE) else 2
        found = wrapped(text, "  ", "      ", LINE_WIDTH)
        return found if len(found) <= most else [*found[: most - 1], f"{found[most - 1]} …"]
    why = "" if one.kind is Kind.NAME else one.why
    below = [part for part in (why, one.place and f"given: {one.place}" if one.kind is Kind.KEY else "") if part]
    if one.place and one.kind is not Kind.KEY:
        below.append(f"in {one.place}")
    return [f"  {text}", *(line for part in below for line in wrapped(part, "      ", "      "))]


def describe(one: Finding, moved: Moved, verbose: bool = False) -> str:
    """Describe a finding behind its key: what happened, in which release, what to write instead."""
    forward = Version(moved.ends[0]) <= Version(moved.ends[1])
    since = f" {'since' if forward else 'up to'} {one.release}" if one.release else ""
    whose = f" ({one.package})" if one.package and one.package != moved.package else ""
    instead = ""
    if one.instead:
        instead = f"; {'now' if one.sure else 'perhaps'} {one.instead}"
    if one.change == "moved":
        return f"{show(one.before)} → {show(one.after)}{since}{whose}"
    if one.change == "back":
        return f"{show(one.before)}: moved and back: {one.why}{whose}"
    if one.change == "new":
        return f"new, and {show(one.after)}{since}{whose}"
    if one.change == "vanished":
        return f"is gone{since}{whose}; it was {show(one.before)}{instead}"
    if one.change in ("gone", "refused"):
        return f"{one.change}{since}{whose}{instead}"
    if one.change == "unbound":
        return f"{one.why.partition(':')[0]}{since}; {one.after if verbose else one.after.rpartition('/')[2]}"
    return str(one.after)


def list_short(moved: Moved, most: int = 6) -> list[str]:
    """Return the sentence, below it the first findings, and what wasn't read: for another command's answer."""
    some = [line.strip() for one in moved.findings[:most] for line in list_lines(one, moved, verbose=False)]
    more = len(moved.findings) - most
    if more > 0:
        some.append(f"and {more} more: rlregress moved {moved.package}=={'..'.join(moved.ends)}")
    return [moved.sentence, *some, *(f"not read: {one}" for one in moved.answer.not_read)]
