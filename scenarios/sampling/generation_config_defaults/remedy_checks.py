"""Every field that an engine may fill in is said."""

from __future__ import annotations

import pytest

from pytest_rlregress.scenarios.sampling.generation_config_defaults.test_generation_config_defaults import NEUTRAL


def test_every_field_is_said(subject):
    assert subject(7, seed=3) == {**NEUTRAL, "max_tokens": 7, "top_k": -1, "seed": 3}
    assert subject(7, top_k=20, top_p=0.8) == {**NEUTRAL, "max_tokens": 7, "top_k": 20, "top_p": 0.8}


@pytest.mark.parametrize("name", ["top_k", "seed"])
def test_none_is_no_choice(subject, name):
    with pytest.raises(ValueError, match=name):
        subject(24, **{name: None})
