"""Find the new name of a key: in the trainer's own translations and messages, else by the last part of its name."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Mapping, Sequence

from pytest_rlregress.commands.moved.wheels import Release

_TRANSLATES = re.compile(r"migrat|legacy|deprecat|backward|compat", re.IGNORECASE)
_WARNS = re.compile(
    r"deprecat|(?:be|been|was|is) removed|renamed|replaced (?:by|with)|no longer|moved to|instead", re.IGNORECASE
)
_NAME = r"[`'\"]?(?:--)?((?:[a-z_]\w*\.)*[a-z_]\w*)(?:=[\w.]+)?[`'\"]?"
_NEW = re.compile(
    rf"(?i:use|set|pass|renamed to|replaced by|replaced with|in favou?r of|moved to|switch to) (?:the )?{_NAME}"
    r"(?: instead| argument| parameter|[.,;)]|$|\s)"
)
_NO_NAMES = {"the", "a", "an", "it", "of", "in", "this", "to", "your", "instead", "them", "by", "with", "one", "either"}
# Last names that say little by themselves: the table above must be the same too.
_COMMON = {"mode", "enable", "enabled", "name", "path", "dtype", "type", "strategy", "lr", "_target_"}


def find_translations(release: Release) -> dict[str, str]:
    """Find which keys a release's own code copies to which others: ``config.a.b = config.c.d`` in such a function.

    Of a table that is copied whole, the table's key stands for all in it.
    """
    found: dict[str, str] = {}
    for path in sorted(release.paths):
        text = release.read(path) if path.endswith(".py") else ""
        if not re.search(r"def \w*(?:migrat|legacy)\w*\(", text):
            continue
        tree = release.parse(path)
        for node in ast.walk(tree) if tree else ():
            if isinstance(node, ast.FunctionDef) and _TRANSLATES.search(node.name):
                found |= _Translation(node).find()
    return found


class _Translation:
    """Reads the assignments of one function from a key of its first argument to another."""

    def __init__(self, function: ast.FunctionDef) -> None:
        self._function = function
        self._names: dict[str, str] = {}  # local name -> dotted key
        self._loops: dict[str, list[str]] = {}  # loop variable -> its texts
        if function.args.args:
            self._names[function.args.args[0].arg] = ""

    def find(self) -> dict[str, str]:
        """Return which keys are copied to which others."""
        found: dict[str, str] = {}
        for node in ast.walk(self._function):
            if isinstance(node, ast.For) and isinstance(node.target, ast.Name):
                texts = [one.value for one in getattr(node.iter, "elts", ()) if isinstance(one, ast.Constant)]
                self._loops[node.target.id] = [str(one) for one in texts]
        for node in ast.walk(self._function):
            if isinstance(node, ast.Assign) and len(node.targets) == 1:
                target, old = node.targets[0], self._read(node.value)
                if isinstance(target, ast.Name) and old is not None:
                    self._names[target.id] = old
        for node in ast.walk(self._function):
            if isinstance(node, ast.Assign) and not isinstance(node.targets[0], ast.Name):
                new, old = self._read(node.targets[0]), self._read(node.value)
                if new and old and new != old:
                    found |= self._expand(old, new)
        return found

    def _expand(self, old: str, new: str) -> dict[str, str]:
        """Expand a loop's variable, which stands as ``[name]``: to its texts, or to the whole table."""
        variable = re.search(r"\[(\w+)\]", old)
        if variable is None:
            return {old: new}
        if texts := self._loops.get(variable[1]):
            return {old.replace(variable[0], text): new.replace(variable[0], text) for text in texts}
        return {old.removesuffix(f".{variable[0]}"): new.removesuffix(f".{variable[0]}")}

    def _read(self, node: ast.expr) -> str | None:
        """Read an expression as a dotted key; None for anything else."""
        if isinstance(node, ast.Name):
            return self._names.get(node.id)
        if isinstance(node, ast.Attribute):
            return self._join(node.value, node.attr)
        if isinstance(node, ast.Subscript):
            name = node.slice
            if isinstance(name, ast.Constant):
                return self._join(node.value, str(name.value))
            return self._join(node.value, f"[{name.id}]") if isinstance(name, ast.Name) else None
        return None

    def _join(self, node: ast.expr, name: str) -> str | None:
        inside = self._read(node)
        return None if inside is None else f"{inside}.{name}".lstrip(".")


