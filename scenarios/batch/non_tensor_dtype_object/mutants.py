from mutants import broken, fails, replaces
from pytest_rlregress.stack.lazy import np


@broken()
def as_numpy_likes(values):
    return np.array(values)


@broken(only="test_any_columns")
def second_dimension_kept(values):
    return np.array(values, dtype=object)


replaces("absent", "verl.protocol._deep_equal", only="test_union_of_equal_columns")(
    lambda one, other, visited: one.tolist() == other.tolist()
)
replaces("changed", "numpy.array", only="test_ragged")(fails)
