"""What a check finds wrong with one key of a configuration, and what to write instead."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Advice"]


@dataclass(frozen=True)
class Advice:
    """One thing to change before a run is started.

    Attributes:
        key: Dotted, as the file nests it: ``orchestrator.sampling.top_p``; entries of a list by number: ``env.0.id``.
        why: What will go wrong, in a sentence.
        instead: What to write, ready to be pasted.
    """

    key: str
    why: str
    instead: str
