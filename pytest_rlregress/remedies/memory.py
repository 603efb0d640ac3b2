"""One GPU, trainer and engine."""

from __future__ import annotations

__all__: list[str] = []
