"""What each remedy's docstring promises, as mutants: wrappers that break one promise each.

``promises_of`` derives them from a function's signature and its Google-style docstring: each ``Raises:``, each argument
that must have an effect, what is left as it is, and what the result is made sure of by ``Returns:`` and its type. Of
each, a guard of the remedy must fail. Where the broken remedy is as good as the whole one, ``EQUIVALENT`` says why.
"""

from __future__ import annotations

import copy
import functools
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from docstring_parser import DocstringStyle, parse

from promises import broken, in_place, rows, values
from promises.broken import Break, Function


@dataclass(frozen=True)
class Promise:
    """One promise of a remedy, and how to break it.

    Attributes:
        name: Of the broken remedy, such as ``swallows-ValueError``.
        words: The docstring's.
        broken: Takes the remedy and a ``Note``; returns the broken remedy.
        must_show: Whether guards under which the break never matters do not hold the promise.
    """

    name: str
    words: str
    broken: Break
    must_show: bool = False


def promises_of(function: Function) -> list[Promise]:
    """The promises of a remedy, in the order of its docstring."""
    document = parse(inspect.getdoc(function) or "", DocstringStyle.GOOGLE)
    returns = document.returns
    body = _one_line(document.short_description, document.long_description)
    result = _one_line(returns.type_name, returns.description) if returns else ""
    described = {one.arg_name: _one_line(one.description) for one in document.params}
    found = [Promise("does-nothing", document.short_description or "", broken.left_out)]
    found += _of_arguments(function, described, f"{body} {result}")
    for raised in document.raises:
        names = [name.strip().rpartition(".")[2] for name in (raised.type_name or "").split(",")]
        found += _of_raises(names, _one_line(raised.description))
    annotation = str(inspect.signature(function).return_annotation)
    found += _of_result(annotation, result or body, body, described)
    if broken.is_context(function):
        found += _of_context(body)
    return found


def _one_line(*texts: str | None) -> str:
    return " ".join(" ".join(filter(None, texts)).split())


# -- arguments ---------------------------------------------------------------------------------------------------------

_LEFT = re.compile(r"left as (it|they) (is|are|was|were)\b|(are|is) left as (it|they)", re.IGNORECASE)
_PLAIN = re.compile(r"(bool|int|float|str|tuple\[.*\]|str \| Path|str \| PathLike\[str\])( \| None)?")


def _of_arguments(function: Function, described: dict[str, str], rest: str) -> Iterator[Promise]:
    every = "Both arguments are" in rest
    for name, parameter in inspect.signature(function).parameters.items():
        words = described.get(name, rest)
        has_default = parameter.default is not parameter.empty
        if has_default or parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            yield Promise(f"ignores-{name}", f"{name}: {words}", broken.without_argument(name), must_show=True)
        elif _PLAIN.fullmatch(str(parameter.annotation)):
            yield Promise(
                f"keeps-first-{name}",
                f"{name}: {words}",
                broken.with_first(f"{function.__name__} {name}", name),
                must_show=True,
            )
        if every or _LEFT.search(words) or f"The {name} is left as it is" in rest:
            for kind, spoil in _changes_in_place(str(parameter.annotation)).items():
                yield Promise(f"changes-{name}-{kind}", f"{name}: {words}", broken.spoiling(name, spoil))


def _changes_in_place(annotation: str) -> dict[str, Callable[[Any], None]]:
    changes: dict[str, Callable[[Any], None]] = {"contents": in_place.spoil_contents}
    if "Tensor" not in annotation or "Sequence" in annotation:  # a tensor is its contents
        changes["itself"] = in_place.spoil_itself
    if "Model" in annotation:
        changes["configuration"] = in_place.spoil_configuration
    return changes


# -- errors ------------------------------------------------------------------------------------------------------------


def _of_raises(names: list[str], words: str) -> Iterator[Promise]:
    methods = re.findall(r"[Ff]rom ``(\w+)``", words)
    for name in names:
        told = f"Raises {name}: {words}"
        by_itself = [] if words.startswith("From ``") else [None]
        for method in (*by_itself, *methods):
            ending = f"{name}-from-{method}" if method else name
            for kind, another in (("swallows", None), ("raises-not", broken.AnotherError)):
                yield Promise(f"{kind}-{ending}", told, broken.raising(name, another, method), must_show=True)
    if re.search(r"`` is as it was", words):
        yield Promise(f"changes-before-{names[0]}", words, broken.spoiling_when_refused, must_show=False)


