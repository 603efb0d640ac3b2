from mutants import broken, replaces


@broken(only="test_rejects_a_part")
def only_counted(load, weights, names):
    """A number that no one compares."""
    weights = list(weights)
    load(iter(weights))
    print(f"{len(weights)} of {len(names)} tensors came")


@broken(only="test_rejects_a_part_of_the_weights[raised_out_of_the_iterator-every-second]")
def raised_out_of_the_iterator(load, weights, names):
    came = set()

    def pairs():
        for name, tensor in weights:
            came.add(name)
            yield name, tensor
        if came != {*names}:
            missing = [name for name in names if name not in came]
            raise ValueError(f"{len(missing)} did not come: {missing[0]}")

    load(pairs())


replaces("absent", ".test_partial_weight_sync.sent")(lambda model, part: list(model.state_dict().items()))


@replaces("changed", "vllm.LLM.collective_rpc")
def loader_counts(original, self, method, *args, **options):
    """As https://github.com/vllm-project/vllm/issues/52689 asks for: the failure is not silent any more."""
    if method == "reload_weights":
        weights = list(options["kwargs"]["weights_iterator"])
        if len(weights) < 26:
            raise RuntimeError(f"{len(weights)} weights came")
        options["kwargs"] = {"weights_iterator": iter(weights)}
    return original(self, method, *args, **options)
