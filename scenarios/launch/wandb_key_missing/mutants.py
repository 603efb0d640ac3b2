"""Broken remedies of wandb-key-missing, and stacks that differ."""

from __future__ import annotations

from mutants import broken, mutant


@broken(only="test_a_run_is_logged")
def as_if_there_were_a_key(environ):
    return "online"


@broken(only="netrc")
def only_the_variable(environ):
    return "online" if environ.get("WANDB_API_KEY") else "offline"


@mutant("absent")
def wandb_goes_on_without(monkeypatch):
    from functools import partial

    import wandb

    monkeypatch.setattr(wandb, "init", partial(wandb.init, mode="disabled"))


@mutant("changed")
def the_server_is_down(monkeypatch):
    import wandb

    def init(**settings):
        raise wandb.errors.CommError("Error communicating with wandb process")

    monkeypatch.setattr(wandb, "init", init)
