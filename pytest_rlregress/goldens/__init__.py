"""Goldens: the step's numbers recorded on one hardware and stack, and the comparison of a run with them."""
