"""What a preview of an upgrade found: what moves, what the tests say with it, and whether it is safe."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_rlregress.commands.trials.summaries import RunContext, TrialSummary
from pytest_rlregress.commands.upgrade.comparison import VerdictChange
from pytest_rlregress.commands.upgrade.step import StepNumber


@dataclass(frozen=True)
class LeftOut:
    """An upgrade that is not part of the largest safe set.

    Attributes:
        upgrade: ``name before -> after``; several where they can only be moved together.
        reason: The verdicts that keep it out, or the upgrade that it needs and that is left out.
    """

    upgrade: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class SafeSet:
    """The largest set of upgrades that was seen to make nothing worse.

    Attributes:
        kept: Its upgrades, with what moves along.
        left_out: The others of those that were asked for.
    """

    kept: tuple[str, ...]
    left_out: tuple[LeftOut, ...]


@dataclass(frozen=True)
class UpgradeAnswer:
    """What a preview found.

    Attributes:
        asked: What was asked for, in words.
        command: What asks the same again.
        asked_for: The upgrades that were asked for, as ``name before -> after``.
        moved_along: What has to move with them.
        safe: Whether all of it makes nothing worse, and takes no trainer and no engine back.
        back: The trainers and engines that it takes back, each with how far.
        instead: Then: the newest of what was asked for that takes none back; () is to stay.
        stays: The packages whose newest release cannot be installed here, each with who forbids it.
        trouble: Why the tests could not be run with all of it, where a smaller set was looked for; else "".
        changes: The tests that say something else with it, by documented failure and side.
        gone: Documented failures that are reproduced here and not with it: their workarounds may go.
        unchanged: How many tests say the same of the stack.
        step: What the training steps measured.
        safe_set: With --stepwise, where all of it is not safe.
        run_context: Where it was tried; None where nothing would change.
        tried: Every trial.
        seconds: Wall-clock seconds, those of an interrupted preview included.
        output: The file that the lock was written to, of all upgrades or the largest safe set; "" for none.
    """

    asked: str
    command: tuple[str, ...]
    asked_for: tuple[str, ...] = ()
    moved_along: tuple[str, ...] = ()
    safe: bool = True
    back: tuple[str, ...] = ()
    instead: tuple[str, ...] = ()
    stays: tuple[str, ...] = ()
    trouble: str = ""
    changes: tuple[VerdictChange, ...] = ()
    gone: tuple[str, ...] = ()
    unchanged: int = 0
    step: tuple[StepNumber, ...] = ()
    safe_set: SafeSet | None = None
    run_context: RunContext | None = None
    tried: tuple[TrialSummary, ...] = ()
    seconds: float = 0.0
    output: str = ""

    @property
    def exit_code(self) -> int:
        """0 safe, 1 not safe or with a step back."""
        return 0 if self.safe else 1
