"""Broken remedies of model-id-not-on-hub, and stacks that differ."""

from __future__ import annotations

from mutants import broken, mutant
from pytest_rlregress.remedies.models import check_model_id


@broken(only="test_the_documented_id")
def names_none_that_may_be_meant(model, endpoint=None):
    try:
        check_model_id(model, endpoint)
    except ValueError:
        raise ValueError(f"{model} is not on the hub") from None


@broken(only="test_what_may_not")
def being_listed_is_enough(model, endpoint=None):
    from huggingface_hub import HfApi

    HfApi(endpoint=endpoint).model_info(model)


@mutant("absent", only="documented]")
def the_client_finds_the_one_meant(monkeypatch):
    from transformers import AutoConfig

    from pytest_rlregress.scenarios.models.model_id_not_on_hub.test_model_id_not_on_hub import ASKED, MEANT

    load = AutoConfig.from_pretrained
    monkeypatch.setattr(
        AutoConfig, "from_pretrained", lambda model, **options: load(MEANT if model == ASKED else model, **options)
    )


@mutant("changed")
def the_hub_fails_otherwise(monkeypatch):
    from pytest_rlregress.scenarios.models import loopback_hub

    monkeypatch.setattr(loopback_hub._HubHandler, "_repository", lambda self, *args: self._refuse(403, "", "Forbidden"))
