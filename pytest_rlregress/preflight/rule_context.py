"""What a rule is given, and what it may say."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pytest_rlregress.hardware.profiles import Profile
from pytest_rlregress.preflight.document import Config
from pytest_rlregress.remedies.advice import Advice

__all__ = ["Advice", "Rule", "RuleContext", "Unchecked"]


@dataclass(frozen=True)
class RuleContext:
    """The run that is to be started."""

    config: Config
    profile: Profile
    memory_bytes: int  # of one card; 0 where there is none
    elsewhere: str  # why what is installed here says nothing about the run; "" where it does
    prompt_tokens: int | None  # the longest prompt, where somebody knows

    @property
    def verl(self) -> bool:
        """Whether verl's names hold; else prime-rl's do."""
        return self.config.trainer == "verl"


@dataclass(frozen=True)
class Unchecked:
    """What a rule could not tell, and why."""

    why: str


Rule = Callable[[RuleContext], Iterator[Advice | Unchecked]]
