"""Runs what is not released yet beside the lock, one side at a time: what .github/workflows/unreleased.yml does.

``python tools/unreleased.py LOCK OUT [REQUIREMENT …]``. The lock itself runs first, the control leg. Then each side
runs: the lock with one component replaced, by default by the main branch of a trainer or of transformers, or by vLLM's
nightly build. All runs are of one machine and one day, so a verdict that differs from the control's, twice, is that
side's. Where one does OUT gets the issue, title.txt and body.md.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import canary
import stack_locks
import stacks
from building import Unbuildable

from pytest_rlregress.util.text import code_block, code_span, plural

#: A requirement by URL is a main branch. One by version is what its index has beyond the releases: see ``INDEXES``.
SIDES = (
    "verl @ git+https://github.com/verl-project/verl",
    "trl @ git+https://github.com/huggingface/trl",
    "transformers @ git+https://github.com/huggingface/transformers",
    "vllm>=0.1.dev0",
)
#: Where builds of a distribution are that PyPI does not have.
INDEXES = {"vllm": "https://wheels.vllm.ai/nightly/cpu"}


@dataclass(frozen=True)
class SideRun:
    """The outcome of a side's run.

    Attributes:
        requirement: The side.
        news: How many verdicts differ from the control's, twice.
        text: The comparison as Markdown, or why the side could not be tried.
    """

    requirement: str
    news: int
    text: str


def run_sides(lock: Path, out: Path, requirements: Iterable[str]) -> list[SideRun]:
    """Run the lock, then each side beside it; write the issue where verdicts differ.

    Raises:
        Unbuildable: The control leg cannot be installed.
        ValueError: The control leg did not come to its end.
    """
    control = stacks.run_lock(lock)
    found = []
    for requirement in requirements:
        found.append(run_side(control, lock, out, requirement))
        print(f"{requirement}: {plural(found[-1].news, 'verdict')} changed", flush=True)
    changed = [side for side in found if side.news]
    if changed:
        named = ", ".join(f"{stack_locks.name_of(side.requirement)} ({side.news})" for side in changed)
        (out / "title.txt").write_text(f"Verdicts change with what is not released yet: {named}", encoding="utf-8")
        parts = [f"## {code_span(side.requirement)}\n\n{side.text}" for side in found]
        (out / "body.md").write_text("\n\n".join(parts)[: canary.BODY_CHARACTERS] + "\n", encoding="utf-8")
    return found


def run_side(control: Path, lock: Path, out: Path, requirement: str) -> SideRun:
    """Run the lock with one component replaced, again where a verdict differs; return what differs from the control."""
    name = stack_locks.name_of(requirement)
    side = stacks.ENVIRONMENTS / "sides" / f"side-{name}.txt"
    side.parent.mkdir(parents=True, exist_ok=True)
    folder = out / name
    try:
        side.write_text(stack_locks.replace_side(lock, requirement, INDEXES.get(name)), encoding="utf-8")
        first = stacks.run_lock(side)
        news = canary.compare(folder, control, first)
        if news:
            news = canary.compare(folder, control, first, stacks.run_lock(side))
    except (Unbuildable, ValueError) as error:
        return SideRun(requirement, 0, f"It could not be tried:\n\n{code_block(str(error).strip())}")
    return SideRun(requirement, len(news), (folder / "body.md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("unreleased.py LOCK OUT [REQUIREMENT …], such as: requirements/cpu.txt issue 'transformers==5.24.0'")
    try:
        run_sides(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:] or SIDES)
    except (Unbuildable, ValueError) as error:
        sys.exit(f"The lock could not be run, so there is nothing to compare with: {error}")
