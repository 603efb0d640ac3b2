"""Remedies for rewards, advantages and losses."""

from __future__ import annotations

__all__: list[str] = []
