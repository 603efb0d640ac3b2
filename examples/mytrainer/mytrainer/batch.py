"""Batches from the rollout engine and from the replay memory, made to go together."""

import numpy as np


def same_columns(batches, from_memory_db):
    """Give every DataProto the same non-tensor columns, and one that says whether it was replayed."""
    names = sorted({name for batch in batches for name in batch.non_tensor_batch})
    together = []
    for batch, replayed in zip(batches, from_memory_db, strict=True):
        columns = {"from_memory_db": _column([replayed] * len(batch))}
        for name in names:
            columns[name] = _column(list(batch.non_tensor_batch.get(name, [None] * len(batch))))
        tensors = batch.batch if batch.batch is None else batch.batch.copy()
        together.append(type(batch)(batch=tensors, non_tensor_batch=columns, meta_info={**batch.meta_info}))
    return together


def _column(values):
    column = np.empty(len(values), dtype=object)
    column[:] = values
    return column
