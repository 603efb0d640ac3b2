"""Broken remedies of partial-weight-sync, and stacks that differ."""

from __future__ import annotations

from mutants import broken, mutant

SCENARIO = "pytest_rlregress.scenarios.weight_sync.partial_weight_sync.test_partial_weight_sync"


@broken(only="test_a_part_is_refused")
def only_counted(load, weights, names):
    """A number that no one compares."""
    weights = list(weights)
    load(iter(weights))
    print(f"{len(weights)} of {len(names)} tensors came")


@broken(only="test_a_part_is_refused[raised_out_of_the_iterator-every-second]")
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


@mutant("absent")
def sender_sends_all(monkeypatch):
    monkeypatch.setattr(
        f"{SCENARIO}.sent",
        lambda model, part: list(model.state_dict().items()),
    )


@mutant("changed")
def loader_counts(monkeypatch):
    """As https://github.com/vllm-project/vllm/issues/52689 asks for: the failure is not silent any more."""
    from vllm import LLM

    call = LLM.collective_rpc

    def collective_rpc(self, method, *args, **options):
        if method == "reload_weights":
            weights = list(options["kwargs"]["weights_iterator"])
            if len(weights) < 26:
                raise RuntimeError(f"{len(weights)} weights came")
            options["kwargs"] = {"weights_iterator": iter(weights)}
        return call(self, method, *args, **options)

    monkeypatch.setattr(LLM, "collective_rpc", collective_rpc)
