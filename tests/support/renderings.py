"""Compare what a renderer makes with a file of ``tests/renderings``."""

from __future__ import annotations

from pathlib import Path

import pytest


def compare_with_file(name, text):
    """To rewrite a file of ``tests/renderings``: remove it, run this test, and read what git shows."""
    file = Path(__file__).parents[1] / "renderings" / name
    if not file.exists():
        file.write_text(text, encoding="utf-8")
        pytest.fail(f"{file} was not there, and is written now")
    assert text == file.read_text(encoding="utf-8")
