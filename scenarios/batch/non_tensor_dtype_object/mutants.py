"""Broken remedies of non-tensor-dtype-object, and stacks that differ."""

from __future__ import annotations

from mutants import broken, fails, mutant


@broken()
def as_numpy_likes(values):
    import numpy as np

    return np.array(values)


@broken(only="test_any_columns")
def second_dimension_kept(values):
    import numpy as np

    return np.array(values, dtype=object)


@mutant("absent", only="test_union_of_equal_columns")
def union_compares_values(monkeypatch):
    from verl import protocol

    monkeypatch.setattr(protocol, "_deep_equal", lambda one, other, visited: one.tolist() == other.tolist())


@mutant("changed", only="test_ragged")
def array_fails_otherwise(monkeypatch):
    import numpy as np

    monkeypatch.setattr(np, "array", fails)
