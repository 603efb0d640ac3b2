"""Scenarios: an area for each place where parts of the stack meet; in it a folder for each failure."""
