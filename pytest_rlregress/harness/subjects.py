"""Find the code under a guard: the subject that the failure's entry names, or the user's own function in its place."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from pytest_rlregress.failures.catalogue import SHIPPED
from pytest_rlregress.util.processes import how_it_ended, python_command

if TYPE_CHECKING:
    from pytest_rlregress.failures.catalogue import Catalogue, Failure
    from pytest_rlregress.harness.settings import Settings

_HINT = (
    "Modules are found as pytest finds them when it starts: installed, on PYTHONPATH or in a folder of ini pythonpath"
)


class SubjectError(ValueError):
    """A subject that does not exist, cannot be imported or cannot be called like the one that it replaces."""


def under_guards(failure: Failure, settings: Settings) -> Callable[..., Any]:
    """Return the function under the guards of a failure that has a subject.

    Raises:
        SubjectError: It is not there, or not to be called like the entry's own; names the value's source.
    """
    if failure.subject is None:
        raise ValueError(f"{failure.id} has no subject")
    try:
        return resolve(failure.subject, settings.subjects)
    except SubjectError as error:
        replaced = failure.subject in settings.subjects
        source = settings.source["subjects"] if replaced else failure.place("subject")
        raise SubjectError(f"{source}: {error}") from error.__cause__


def resolve(subject: str, replaced: Mapping[str, str]) -> Callable[..., Any]:
    """Return the function that an entry's ``subject`` stands for.

    Args:
        subject: A function of ``pytest_rlregress.remedies``, or ``package.module:function``.
        replaced: Ini ``rlregress_subjects``: a ``subject`` to the ``package.module:function`` in its place.

    Raises:
        SubjectError: It cannot be imported, is not callable, or does not take the arguments of the one it replaces.
    """
    own = _imported(subject if ":" in subject else f"pytest_rlregress.remedies:{subject}", subject)
    if subject not in replaced:
        return own
    line = f"{subject} = {replaced[subject]}"
    found = _imported(replaced[subject], line)
    try:
        wanted = inspect.signature(own)
    except (TypeError, ValueError):  # written in C: it says nothing of its arguments
        return found
    try:
        _bind(inspect.signature(found), wanted)
    except (TypeError, ValueError) as error:
        raise SubjectError(f"{line}: must be callable like {subject}{wanted}, but: {error}") from None
    return found


def _imported(path: str, called: str) -> Callable[..., Any]:
    """Import ``package.module:function``; errors call it what it is ``called`` where it is asked for."""
    module, _, names = path.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for name in names.split("."):
            found = getattr(found, name)
    except (Exception, SystemExit) as error:  # a script ends the process when it is imported
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        hint = f". {_HINT}" if missing and f"{module}.".startswith(f"{missing}.") else ""
        why = f"{type(error).__name__}: {error}{hint}"
        raise SubjectError(f"{called}: cannot be imported: {why}") from error
    if not callable(found):
        raise SubjectError(f"{called}: is not callable: its type is {type(found).__name__}")
    return found  # type: ignore[no-any-return]


def _bind(given: inspect.Signature, wanted: inspect.Signature) -> None:
    """Bind the arguments of ``wanted`` to ``given``: by name if one of them can only be given so."""
    parameters = wanted.parameters.values()
    kind = inspect.Parameter
    by_name = any(one.kind is kind.KEYWORD_ONLY for one in parameters)
    in_order = {kind.POSITIONAL_ONLY} if by_name else {kind.POSITIONAL_ONLY, kind.POSITIONAL_OR_KEYWORD}
    named = {kind.POSITIONAL_OR_KEYWORD, kind.KEYWORD_ONLY} - in_order
    given.bind(
        *(one.name for one in parameters if one.kind in in_order),
        **{one.name: None for one in parameters if one.kind in named},
    )


def check(settings: Settings, catalogue: Catalogue) -> None:
    """Check the subjects of all entries, and those of ini ``rlregress_subjects``, before anything runs.

    The user's modules are imported in another process: they may import torch, and the pytest process never does.

    Raises:
        SubjectError: Naming the value's source and what is allowed.
    """
    failures = [(failure, failure.subject) for failure in catalogue.values() if failure.subject]
    for failure, subject in failures:
        # Those of the package are held by its own tests: no run pays for importing every remedy.
        if ":" not in subject and SHIPPED not in failure.source.parents and subject not in (shipped := _remedies()):
            raise SubjectError(
                f"{failure.place('subject')}: pytest_rlregress.remedies has no function {subject!r}. "
                f"{_did_you_mean(subject, shipped)} A function of your own: package.module:function."
            )
    source, known = settings.source["subjects"], {subject for _, subject in failures}
    for name in settings.subjects:
        if name not in known:
            raise SubjectError(f"{source}: no guard exercises {name!r}. {_did_you_mean(name, known)}")
    # The entries' own first: what replaces one is held against it.
    _resolve_in_process(
        [
            *((failure.place("subject"), subject, {}) for failure, subject in failures if ":" in subject),
            *((source, name, {name: path}) for name, path in settings.subjects.items()),
        ],
        settings.start_timeout,
    )


def _remedies() -> list[str]:
    from pytest_rlregress import remedies

    return [name for name, value in vars(remedies).items() if inspect.isfunction(value)]


def _did_you_mean(name: str, known: Iterable[str]) -> str:
    known = sorted(known)
    same_function = [one for one in known if one.rpartition(":")[2] == name.rpartition(":")[2]]
    close = same_function or get_close_matches(name, known)
    return f"Did you mean {' or '.join(close)}?" if close else f"Allowed: {', '.join(known)}."


def _resolve_in_process(asked: Sequence[tuple[str, str, Mapping[str, str]]], limit: float) -> None:
    """Resolve subjects, each with the source that asks for it and what replaces it, in one process for all."""
    if not asked:
        return
    questions = json.dumps([question for _, *question in asked])
    command = python_command("from pytest_rlregress.harness.subjects import main; main(sys.argv[1])", questions)
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=limit
        )
        name, _ = how_it_ended(done.returncode, raw=False)
        output, how = done.stdout, f"ended with {name or f'exit code {done.returncode}'}"
    except subprocess.TimeoutExpired as expired:
        output, how = expired.stdout or b"", f"was killed after {limit:g} s: --rl-timeout allows more"
    answers = list(map(json.loads, output.splitlines()))
    for (source, *_), problem in zip(asked, answers, strict=False):
        if problem:
            raise SubjectError(f"{source}: {problem}")
    if len(answers) < len(asked):
        source, subject, replaced = asked[len(answers)]
        raise SubjectError(
            f"{source}: {replaced.get(subject, subject)}: cannot be imported: the process that tried {how}"
        )


def main(questions: str) -> None:
    """Answer each question with a line of JSON: the error, "" for none. Ends the process, never returns."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a module prints when it is imported isn't an answer
    for subject, replaced in json.loads(questions):
        problem = ""
        try:
            resolve(subject, replaced)
        except SubjectError as error:
            problem = " ".join(str(error).split())
        print(json.dumps(problem), file=answers, flush=True)
    os._exit(0)  # the end of an imported stack takes a second, and a module may have started a thread
