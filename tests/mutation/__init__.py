"""Mutation testing of ``pytest_rlregress/remedies`` by mutmut, with the guards as the tests: ``make mutants``."""
