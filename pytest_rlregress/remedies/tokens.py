"""Remedies for text that becomes ids, and ids that become text."""

from __future__ import annotations

__all__: list[str] = []
