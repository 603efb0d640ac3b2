"""What can be loaded."""

from __future__ import annotations

__all__: list[str] = []
