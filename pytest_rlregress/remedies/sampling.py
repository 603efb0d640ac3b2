"""Remedies for sampling: what an engine samples from, and the log-probabilities it gives."""

from __future__ import annotations

__all__: list[str] = []
