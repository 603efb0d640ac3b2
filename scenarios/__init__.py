"""Scenarios: one folder per seam of the stack, each with its failures.toml and its tests."""
