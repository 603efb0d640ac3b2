"""Define what a rule is given, and what it may find."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pytest_rlregress.hardware.profiles import Profile
from pytest_rlregress.preflight.document import Config
from pytest_rlregress.remedies.advice import Advice


@dataclass(frozen=True)
class RuleContext:
    """The run that is to be started.

    Attributes:
        memory_bytes: Of one card; 0 where there is none.
        packages_unknown: Why what is installed here says nothing about the run; "" where it does.
        prompt_tokens: The longest prompt, if it was given.
    """

    config: Config
    profile: Profile
    memory_bytes: int
    packages_unknown: str
    prompt_tokens: int | None

    @property
    def verl(self) -> bool:
        """Whether verl's names hold; else prime-rl's do."""
        return self.config.trainer == "verl"


@dataclass(frozen=True)
class Unchecked:
    """Why a rule could not check something."""

    why: str


Rule = Callable[[RuleContext], Iterator[Advice | Unchecked]]
