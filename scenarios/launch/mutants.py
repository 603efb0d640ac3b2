"""What mutants of several failures of this area have in common."""

from __future__ import annotations

import subprocess


def run_as(monkeypatch, changed):
    """Have subprocess.run do what ``changed(command, keywords)`` makes of a call."""
    run = subprocess.run

    def patched(command, **keywords):
        command, keywords = changed(command, keywords)
        return run(command, **keywords)

    monkeypatch.setattr(subprocess, "run", patched)
