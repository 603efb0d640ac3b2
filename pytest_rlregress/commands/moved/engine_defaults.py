"""Find the defaults of an engine that a trainer passes nothing for and that moved."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from pytest_rlregress.commands.moved.fields import find_class
from pytest_rlregress.commands.moved.findings import Finding, Kind, Snapshot, find_moved
from pytest_rlregress.commands.moved.reading import Reader
from pytest_rlregress.commands.moved.wheels import Release
from pytest_rlregress.stack.class_sources import UNKNOWN, find_fields

_MADE = re.compile(r"\b(?:Async)?(?:EngineArgs|LLM)\b|SamplingParams")
_OTHER_PLATFORMS = re.compile(r"rocm|xpu|tpu|npu|hpu|amd|aiter|neuron|_cpu_|cpu_", re.IGNORECASE)


def find_engine_defaults(
    trainer: Release, files: Sequence[str], ends: tuple[Release, Release], reader: Reader
) -> Iterator[Finding]:
    """Find the defaults of vLLM that the trainer passes nothing for and that differ."""
    snapshots = [
        Snapshot(one.version, reader.facts.find(["engine", one.key] if one.key else None, partial(read_defaults, one)))
        for one in ends
    ]
    passed = list_passed(trainer, files)
    for one in find_moved(snapshots, "vllm", []):
        name = one.key.rpartition(".")[2]
        if name not in passed and not _OTHER_PLATFORMS.search(name):
            yield Finding(
                Kind.ENGINE,
                one.key,
                "moved",
                one.before,
                one.after,
                package="vllm",
                why=f"{trainer.package} {trainer.version} passes nothing for it",
            )


def merge_defaults(findings: Sequence[Finding]) -> Iterator[Finding]:
    """Merge the engine defaults that several trainers leave open."""
    reasons: dict[str, list[str]] = {}
    for one in findings:
        reasons.setdefault(f"{one.kind} {one.key} {one.after}", []).append(one.why)
    for one in findings:
        why = reasons.pop(f"{one.kind} {one.key} {one.after}", None)
        if why is not None:
            yield replace(one, why="; ".join(why)) if one.kind is Kind.ENGINE else one


def read_defaults(release: Release) -> dict[str, Any]:
    """Read the defaults of EngineArgs, which refer to classes of the configuration, and of SamplingParams."""
    found: dict[str, Any] = {}
    classes: dict[str, dict[str, Any]] = {}
    for name, path in (("EngineArgs", "vllm/engine/arg_utils.py"), ("SamplingParams", "vllm/sampling_params.py")):
        source = find_class(name, [release], path)
        if source is None:
            continue
        for node in source.node.body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                owner, member = _read_reference(node.value)
                if owner and owner not in classes:
                    config = find_class(owner, [release], "vllm/config/")
                    classes[owner] = {key: one.value for key, one in find_fields(config).items()} if config else {}
                if owner:
                    found[f"{name}.{node.target.id}"] = classes[owner].get(member, UNKNOWN)
        found |= {
            f"{name}.{key}": one.value
            for key, one in find_fields(source).items()
            if found.get(f"{name}.{key}", UNKNOWN) == UNKNOWN
        }
    tree = release.parse("vllm/envs.py")
    for node in tree.body if tree else ():
        inside = node.body if isinstance(node, ast.If) else [node]
        for one in inside:
            if (
                isinstance(one, ast.AnnAssign)
                and isinstance(one.target, ast.Name)
                and isinstance(one.value, ast.Constant)
            ):
                found[f"envs.{one.target.id}"] = one.value.value
    return found


def _read_reference(node: ast.expr | None) -> tuple[str, str]:
    """Read ``ModelConfig.seed`` or ``get_field(ModelConfig, "seed")``; "" for anything else."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return node.value.id, node.attr
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "get_field" and len(node.args) == 2:
        owner, name = node.args
        if isinstance(owner, ast.Name) and isinstance(name, ast.Constant):
            return owner.id, str(name.value)
    return "", ""


def list_passed(trainer: Release, files: Sequence[str]) -> set[str]:
    """List the names that a trainer passes to an engine: keywords of its calls, keys of its tables of arguments."""
    found: set[str] = set()
    for path in files:
        tree = trainer.parse(path)
        for node in ast.walk(tree) if tree else ():
            if isinstance(node, ast.Call) and _MADE.search(ast.unparse(node.func)):
                found |= {word.arg for word in node.keywords if word.arg}
            elif isinstance(node, ast.Dict):
                found |= {str(key.value) for key in node.keys if isinstance(key, ast.Constant)}
            elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
                found.add(str(node.slice.value))
    return found
