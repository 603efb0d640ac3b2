"""Remedies for the model as the trainer runs it: packing, positions, precision."""

from __future__ import annotations

__all__: list[str] = []
