"""A documented failure that needs nothing of the stack."""

FAILURES = """
[[failure]]
id = "short-column"
title = "A column is short"
seen_on = "H20"
components = {}
cause = "c"
remedy = "r"

  [[failure.signature]]
  exception = "AssertionError"
  message = "column .* is short"

  [[failure.signature]]
  signal = "SIGFPE"
"""
