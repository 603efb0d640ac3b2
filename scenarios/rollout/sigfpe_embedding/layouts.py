"""Layouts of ids and of what goes with them in a batch: the numbers stay, the strides differ."""

from pytest_rlregress.stack.lazy import torch

#: Of a padded batch of ids, [4, 12].
VIEWS = {
    "columns": lambda ids: ids[:, 3:11],
    "every-second-row": lambda ids: ids[::2],
    "transposed": lambda ids: ids.t().contiguous().t(),
    "expanded": lambda ids: ids[:1].expand(4, -1),
    "int32": lambda ids: ids.int()[:, 3:11],
}


def draw_ids(view, device="cpu"):
    """Return ids in one of the layouts, and the same ids as a contiguous tensor of int64."""
    ids = VIEWS[view](torch.arange(500, 548, device=device).view(4, 12))
    assert not ids.is_contiguous()
    return ids, torch.tensor(ids.tolist(), device=device)


def transpose(tensor):
    """Return the tensor laid out by columns."""
    return tensor.t().contiguous().t()


def expand(tensor):
    """Return a tensor whose rows are all alike as one row for all of them."""
    assert tensor.equal(tensor[:1].expand(len(tensor), -1))
    return tensor[:1].clone().expand(len(tensor), -1)


def slice_columns(tensor):
    """Return the tensor as columns of a wider one, with other numbers around it."""
    other = torch.full_like(tensor, 7)
    width = tensor.shape[1]
    return torch.cat([other, tensor, other], dim=1)[:, width : 2 * width]


def skip_rows(tensor):
    """Return the tensor as every second row of a longer one, with other numbers in between."""
    other = torch.full_like(tensor, 7)
    return torch.stack([tensor, other], dim=1).flatten(0, 1)[::2]
