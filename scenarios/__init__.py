"""Scenarios: one folder for each place where parts of the stack meet, each with its failures.toml and its tests."""
