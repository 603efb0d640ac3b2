"""Judge what the type checker says of a trainer: what breaks for certain, when it is reached, what is guarded."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass

from pytest_rlregress.commands.moved.checker import Diagnostic
from pytest_rlregress.commands.moved.conditions import IMPORTS, Conditions, Seen
from pytest_rlregress.commands.moved.engines import ENGINES, shorten_text
from pytest_rlregress.commands.moved.wheels import Release

#: Parts of a trainer that only some settings reach: what matches a path and a function, and the settings in words.
PARTS = {
    r"verl/.*(?:(?<![a-z])npu|ascend|hccl|mindspeed)": "an NPU",
    r"verl/utils/(?:qat|modelopt)/|verl/.*(?:fp8|fp4|quant)": "quantisation",
    r"verl/.* \w*lora\w*": "LoRA",
    r"verl/.*(?:megatron|mcore|mbridge)": "Megatron",
    r"verl/.*veomni": "VeOmni",
    r"verl/.*torchtitan": "torchtitan",
    r"verl/.*(?:sglang|trtllm)": "another engine",
    r"verl/models/transformers/(?!monkey_patch)": "a model of that family",
    r"verl/.*delta_weight_transfer": "checkpoint_engine.backend=delta_sharded",
    r"verl/experimental/|verl/.*fire_vllm": "an experimental program",
    r"verl/.*vllm_async_server\.py (?:abort_all_requests|resume_generation)": "separate_async or colocate_async",
    r"trl/experimental/": "an experimental trainer",
    r"trl/(?:scripts/vllm_serve|extras/vllm_client|generation/vllm_client)": "vllm_mode=server",
}
# Files that a trainer chooses by the package's version.
_CHOSEN = r".*/vllm_v_\d"


@dataclass(frozen=True)
class Unbound:
    """A name or call of a trainer that doesn't bind.

    Attributes:
        subject: The name or the call, short.
        path: The trainer's file.
        line: In it.
        function: The function that it is in; "" for the module itself.
        rule: The checker's rule.
        text: The checker's sentence.
        part: The settings that reach it, or the condition around it; "" for what stands in no condition.
        condition: What the trainer asks or catches before it gets there; then it doesn't count as a break.
        before: The release that the trainer's requirements allow and that fails just so; "" where it binds there.
    """

    subject: str
    path: str
    line: int
    function: str
    rule: str
    text: str
    part: str = ""
    condition: str = ""
    before: str = ""


@dataclass(frozen=True)
class Cell:
    """One release of a trainer with one of a package.

    Attributes:
        allowed: Whether the trainer's requirements, those of its extras too, allow the package's release.
        unbound: What doesn't bind, guarded places among it.
        not_read: Why nothing is known; "" where it was read.
    """

    allowed: bool
    unbound: tuple[Unbound, ...] = ()
    not_read: str = ""

    @property
    def breaks(self) -> list[Unbound]:
        """What fails whenever its line runs."""
        return [one for one in self.unbound if not (one.condition or one.part or one.before)]

    @property
    def optional(self) -> list[Unbound]:
        """What fails whenever its line runs, in parts that only some settings or cases reach."""
        return [one for one in self.unbound if one.part and not (one.condition or one.before)]

    @property
    def before(self) -> list[Unbound]:
        """What fails just so with a release that the trainer's requirements allow."""
        return [one for one in self.unbound if one.before and not one.condition]

    @property
    def guarded(self) -> list[Unbound]:
        """What the trainer asks about, or catches."""
        return [one for one in self.unbound if one.condition]


def judge_trainer(
    trainer: Release, package: str, read: Mapping[str, list[Diagnostic]], baseline: str
) -> dict[str, list[Unbound]]:
    """Judge what the checker said of one release of a trainer.

    Args:
        trainer: The release.
        package: The package below it.
        read: What was said, by release of the package.
        baseline: The release that the trainer's requirements allow, see ``find_baseline``; "" for none.
    """
    conditions = Conditions(trainer, ENGINES[package])
    keys = {one: {_identify(said, conditions) for said in some} for one, some in read.items()}
    made: dict[str, bool] = {}
    unresolved = {one: {said.path for said in some if said.rule in IMPORTS} for one, some in read.items()}
    found = {}
    for version, said in read.items():
        failing = {(one.path, one.line) for one in said if one.rule in IMPORTS}
        seen = Seen(version, failing)
        unbound = []
        for one in said:
            key = _identify(one, conditions)
            others = (other for other in read if one.path not in unresolved[other])
            elsewhere = any(key not in keys[other] for other in others)
            if _is_certain(one, conditions, elsewhere, made):
                before = baseline if key in keys.get(baseline, ()) else ""
                unbound.append(_describe(one, conditions, conditions.find(one, seen), before))
        found[version] = unbound
    return found


def _identify(one: Diagnostic, conditions: Conditions) -> tuple[str, int, str, str]:
    """Return what says that two findings are the same, with whatever release of the package."""
    names = re.findall(r"`([^`]+)`", one.text)
    if one.rule not in IMPORTS:
        return one.path, one.line, one.rule, names[0] if names else ""
    statements = [
        node.lineno
        for node in conditions.list_around(one.path, one.line)
        if isinstance(node, (ast.Import, ast.ImportFrom))
    ]
    return one.path, (statements or [one.line])[-1], "import", names[-1] if names else ""


def _is_certain(one: Diagnostic, conditions: Conditions, elsewhere: bool, made: dict[str, bool]) -> bool:
    """Return whether a finding is told for certain.

    An argument is, if the checker names what is called in the package. An attribute is, if another release has it, and
    no class of the trainer's makes it. A compiled module isn't.

    Args:
        one: The finding.
        conditions: Of the trainer that it is of.
        elsewhere: Whether another release of the package has it, and all names of that file.
        made: Whether the trainer makes an attribute, by its name: filled here.
    """
    names = re.findall(r"`([^`]+)`", one.text)
    if one.rule in IMPORTS:
        return not (one.rule == "import-not-found" and names and re.search(r"\._\w*C(?:_\w+)?$|_pb2$", names[-1]))
    if one.rule != "missing-attribute":
        return bool(one.declared)
    if not elsewhere or not names:
        return False
    name = names[-1]
    if name not in made:
        makes = re.compile(rf"\b{re.escape(name)}\s*(?:=[^=]|:)|def {re.escape(name)}\b")
        made[name] = any(name in text and makes.search(text) for text in conditions.sources.values())
    return not made[name]


def _describe(one: Diagnostic, conditions: Conditions, condition: str, before: str) -> Unbound:
    around = conditions.list_around(one.path, one.line)
    functions = [node.name for node in around if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    function = functions[-1] if functions else ""
    part = next((words for pattern, words in PARTS.items() if re.match(pattern, f"{one.path} {function}")), "")
    tests = [node.test for node in around if isinstance(node, ast.If) and one.line >= node.body[0].lineno]
    if not part and not condition and tests:
        part = f"if {ast.unparse(tests[-1])}"
    if not condition and re.match(_CHOSEN, one.path):
        condition = "chosen by the release of the package"
    return Unbound(shorten_text(one.text), one.path, one.line, function, one.rule, one.text, part, condition, before)
