"""The documented remedies as plain functions: no pytest needed, so a trainer can call them.

Each function named as a ``subject`` in a scenario's ``failures.toml`` is what that failure's guards exercise; the ini
value ``rlregress_subjects`` puts your own function of the same signature in its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from verl.protocol import DataProto


def align_batches(batches: Sequence[DataProto], from_memory_db: Sequence[bool]) -> list[DataProto]:
    """Make batches concatenable whose non-tensor keys differ.

    Args:
        batches: verl ``DataProto`` objects, in any order; left as they are.
        from_memory_db: For each batch, whether it was replayed from the memory database.

    Returns:
        New batches over the same tensors. Each has the union of the non-tensor keys as object arrays of shape
        ``[batch]``; rows that had no such key hold None. The bool column ``from_memory_db`` tells replayed rows.

    Raises:
        ValueError: ``batches`` and ``from_memory_db`` differ in length.
    """
    import numpy as np

    if len(batches) != len(from_memory_db):
        raise ValueError(f"{len(batches)} batches but {len(from_memory_db)} provenance flags")
    keys = list(dict.fromkeys(key for batch in batches for key in batch.non_tensor_batch))
    aligned = []
    for batch, replayed in zip(batches, from_memory_db, strict=True):
        rows = len(batch)
        columns = {key: batch.non_tensor_batch.get(key, np.full(rows, None, dtype=object)) for key in keys}
        columns["from_memory_db"] = np.full(rows, replayed, dtype=object)
        aligned.append(type(batch)(batch=batch.batch, non_tensor_batch=columns, meta_info=dict(batch.meta_info)))
    return aligned
