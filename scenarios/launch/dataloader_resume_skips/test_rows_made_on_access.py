"""Rows that are made on access are compared by the columns that they are made of."""

import pytest

from pytest_rlregress.failures.act import act
from pytest_rlregress.scenarios.launch.dataloader_resume_skips.test_dataloader_resume_skips import (
    data_loader,
    pytestmark,  # noqa: F401
)
from pytest_rlregress.stack.lazy import np, torch


class Tokenised(list[int]):
    """Rows made on access, as verl's data set makes them."""

    def __getitem__(self, index):
        return {"prompt": np.array([index, 1]), "ids": torch.tensor([index, 2]), "raw": b"\xff", "reader": object()}


@pytest.mark.guards("dataloader-resume-skips")
def test_rows_that_are_made_on_access(subject):
    with act(), pytest.raises(TypeError, match=r"row 0.*object"):
        subject(data_loader(Tokenised(range(8))))
    columns = [{"ids": torch.tensor([i]), "prompt": np.array([i, 1]), "raw": bytes([i])} for i in range(8)]
    before = data_loader(Tokenised(range(8)))
    state = subject(before, columns).state_dict()
    subject(data_loader(Tokenised(range(8))), columns[:]).load_state_dict(state)
    for key, other in (("ids", torch.tensor([9])), ("prompt", np.array([3, 2])), ("raw", b"\xff")):
        changed = [*columns[:3], {**columns[3], key: other}, *columns[4:]]
        with pytest.raises(ValueError, match="data set"):
            subject(data_loader(Tokenised(range(8))), changed).load_state_dict(state)
