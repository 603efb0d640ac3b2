"""A config of either release of transformers, whichever is installed, comes out in both spellings."""

from __future__ import annotations

import pytest

SCALED = {"rope_type": "linear", "factor": 2.0}
AT_THE_TOP = {"rope_theta": 2e4, "partial_rotary_factor": 0.5}
WRITTEN = {
    "since-5": {"rope_parameters": SCALED | AT_THE_TOP},
    "before": AT_THE_TOP | {"rope_scaling": SCALED},
    "long-before": AT_THE_TOP | {"rope_scaling": {"type": "linear", "factor": 2.0}},
}


@pytest.mark.guards("rope-theta-lost")
@pytest.mark.parametrize("release", WRITTEN)
def test_spelling_of_either_release(subject, release):
    from transformers import PretrainedConfig

    class OwnConfig(PretrainedConfig):
        def to_dict(self):
            return {"hidden_size": 64, **WRITTEN[release]}

    made = subject(OwnConfig())
    scaling = SCALED | WRITTEN[release].get("rope_scaling", {})
    assert made == {"hidden_size": 64, **AT_THE_TOP, "rope_scaling": scaling, "rope_parameters": scaling | AT_THE_TOP}
