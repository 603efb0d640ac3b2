"""The folder in which the package keeps what it can make again: environments, answers of indexes, tiny models."""

from __future__ import annotations

from pytest_rlregress.util.surroundings import cache_folder as folder

__all__ = ["folder"]
