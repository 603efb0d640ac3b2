"""Seeds are far apart, and the same for the same place."""

from itertools import pairwise, product

import pytest

MANY = 64  # completions that one request may have, with seed, seed + 1, …


def test_far_apart(subject):
    """Every step, replica, prompt and copy: what numbers them may run on from one to the next, the seeds do not."""
    places = list(product(range(3), range(3), range(24), range(4)))
    seeds = sorted(subject(1, *place) for place in places)
    assert max(seeds) >= 2**62, "seeds of less than 63 bits"
    nearest = min(after - before for before, after in pairwise(seeds))
    assert nearest >= MANY, f"two of {len(places)} requests have seeds {nearest} apart"


def test_same_for_the_same_place(subject):
    assert subject(1, 2, 3) == subject(1, 2, 3)
    assert subject(1, 2, 3) != subject(2, 2, 3), "the run's seed makes no difference"
    assert len({subject(1, 1, 23), subject(1, 12, 3), subject(1, 23, 1), subject(1, 123)}) == 4


@pytest.mark.parametrize("seed", [0, 1, 2**32, 2**62])
def test_seeds_that_vllm_takes(subject, seed):
    for copy in range(100):
        found = subject(seed, copy)
        assert type(found) is int
        assert 0 <= found < 2**63, f"{found} does not fit a signed 64-bit integer"


def test_rejects_a_seed_without_a_place(subject):
    with pytest.raises(ValueError, match="same seed"):
        subject(1)
