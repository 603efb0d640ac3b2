from dataclasses import replace

from mutants import broken, mutant, replaces
from pytest_rlregress.remedies.launch import fingerprinted_state


@broken(only="test_rejects_other_data")
def rows_counted_alone(loader, rows=None):
    return replace(fingerprinted_state(loader, rows), sha256=f"{len(loader.dataset)} rows")


@broken(only="test_every_row_comes_once")
def hash_of_the_object(loader, rows=None):
    return replace(fingerprinted_state(loader, rows), sha256=str(id(loader.dataset)))


@mutant("absent")
def other_data_begins_anew(monkeypatch):
    """A torchdata that keeps what its data is, and drops the state of another."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    save, load = StatefulDataLoader.state_dict, StatefulDataLoader.load_state_dict

    def data_of(self):
        return str([sorted(row.items()) if isinstance(row, dict) else row for row in self.dataset])

    def saved(self):
        return {**save(self), "data": data_of(self)}

    def loaded(self, state):
        if state.get("data") == data_of(self):
            load(self, {key: value for key, value in state.items() if key != "data"})

    monkeypatch.setattr(StatefulDataLoader, "state_dict", saved)
    monkeypatch.setattr(StatefulDataLoader, "load_state_dict", loaded)


@replaces("changed", "torchdata.stateful_dataloader.StatefulDataLoader.load_state_dict")
def states_refused(self, state):
    raise RuntimeError("this state is of another version")
