"""Writes docs/remedies.md: every remedy, by area, with its arguments, what it does and the failures that it is for."""

from __future__ import annotations

import inspect
import re
import sys
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

from pytest_rlregress import remedies
from pytest_rlregress.failures import catalogue
from pytest_rlregress.util.text import code_span

_HEAD = """# The remedies

Generated from the docstrings by `make docs`. What a documented failure asks for is a plain function: a trainer calls it
without pytest, and importing it is light, for what it needs of torch or vLLM it imports when it is called.

    from pytest_rlregress.remedies.batch import align_batches

    python -m pydoc pytest_rlregress.remedies.batch                 # the area: arguments, shapes, what is raised
    python -m pydoc pytest_rlregress.remedies.batch.align_batches   # one of them

Most are for a loop of your own. Where TRL or verl has a setting that does the same, the failure's remedy in
The failure's page names it; what does not help is there too.
[your-code.md](your-code.md) puts a function of your own in a remedy's place under the same tests.
"""

_LONG = 20  # characters of a default; longer ones are code or a path of this machine


def page() -> str:
    """Return the page."""
    modules = [import_module(f"{remedies.__name__}.{found.name}") for found in iter_modules(remedies.__path__)]
    known = catalogue.load([catalogue.SHIPPED]).values()
    failures: dict[str, list[str]] = {}
    for failure in known:
        failures.setdefault(failure.subject or "", []).append(f"[{failure.id}](failures/{failure.id}.md)")
    return "\n".join([_HEAD, *(_area(module, failures) for module in modules)])


def _area(module: ModuleType, failures: dict[str, list[str]]) -> str:
    area = module.__name__.rpartition(".")[2]
    about = _first_line(module).removeprefix("Remedies for ")
    lines = [f"## {area}", "", f"{about[0].upper()}{about[1:]} `from {module.__name__} import …`", ""]
    lines += ["| remedy | what it does | for |", "| --- | --- | --- |"]
    for name in module.__all__:
        thing = getattr(module, name)
        call = f"{name}{_arguments(thing)}" if inspect.isfunction(thing) else name
        cells = [code_span(call), _first_line(thing), ", ".join(failures.get(name, ()))]
        lines.append(f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |")
    return "\n".join([*lines, ""])


def _arguments(function: Any) -> str:
    """Write the parameters of a function without their types, and of their defaults those that say something."""
    parameters = inspect.signature(function).parameters.values()
    return str(inspect.Signature([_parameter(one) for one in parameters])).replace("Ellipsis", "…")


def _parameter(parameter: inspect.Parameter) -> inspect.Parameter:
    plain = parameter.replace(annotation=inspect.Parameter.empty)
    shown = repr(plain.default)
    said = plain.default is inspect.Parameter.empty or (len(shown) <= _LONG and not shown.startswith("<"))
    return plain if said else plain.replace(default=...)


def _first_line(thing: Any) -> str:
    """Return the first line of a docstring as Markdown."""
    return re.sub("``(.+?)``", r"`\1`", (inspect.getdoc(thing) or "").partition("\n")[0])


if __name__ == "__main__":
    sys.stdout.write(page())
