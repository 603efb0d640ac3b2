"""Remedies for new weights and adapters on their way to a running engine."""

from __future__ import annotations

__all__: list[str] = []
