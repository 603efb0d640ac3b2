import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_rlregress.failures.act import act
from pytest_rlregress.failures.silent import silent
from pytest_rlregress.fixtures.drawn import EXAMPLES
from pytest_rlregress.stack.lazy import torch

# torchdata 0.11 on torch 2.13
pytestmark = [pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"), pytest.mark.needs("torchdata")]
STEPS = 5  # batches before the checkpoint
SHUFFLED = pytest.mark.parametrize("shuffled", [False, True], ids=["in-order", "shuffled"])


def rows(numbers):
    return [{"prompt": f"What is {number} + 1?", "answer": [number + 1]} for number in numbers]


def numbers_of(batches):
    return [row["answer"][0] - 1 for batch in batches for row in batch]


def data_loader(data, shuffled=False, batch_size=4, seed=1):
    """As verl makes its own: where it shuffles, with torchdata's sampler, which has a state."""
    from torch.utils.data import SequentialSampler
    from torchdata.stateful_dataloader import StatefulDataLoader
    from torchdata.stateful_dataloader.sampler import RandomSampler

    generator = torch.Generator().manual_seed(seed)
    sampler = RandomSampler(data, generator=generator) if shuffled else SequentialSampler(data)
    return StatefulDataLoader(data, batch_size=batch_size, sampler=sampler, collate_fn=list)


def interrupted(loader, steps=STEPS, state_of=None):
    """The numbers of the first batches, and the state that is saved after them."""
    batches = iter(loader)
    came = numbers_of([next(batches) for _ in range(steps)])
    return came, (state_of or loader).state_dict()


@pytest.mark.reproduces("dataloader-resume-skips")
def test_another_data_set():
    _, state = interrupted(data_loader(rows(range(100))))
    resumed = data_loader(rows(range(1000, 1100)))
    with act():
        resumed.load_state_dict(state)
        first = numbers_of(resumed)[0] - 1000
    if first != 0:
        silent(f"of another data set the first {first} rows never come")


@pytest.mark.reproduces("dataloader-resume-skips")
@pytest.mark.parametrize(
    "kept", [range(120), [number for number in range(100) if number % 5]], ids=["grown", "filtered"]
)
def test_same_data_set_of_another_length(kept):
    """With another number of rows the same generator draws another order."""
    came, state = interrupted(data_loader(rows(range(100)), shuffled=True))
    resumed = data_loader(rows(kept), shuffled=True)
    with act():
        resumed.load_state_dict(state)
        lost = {*kept} - {*came} - {*numbers_of(resumed)}
    if lost:
        silent(f"{len(lost)} of {len(kept)} rows come neither before nor after the resume")


@pytest.mark.reproduces("dataloader-resume-skips")
@pytest.mark.parametrize("length", [12, 20])
def test_shorter_data_set(length):
    _, state = interrupted(data_loader(rows(range(100))))
    resumed = data_loader(rows(range(length)))
    with act():
        resumed.load_state_dict(state)
    if not list(resumed):
        silent(f"an epoch of {length} rows without a batch")


@pytest.mark.guards("dataloader-resume-skips")
@given(
    shuffled=st.booleans(),
    steps=st.integers(0, 6),
    batch_sizes=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    length=st.integers(25, 40),
)
@settings(EXAMPLES, max_examples=40)
def test_every_row_comes_once(subject, shuffled, steps, batch_sizes, length):
    """Also with another batch size after the resume, and where the data set was read again, keys in another order."""
    before = data_loader(rows(range(length)), shuffled, batch_sizes[0])
    with act():
        came, state = interrupted(before, steps, subject(before))
    after = data_loader([dict(reversed(row.items())) for row in rows(range(length))], shuffled, batch_sizes[1], seed=2)
    subject(after).load_state_dict(state)
    assert sorted(came + numbers_of(after)) == [*range(length)]


@pytest.mark.guards("dataloader-resume-skips")
def test_resumed_as_if_never_interrupted(subject, tmp_path):
    """Through a file, as torch.load reads it by default, and with rows whose keys are in another order."""
    before = data_loader(rows(range(100)), shuffled=True)
    with act():
        batches, checked = iter(before), subject(before)
    for _ in range(STEPS):
        next(batches)
    torch.save(checked.state_dict(), tmp_path / "data.pt")
    after = data_loader([dict(reversed(row.items())) for row in rows(range(100))], shuffled=True, seed=2)
    subject(after).load_state_dict(torch.load(tmp_path / "data.pt"))
    assert numbers_of(after) == numbers_of(batches)


CHANGES = {
    "another": rows(range(1000, 1100)),
    "grown": rows(range(120)),
    "shorter": rows(range(12)),
    "reordered": rows(range(100))[::-1],
    "one-value": rows([*range(50), 500, *range(51, 100)]),
    "one-column-more": [{**row, "level": None} for row in rows(range(100))],
}


@pytest.mark.guards("dataloader-resume-skips")
@SHUFFLED
@pytest.mark.parametrize("change", CHANGES)
def test_rejects_other_data(subject, change, shuffled):
    before = data_loader(rows(range(100)), shuffled)
    with act():
        _, state = interrupted(before, state_of=subject(before))
    after, untouched = data_loader(CHANGES[change], shuffled), data_loader(CHANGES[change], shuffled)
    with pytest.raises(ValueError, match=rf"\b100\b.*\b{len(CHANGES[change])}\b"):
        subject(after).load_state_dict(state)
    assert numbers_of(after) == numbers_of(untouched), "refused, and yet moved on"


@pytest.mark.guards("dataloader-resume-skips")
def test_rejects_a_state_without_a_fingerprint(subject):
    loader = data_loader(rows(range(100)))
    with act(), pytest.raises(ValueError, match="data set"):
        subject(loader).load_state_dict(interrupted(data_loader(rows(range(100))))[1])
