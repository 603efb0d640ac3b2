from mutants import fails, replaces

replaces("regressed", "verl.protocol.DataProto.check_consistency", only="test_check_consistency")(lambda self: None)


@replaces("regressed", "verl.protocol.DataProto.repeat", only="test_batch_repeated")
def always_tiled(original, self, repeat_times=2, interleave=True):
    return original(self, repeat_times, interleave=False)


@replaces("absent", "verl.protocol.DataProto.union", only="test_column_set_by_hand")
def drops_odd_columns(original, self, other):
    for batch in (self, other):
        rows = len(batch)
        batch.non_tensor_batch = {key: values for key, values in batch.non_tensor_batch.items() if len(values) == rows}
    return original(self, other)


replaces("changed", "verl.protocol.DataProto.union", only="test_prompts_are_not_repeated")(fails)
