from mutants import broken, mutant, replaces
from pytest_rlregress.remedies.batch import restore_ragged


@broken(only="test_rows_come_back")
def index_alone(batch, ragged):
    """As verl does it: the rows are right, the shape is not."""
    for name, dimension in ragged.items():
        batch[name]._ragged_idx = dimension
    return batch


@broken(only="test_given_batch_stays")
def in_the_same_batch(batch, ragged):
    batch.unlock_()
    for name in [name for name in ragged if name in batch.keys()]:  # noqa: SIM118
        batch[name] = restore_ragged(batch, ragged)[name]
    return batch


@mutant("absent")
def index_is_found_again(monkeypatch):
    """As if sent batches kept it: the dimension that has as many elements as the rows have together."""
    from torch.nested._internal.nested_tensor import NestedTensor

    def with_index(make):
        def made(self, values, offsets, *, lengths=None, **about):
            if "_ragged_idx" not in about and not offsets.is_meta:  # torch makes one of its own to look at
                about["_ragged_idx"] = values.shape.index(int(offsets[-1])) + 1
            return make(self, values, offsets, lengths=lengths, **about)

        return made

    monkeypatch.setattr(NestedTensor, "__init__", with_index(NestedTensor.__init__))
    monkeypatch.setattr(NestedTensor, "__new__", staticmethod(with_index(NestedTensor.__new__)))


@replaces("changed", "tensordict.TensorDict.consolidate")
def jagged_tensors_refused(self, *args, **kwargs):
    raise NotImplementedError("jagged tensors cannot be consolidated")
