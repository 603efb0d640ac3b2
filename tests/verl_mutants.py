"""Broken weight syncs and sampling of verl's engine, one after another in one run; vLLM's worker imports this."""

from __future__ import annotations

from pytest_rlregress.fixtures.verl_on_cpu.weight_receiver import WeightReceiver

#: What is broken, by the number of the sync: the first is before step 1. The syncs between are whole.
BROKEN_SYNCS = {2: "stale head", 4: "half a sync", 6: "wrong temperature"}


class MutantReceiver(WeightReceiver):
    syncs = 0
    loaded: dict = {}  # noqa: RUF012 - of the only instance in its process

    def load(self, weights):
        self.syncs += 1
        broken = BROKEN_SYNCS.get(self.syncs)
        if broken == "stale head":
            super().load({name: tensor for name, tensor in weights.items() if name != "lm_head.weight"})
        elif broken == "half a sync":
            names = list(weights)[: len(weights) // 2]
            super().load({**self.loaded, **{name: weights[name] for name in names}})
        else:
            super().load(weights)
        if broken == "wrong temperature":
            draw = self.model_runner.model.compute_logits
            self.model_runner.model.compute_logits = lambda *args, **kwargs: draw(*args, **kwargs) / 0.9
        self.loaded = {name: tensor.clone() for name, tensor in weights.items()}
