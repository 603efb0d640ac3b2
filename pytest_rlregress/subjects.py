"""The code under a guard: the built-in remedy, or the user's own function of the same signature."""

from __future__ import annotations

import importlib
import inspect
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from pytest_rlregress import remedies

if TYPE_CHECKING:
    from pytest_rlregress.catalogue import Catalogue
    from pytest_rlregress.settings import Settings


class SubjectError(ValueError):
    """A subject that does not exist, cannot be imported or cannot be called like the remedy it replaces."""


def resolve(name: str, subjects: Mapping[str, str]) -> Callable[..., Any]:
    """The function under the guards for remedy ``name``.

    Args:
        name: A function of ``pytest_rlregress.remedies``.
        subjects: Ini ``rlregress_subjects``: remedy name to ``package.module:function``.

    Raises:
        SubjectError: It cannot be imported, is not callable, or does not take the remedy's arguments.
    """
    remedy: Callable[..., Any] = getattr(remedies, name)
    if name not in subjects:
        return remedy
    module_name, _, attribute = subjects[name].partition(":")
    try:
        found: Any = importlib.import_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
    except Exception as error:
        raise SubjectError(f"{name} = {subjects[name]}: cannot be imported: {type(error).__name__}: {error}") from error
    wanted = inspect.signature(remedy)
    try:
        given = inspect.signature(found)
        given.bind(**dict.fromkeys(wanted.parameters)) if _by_name(wanted) else given.bind(*wanted.parameters)
    except (TypeError, ValueError) as error:
        raise SubjectError(f"{name} = {subjects[name]}: must be callable like {name}{wanted}, but: {error}") from None
    return found  # type: ignore[no-any-return]


def _by_name(signature: inspect.Signature) -> bool:
    return any(parameter.kind is parameter.KEYWORD_ONLY for parameter in signature.parameters.values())


def check(settings: Settings, catalogue: Catalogue) -> None:
    """Check ini ``rlregress_subjects`` before anything runs.

    The user's modules are imported in another process: they may import torch, and the pytest process never does.

    Raises:
        SubjectError: Naming the value's source and what is allowed.
    """
    if not settings.subjects:
        return
    source = settings.source["subjects"]
    known = sorted({failure.subject for failure in catalogue.values() if failure.subject})
    for name in settings.subjects:
        if name not in known:
            close = get_close_matches(name, known) or known
            raise SubjectError(f"{source}: no guard exercises {name!r}. Did you mean {' or '.join(close)}?")
    command = [
        sys.executable,
        "-m",
        "pytest_rlregress.subjects",
        json.dumps(sys.path),
        json.dumps(settings.subjects),
    ]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise SubjectError(f"{source}: {done.stderr.strip().splitlines()[-1]}")


def main(path: str, subjects: str) -> None:
    """Resolve every subject; the process ends with the first complaint."""
    sys.path[:] = json.loads(path)
    for name in json.loads(subjects):
        try:
            resolve(name, json.loads(subjects))
        except SubjectError as error:
            sys.exit(" ".join(str(error).split()))


if __name__ == "__main__":
    main(*sys.argv[1:])
