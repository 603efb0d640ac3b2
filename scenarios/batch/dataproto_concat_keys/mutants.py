from mutants import broken, fails, replaces
from pytest_rlregress.remedies.batch import align_batches


@broken(only="test_any_batches")
def untouched(batches, from_memory_db):
    return list(batches)


@broken(only="test_any_batches")
def only_common_keys(batches, from_memory_db):
    aligned = align_batches(batches, from_memory_db)
    for one in aligned:
        one.non_tensor_batch.pop("memory_id", None)
    return aligned


@replaces("absent", "verl.protocol.DataProto.concat")
def concat_takes_the_union(original, data):
    aligned = align_batches(data, [False] * len(data))
    for one, given in zip(aligned, data, strict=True):
        del one.non_tensor_batch["from_memory_db"]
        one.non_tensor_batch.update(given.non_tensor_batch)
    return original(aligned)


replaces("changed", "verl.protocol.DataProto.concat")(fails)
