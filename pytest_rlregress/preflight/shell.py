"""Read a shell script without running it: its commands, with the variables and arrays that it sets."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

UNKNOWN = "???"  # what only a shell could find; as OmegaConf writes a value that is missing

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_ARRAY = re.compile(r"([A-Za-z_]\w*)(\+?)=\((.*)", re.DOTALL)
_ARRAY_USED = re.compile(r"\$\{([A-Za-z_]\w*)\[[@*]\]\}")
_VARIABLE = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)(?::?-([^{}]*))?\})")
_KEYED = re.compile(r"([-+~]*[A-Za-z_][-\w.@/]*)=(.*)", re.DOTALL)
_UNSET = re.compile(r"\$\{oc\.env:\w+,''\}")
_NOT_HYDRAS = re.compile(r"`|\$(?!\{[\w.]*\.)")
_TESTS = ("[", "[[", "test")
# By which names scripts choose between kinds of cards; the profiles are NVIDIA's.
_OUR_CARDS, _OTHER_CARDS = {"gpu", "cuda", "nvidia"}, {"npu", "ascend", "rocm", "amd", "cpu", "mps"}


@dataclass(frozen=True)
class Word:
    """A word of a command, its variables expanded.

    Attributes:
        certain: False behind a condition of which it is not known whether it holds.
    """

    text: str
    line: int
    certain: bool = True


@dataclass
class _Block:
    """An ``if`` or ``case`` that is open: whether what is read now is run, None if that is not known."""

    kind: str
    runs: bool | None = None
    decided: bool | None = False  # whether a branch before this one was run
    subject: str = ""
    heading: bool = True  # between if and then, or where a pattern of case is due


@dataclass
class Shell:
    """A script's variables where it was read to.

    Attributes:
        environ: What the script is started with.
        lines: Where each variable was set last.
    """

    environ: Mapping[str, str]
    variables: dict[str, str] = field(default_factory=dict)
    exported: set[str] = field(default_factory=set)
    lines: dict[str, int] = field(default_factory=dict)
    _arrays: dict[str, list[Word]] = field(default_factory=dict)
    _array: str | None = None  # the one whose words are being read
    _blocks: list[_Block] = field(default_factory=list)
    _guard: bool | None = True  # what [ … ] && says of the rest of its line

    def commands(self, text: str) -> Iterator[list[Word]]:
        """Yield every command that may be run, from top to bottom, its own assignments left out."""
        command: list[Word] = []
        for line, raw, continued in _lines(text):
            for word in raw:
                yield from self._take(command, word, line)
            if not continued and self._array is None and not (self._blocks and self._blocks[-1].heading):
                yield from self._end(command)
                self._guard = True

    def _take(self, command: list[Word], raw: str, line: int) -> Iterator[list[Word]]:
        """Take a word as the next of a command, which it may end."""
        if self._array is None and raw.endswith(";") and raw != ";;":
            yield from self._take(command, raw.rstrip(";"), line) if raw.strip(";") else ()
            raw = ";;" if raw.endswith(";;") else ";"
        block = self._blocks[-1] if self._blocks else None
        if self._array is not None or (not command and _ARRAY.fullmatch(raw)):
            self._take_array(raw, line)
        elif block and block.heading:
            self._take_heading(block, command, raw, line)
        elif raw == ";;":
            yield from self._end(command)
            self._take_keyword(block, raw)
        elif raw in (";", "&&", "||", "|", "|&", "&"):
            if command and command[0].text in _TESTS and raw in ("&&", "||"):
                holds = _holds([word.text for word in command])
                self._guard = _both(self._guard, holds if raw == "&&" or holds is None else not holds)
                command.clear()
            yield from self._end(command)
            self._guard = True if raw == ";" else self._guard
        elif command or not self._take_keyword(block, raw):
            command.extend(self._expanded(raw, line))

    def _take_keyword(self, block: _Block | None, raw: str) -> bool:
        if raw in ("if", "case"):
            self._blocks.append(_Block(raw, subject=""))
        elif block and raw in ("elif", "else"):
            block.runs, block.heading = _but_not(True, block.decided), raw == "elif"
        elif block and raw == ";;":
            block.heading = True
        elif block and raw in ("fi", "esac"):
            self._blocks.pop()
        else:
            return raw in ("then", "do", "done", "{", "}")
        return True

    def _take_heading(self, block: _Block, command: list[Word], raw: str, line: int) -> None:
        if block.kind == "case" and raw == "in":
            block.subject = "".join(word.text for word in command)
            command.clear()
        elif block.kind == "case" and raw == "esac":
            self._blocks.pop()
        elif block.kind == "case" and raw.endswith(")"):
            patterns = [*(word.text for word in command if word.text != "|"), *raw.strip("()").split("|")]
            block.runs, block.heading = _but_not(_matches(block.subject, patterns), block.decided), False
            block.decided = True if block.runs else None if block.runs is None else block.decided
            command.clear()
        elif block.kind == "if" and raw == "then":
            block.runs, block.heading = _but_not(_holds([word.text for word in command]), block.decided), False
            block.decided = True if block.runs else None if block.runs is None else block.decided
            command.clear()
        else:
            command.extend(self._expanded(raw, line) if raw != ";" else ())

    def _take_array(self, raw: str, line: int) -> None:
        begin = _ARRAY.fullmatch(raw) if self._array is None else None
        if begin:
            self._array, raw = begin[1], begin[3]
            if not begin[2] and self._runs() is not False:
                self._arrays[begin[1]] = []
        closed = raw.endswith(")") and raw.count("(") < raw.count(")")
        raw = raw.removesuffix(")") if closed else raw
        if raw and self._runs() is not False:
            self._arrays.setdefault(self._array or "", []).extend(self._expanded(raw, line))
        self._array = None if closed else self._array

    def _end(self, command: list[Word]) -> Iterator[list[Word]]:
        """End a command: set what it assigns; yield it if there is more of it."""
        words, runs = list(command), self._runs()
        command.clear()
        if runs is False or not words:
            return
        assigned = {}
        while words and (found := _ASSIGNMENT.fullmatch(words[0].text)):
            assigned[found[1]] = words.pop(0)
        if words and words[0].text in ("export", "declare", "readonly", "local"):
            exports = words.pop(0).text == "export"
            for word in words:
                found = _ASSIGNMENT.fullmatch(word.text)
                assigned |= {found[1]: word} if found else {}
                self.exported |= {found[1] if found else word.text} if exports else set()
            words = []
        elif words:
            self.exported |= assigned.keys()  # A=1 python …
        for name, word in assigned.items():
            value = word.text.partition("=")[2]
            same = word.certain or value == self.variables.get(name, self.environ.get(name))
            self.variables[name] = value if same else UNKNOWN
            self.lines[name] = word.line
        if words and words[0].text == "unset":
            self.variables |= {word.text: "" if word.certain else UNKNOWN for word in words[1:]}
        elif words and words[0].text == "for":
            self.variables |= {word.text: UNKNOWN for word in words[1:2]}
        elif words:
            yield words

    def _runs(self) -> bool | None:
        runs = self._guard
        for block in self._blocks:
            runs = _both(runs, True if block.heading else block.runs)
        return runs

    def _expanded(self, raw: str, line: int) -> list[Word]:
        certain = self._runs() is True
        if raw in ("$@", "${@}", "$*"):  # the script's own arguments, of which there are none here
            return []
        if used := _ARRAY_USED.fullmatch(raw):
            return [Word(word.text, word.line, word.certain and certain) for word in self._arrays.get(used[1], [])] or [
                Word(UNKNOWN, line, certain)
            ]
        return [Word(expand(raw, {**self.environ, **self.variables}), line, certain)]


def expand(word: str, variables: Mapping[str, str]) -> str:
    """Expand a word as a shell does; a variable that is unset or empty becomes what Hydra's language has for that."""
    if keyed := _KEYED.fullmatch(word):  # what is not known of the value leaves the name as it is
        return f"{keyed[1]}={expand(keyed[2], variables)}"

    def value(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        return variables.get(name) or (f"${{oc.env:{name},''}}" if found[3] is None else found[3])

    expanded = word
    for _ in range(5):  # from the inside out: a default may hold variables
        expanded = _VARIABLE.sub(value, expanded)
    return UNKNOWN if UNKNOWN in expanded or _NOT_HYDRAS.search(expanded) else expanded


def _both(one: bool | None, other: bool | None) -> bool | None:
    return False if False in (one, other) else None if None in (one, other) else True


def _but_not(one: bool | None, other: bool | None) -> bool | None:
    return _both(one, None if other is None else not other)


def _matches(subject: str, patterns: list[str]) -> bool | None:
    if UNKNOWN not in subject:
        return any(fnmatchcase(_UNSET.sub("", subject), pattern) for pattern in patterns)
    return True if _OUR_CARDS & set(patterns) else False if _OTHER_CARDS & set(patterns) else None


def _holds(words: list[str]) -> bool | None:
    """Evaluate a test as far as it compares known texts; None for any other."""
    if "&&" in words[1:-1]:
        at = words.index("&&")
        opened = words[:1] if words[0] == "[[" and words[at + 1] not in _TESTS else []
        return _both(_holds(words[:at]), _holds([*opened, *words[at + 1 :]]))
    if not words or words[0] not in _TESTS or any(UNKNOWN in word for word in words):
        return None
    words = [_UNSET.sub("", word) for word in words[1:] if word not in ("]", "]]")]
    match words:
        case [one, "=" | "==", other]:
            return one == other
        case [one, "!=", other]:
            return one != other
        case ["-z", one]:
            return not one
        case ["-n", one]:
            return bool(one)
    return None


def _lines(text: str) -> Iterator[tuple[int, list[str], bool]]:
    """Yield the words of every line, with its number and whether the next goes on with it.

    Lines that one pair of quotes spans count as one.
    """
    lines = text.splitlines()
    begin = 0
    while begin < len(lines):
        if here_document := re.search(r"(?<!<)<<-?\s*['\"]?([A-Za-z_]\w*)", lines[begin]):
            while begin < len(lines) - 1 and lines[begin].strip() != here_document[1]:
                begin += 1
        for end in range(begin + 1, min(begin + 50, len(lines)) + 1):
            try:
                words = shlex.split("\n".join(line.removesuffix("\\") for line in lines[begin:end]), comments=True)
            except ValueError:  # no closing quotation, yet
                continue
            goes_on = lines[end - 1].endswith("\\") and not _has_comment("\n".join(lines[begin:end])[:-1])
            yield begin + 1, words, goes_on
            begin = end
            break
        else:
            begin += 1


def _has_comment(text: str) -> bool:
    """Return whether there is a comment, which ends with its line whatever stands there."""
    try:
        return shlex.split(text, comments=True) != shlex.split(text)
    except ValueError:  # a quotation mark in a comment
        return True
