"""Broken remedies that are as good as the whole one, each with the reason: no guard can fail for them."""

from __future__ import annotations

#: (subject, name of the promise): why.
EQUIVALENT: dict[tuple[str, str], str] = {}
