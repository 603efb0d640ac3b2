"""Write the page of a failure, for one who has an error text and no idea what it means, and the index of all pages."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from pytest_rlregress.failures.catalogue import ANY, TRAINERS, Failure
from pytest_rlregress.failures.fidelity import in_words, marked_tests
from pytest_rlregress.failures.named_keys import find_untested_keys
from pytest_rlregress.failures.signatures import Example, Signature
from pytest_rlregress.util.text import code_block, code_span

_ISSUE = re.compile(r"\b([\w.-]+/[\w.-]+)#(\d+)\b")
_HOLE = re.compile(r"\{\w*\}")
_CHOICE = re.compile(r"\{([^{}|]+)\|[^{}]*\}")
#: What one sees, in the order of the index.
KINDS = ("An error", "A process dies", "It hangs", "Silent", "A training step")
#: Kinds that the index divides by the area of the failure.
DIVIDED = ("An error", "Silent")

INDEX_HEAD = """# Failures by what one sees

A page each. `rlregress diagnose train.log` finds the page by the log. *Silent*: no error, the numbers are wrong.
"""


def page(failure: Failure, stacks: Sequence[tuple[str, str]] = ()) -> str:
    """Return the page of a failure.

    Args:
        failure: The failure.
        stacks: What its tests showed: the name of each stack, which is its row's anchor too, and the verdicts.
    """
    parts = [f"# {failure.title}", f"`{failure.id}`, one of the failures of *{failure.area.replace('_', ' ')}*."]
    parts += ["## What you see", *_seen_lines(failure)]
    parts += ["## Why", _with_links(failure.cause), "## What to do"]
    parts += [
        _with_links(text if name == ANY else f"**{TRAINERS[name]}**: {text}") for name, text in failure.remedies.items()
    ]
    if untested := find_untested_keys(failure.remedies, failure.folder):
        parts += [f"Not shown by a test: {', '.join(map(code_span, untested))}."]
    if failure.subject:
        module, _, function = str(failure.subject_path).replace(":", ".").rpartition(".")
        parts += [code_block(f"from {module} import {function}", "python")]
    if failure.refuted:
        refuted = [_with_links(f"{one['remedy']}: {one['why']}") for one in failure.refuted]
        parts += ["## What does not help", "\n".join(f"- {one}" for one in refuted)]
    parts += ["## Since when, and where", "\n".join(f"- {fact}" for fact in _versions(failure))]
    parts += ["## Is it here?", code_block(f"pytest --hw=cpu --rl-failure {failure.id}", "sh")]
    parts += [_with_links(" ".join(text.split())) for text in (failure.measured, failure.on_card) if text]
    marked = marked_tests(failure.folder, failure.id)
    parts += [f"How real the tests are: {in_words(failure.fidelity, marked)}."]
    if stacks:
        rows = [f'| <a id="{name}"></a>{name} | {verdicts} |' for name, verdicts in stacks]
        parts += ["\n".join(["| stack | without the remedy / with it |", "|---|---|", *rows])]
    return "\n\n".join(parts) + "\n"


def index(failures: Iterable[Failure]) -> str:
    """Return the index of the pages: failures by what one sees and by area, each with its first line."""
    groups: dict[str, dict[str, list[str]]] = {kind: {} for kind in KINDS}
    for failure in failures:
        seen = next(iter([*_loud_lines(failure), *silent_texts(failure.folder), *map(shown, failure.signatures)]), "")
        line = f"- [{failure.title}]({failure.id}.md)"
        kind = _kind(failure)
        heading = f"{kind}: {failure.area.replace('_', ' ')}" if kind in DIVIDED else kind
        groups[kind].setdefault(heading, []).append(f"{line}<br>{code_span(seen)}" if seen else line)
    parts = [f"## {heading}\n\n" + "\n".join(lines) for kind in groups.values() for heading, lines in kind.items()]
    return "\n\n".join([INDEX_HEAD.rstrip(), *parts]) + "\n"


def shown(signature: Signature) -> str:
    """Render a signature as a log shows it, with … where something varies.

    A bare exception is shown with its place in the stack.
    """
    example = signature.message or signature.log
    line = _example_line(example) if example else ""
    seen = ": ".join(filter(None, (signature.signal, signature.exception, line)))
    if example or not signature.frames:
        return seen
    return f"{seen or 'a traceback'}, in {_example_line(signature.frames[0]).rstrip(':')}"


def _example_line(example: Example) -> str:
    line = _HOLE.sub("…", _CHOICE.sub(r"\1", example.text))
    return re.sub("…+", "…", line).replace("{{", "{").replace("}}", "}").strip()


def silent_texts(folder: Path) -> list[str]:
    """Return what the tests of a silent failure say of it, with … for what they measure."""
    texts = []
    for path in sorted(folder.glob("test_*.py")):
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        assigned = {
            target.id: node.value
            for node in nodes
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        calls = [node for node in nodes if isinstance(node, ast.Call) and node.args]
        for call in calls:
            if isinstance(call.func, ast.Name) and call.func.id == "silent":
                said = call.args[0]
                text = assigned.get(said.id, said) if isinstance(said, ast.Name) else said
                texts.append(_text_of(text))
    return list(dict.fromkeys(filter(None, texts)))


def _loud_lines(failure: Failure) -> list[str]:
    """Return the lines by which the failure is known for certain."""
    return list(dict.fromkeys(line for one in failure.signatures if (line := shown(one)) and not one.confirm))


def _text_of(argument: ast.expr) -> str:
    parts = argument.values if isinstance(argument, ast.JoinedStr) else [argument]
    return "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in parts).strip()


def _kind(failure: Failure) -> str:
    if silent_texts(failure.folder) and not _loud_lines(failure):
        return KINDS[3]
    if not failure.signatures:
        return KINDS[4]
    if any(one.signal for one in failure.signatures):
        return KINDS[1]
    return KINDS[2] if any(one.kind == "hung" for one in failure.signatures) else KINDS[0]


def _seen_lines(failure: Failure) -> list[str]:
    loud = _loud_lines(failure)
    silent = silent_texts(failure.folder)
    parts = []
    if silent:
        parts += ["Nothing: no error, no warning. What its tests measure:", code_block("\n".join(silent))]
    if loud:
        parts.append(code_block("\n".join(loud)))
    if any(one.kind == "hung" for one in failure.signatures):
        parts.append("Nothing goes on: no error, no end.")
    weak: dict[str, list[str]] = {}
    for one in failure.signatures:
        if one.confirm and shown(one):
            weak.setdefault(one.confirm, []).append(shown(one))
    for confirm, lines in weak.items():
        parts += [f"Perhaps also this. What would confirm it: {confirm}", code_block("\n".join(dict.fromkeys(lines)))]
    return parts or ["No error text is documented."]


def _versions(failure: Failure) -> list[str]:
    facts = [f"Seen on: {failure.seen_on}."]
    if failure.seen:
        facts.append(f"Reported in: {_with_links(failure.seen)}.")
    if failure.components:
        known = [f"{name} ({versions})" for name, versions in failure.components.items()]
        facts.append(f"Known in: {', '.join(known)}.")
    facts += [f"Gone since {name} {since}." for name, since in (failure.absent_since or {}).items()]
    if failure.expected == "absent":
        facts.append("Not expected on today's stack.")
    for where in failure.expected_where:
        conditions = [
            *where.hardware,
            *(f"{name} {'(any)' if spec == '>=0' else spec}" for name, spec in (where.stack or {}).items()),
        ]
        facts.append(f"Expected to be {where.verdict} on {', '.join(conditions)}.")
    return facts


def _with_links(text: str) -> str:
    return _ISSUE.sub(r"[\1#\2](https://github.com/\1/issues/\2)", text)