# -- results -----------------------------------------------------------------------------------------------------------

_NEW = re.compile(r"\b[Nn]ew\b|\bcop(y|ies|ied)\b")
_SINGLE = re.compile(r"(bool|int|float|str|Path|None)( \| None)?|Callable.*")


def _of_result(annotation: str, words: str, body: str, described: dict[str, str]) -> Iterator[Promise]:
    if annotation.strip("'\"") in ("None", "Iterator[None]"):
        return
    single, told = bool(_SINGLE.fullmatch(annotation)) or words.startswith("Scalar"), f"Returns {words}"
    everything = " ".join([body, words, *described.values()])

    def promise(name: str, change: Callable[[Any], Any]) -> Promise:
        return Promise(name, told, broken.returning(lambda value, arguments: change(value)))

    def every(leaf: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return lambda value: values.leaves_changed(value, leaf)

    itself = re.match(r"``(\w+)``\.?$", words.partition(". ")[0].strip())
    if itself and itself[1] in described:
        yield promise("returns-a-copy", copy.copy)
        return
    if not annotation.startswith("Iterator"):
        yield promise("returns-none", values.nothing)
    # Of what is said the guards look for names and numbers: one letter more is no lie.
    other = values.unsaid if re.search(r"[Ss]entence|[Ww]hat was done|advice", words) else values.other
    yield promise("alters-last", lambda value: values.leaf_changed(value, other, -1))
    if not single:
        first = functools.partial(other, place=0)
        yield promise("alters-first", lambda value: values.leaf_changed(value, first, 0))
        if re.match(r"list|Iterator|dict|torch.Tensor|np.ndarray|Data|TensorDict|Masked|MathScores", annotation):
            yield promise("drops-last", rows.without_last)
        if re.match(r"list(?!\[Advice)|Iterator|torch.Tensor|np.ndarray", annotation):
            yield promise("reorders", rows.in_reverse)
    if annotation.startswith("Iterator"):
        yield promise("repeats-last", rows.with_last_twice)
    if re.search(r"float|Tensor|Model|Iterator|dict|ndarray|Any|Scores", annotation) and annotation != "dict[str, str]":
        floating = bool(re.search(r"float|dtype of|s' dtype|model's dtype|nats", words))
        yield replace(promise("rounds", every(values.rounded)), must_show=floating)
    if re.search(r"Tensor|ndarray", annotation):
        yield promise("retypes", every(values.retyped))
    if re.search(r"gradient", words):
        gradient = values.tracked if re.search(r"(without|no) gradient", words) else values.detached
        yield promise("other-gradient", every(gradient))
    if re.search(r"(same|own) (storage|tensors)", words):
        yield promise("clones", every(values.cloned))
    new = bool(_NEW.search(words))
    if re.match(r"list|dict|Data", annotation) and (new or _LEFT.search(everything)):
        change = functools.partial(rows.aliased, within=new)
        yield Promise("aliases", told, broken.returning(change), must_show=new)
    if "DataProto" in annotation:
        yield replace(promise("loses-meta-info", rows.without_meta), must_show=True)
    if re.match(r"dict|(?!Any)[A-Z]\w+$", annotation) or "DataProto" in annotation:
        for name in dict.fromkeys(re.findall(r"``(\w+)``", words if not annotation.startswith("dict") else everything)):
            if name not in described:
                yield promise(f"alters-{name}", functools.partial(rows.named_altered, name=name))


# -- context managers --------------------------------------------------------------------------------------------------


def _of_context(words: str) -> Iterator[Promise]:
    yield Promise("undoes-nothing", words, functools.partial(broken.leaving, undone=(False, False)))
    yield Promise(
        "undoes-after-success-only", words, functools.partial(broken.leaving, undone=(True, False)), must_show=True
    )
    yield Promise("swallows-the-blocks-error", words, broken.forgiving, must_show=True)