def translate(key: str, translations: Mapping[str, str]) -> str:
    """Return what a key is copied to, itself or with its table; "" if nothing copies it."""
    if key in translations:
        return translations[key]
    table, _, name = key.rpartition(".")
    whole = translate(table, translations) if table else ""
    return f"{whole}.{name}" if whole else ""


def find_message(name: str, messages: Sequence[Sequence[str]]) -> tuple[str, str]:
    """Find what releases say of a name that goes: the newest message with a new name, else the newest message.

    Args:
        name: The last part of a key.
        messages: By release, from old to new, as of ``list_messages``: it may be in one between the ends alone.

    Returns:
        The message on a line, and the new name in it; "" for none.
    """
    word, without = re.compile(rf"(?<![\w.]){re.escape(name)}(?!\w)"), ""
    for texts in reversed(messages):
        for text in texts:
            if word.search(text) and (message := _cut_message(text, word)):
                if new := find_new_name(message, name):
                    return message, new
                without = without or message
    return without, ""


def find_new_name(message: str, name: str) -> str:
    """Return the name that a message says to use instead of another; "" if it says none."""
    for found in _NEW.finditer(message):
        if found[1] not in _NO_NAMES and found[1].rpartition(".")[2] != name and ("_" in found[1] or "`" in found[0]):
            return found[1]
    return ""


def list_messages(release: Release) -> list[str]:
    """List the texts of a release that speak of a name that goes: warnings, errors, help, docstrings."""
    found: dict[str, None] = {}
    for path in sorted(release.paths):
        text = release.read(path) if path.endswith(".py") else ""
        looks = "config" in path or "deprecat" in text.lower()
        tree = release.parse(path) if looks and _WARNS.search(text) else None
        for node in ast.walk(tree) if tree else ():
            found |= dict.fromkeys(" ".join(said.split()) for said in _list_texts(node) if _WARNS.search(said))
    return [*found]


def _list_texts(node: ast.AST) -> Iterator[str]:
    """Yield the texts of what says something: a warning, an error, a printed line, a field's help, a docstring."""
    if isinstance(node, ast.Call):
        called = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if called in ("warn", "warning", "warning_once", "print", "deprecated", "field") or called[:1].isupper():
            for one in [*node.args, *(word.value for word in node.keywords)]:
                yield from _read_text(one)
    elif isinstance(node, ast.ClassDef) and (said := ast.get_docstring(node)):
        yield from re.split(r"\n\s*\n|\n(?=\s{0,8}\w+ \([`\w\[\], ]+\):)|\n(?=\s{0,8}\w+ \(`)", said)
    elif isinstance(node, ast.Dict):
        for one in node.values:
            yield from _read_text(one)


def _read_text(node: ast.expr | None) -> Iterator[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        parts = (one.value if isinstance(one, ast.Constant) else "…" for one in node.values)
        yield "".join(str(part) for part in parts)


def _cut_message(text: str, word: re.Pattern[str]) -> str:
    """Return the sentences from the first one that has the word, at most three; "" if they don't say that it goes."""
    sentences = re.split(r"(?<=[.!;])\s+(?=[A-Z`'])", text)
    for at, sentence in enumerate(sentences):
        if word.search(sentence) and _WARNS.search(" ".join(sentences[at : at + 3])):
            said = " ".join(sentences[at : at + 3])
            return re.sub(r"^\w+ \(`.*?\):? (?=[A-Z])", "", said)[:300]  # a docstring's name and type
    return ""


def find_same_name(key: str, known: Collection[str], old: Collection[str]) -> str:
    """Return the key of another table that has the same last name, new ones of the same section first; "" for none."""
    section, name = key.partition(".")[0], key.rpartition(".")[2]
    same = [one for one in known if one.rpartition(".")[2] == name and one != key]
    if name in _COMMON:
        same = [one for one in same if one.split(".")[-2:-1] == key.split(".")[-2:-1]]
    tables = set(key.split("."))
    best = sorted(
        same,
        key=lambda one: (
            one in old,
            one.partition(".")[0] != section,
            -len(tables & set(one.split("."))),
            one.count("."),
            one,
        ),
    )
    return best[0] if best and (best[0] not in old or best[0].partition(".")[0] == section) else ""
