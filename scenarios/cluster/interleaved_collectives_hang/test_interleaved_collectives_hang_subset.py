"""The trainers are a part of the world: other ranks have no part in their sync, and nobody waits for them."""

from __future__ import annotations

import pytest

from pytest_rlregress.scenarios.cluster.interleaved_collectives_hang.process_groups import (
    RANKS,
    RECEIVER,
    SENDER,
    in_three_processes,
)

pytestmark = pytest.mark.isolated(group="process groups")


@pytest.mark.needs("torch")
@pytest.mark.guards("interleaved-collectives-hang")
def test_ranks_that_are_no_trainers(subject, tmp_path):
    def sync(rank, _, trainers):
        if rank not in (SENDER, RECEIVER):
            return None
        came = []
        subject([("embed", rank)], came.extend if rank == SENDER else None, trainers, 30)
        return came

    came = in_three_processes(sync, tmp_path, 4)
    assert [one.get("value", one) for one in came] == [[["embed", SENDER]], None, []]
    assert len(came) == RANKS
