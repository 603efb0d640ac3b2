"""What a training step measured, on its way to a test's reports."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from pytest_rlregress.fixtures.step_measurements import note_run, note_stand_ins
from pytest_rlregress.records.measurements import Key, numbers_of

KEY = Key("NVIDIA H100 80GB HBM3", "2.13", "vllm 0.31", "FLASH_ATTN 3", "bfloat16")
RUN = {
    "step": "trl-step",
    "variant": "colocate",
    "steps": 2,
    "loss": [0.5, 0.25],
    "agreement": (1e-7, float("nan")),
    "step_seconds": [1.0, 1.5],
    "sampled": ["ab", "cd"],
    "host_memory_bytes": 77,
    "stand_ins": ["a weight receiver", "a platform for verl"],
}


@pytest.fixture
def item():
    return SimpleNamespace(nodeid="test_it.py::test_it", user_properties=[("other", "kept")])


def test_keeps_each_run_in_order_with_its_stand_ins(item):
    note_stand_ins(item, ["a logical GPU"])
    noted = note_run(item, KEY, RUN)
    note_run(item, KEY, {**RUN, "variant": "generate", "stand_ins": []})
    found = dict(item.user_properties)
    measured = json.loads(found["rlregress_measured"])
    assert measured["key"]["torch"] == "2.13"
    assert [run["variant"] for run in measured["runs"]] == ["colocate", "generate"]
    assert measured["runs"][0] == noted == {**RUN, "agreement": [1e-7, None]}
    assert found["rlregress_stand_ins"] == "a logical GPU; a weight receiver; a platform for verl"
    assert found["other"] == "kept"
    assert len(item.user_properties) == 3


def test_run_without_stand_ins_has_no_stand_in_property(item):
    note_run(item, KEY, {**RUN, "stand_ins": []})
    assert "rlregress_stand_ins" not in dict(item.user_properties)


def test_numbers_leave_out_speed():
    assert numbers_of(RUN | {"agreement": [1.0, 2.0]}) == ("loss", "agreement")


def test_run_on_another_engine_has_its_own_key(item):
    note_run(item, KEY, RUN)
    note_run(item, replace(KEY, engine="transformers 5.10", attention="sdpa"), {**RUN, "variant": "hf"})
    measured = json.loads(dict(item.user_properties)["rlregress_measured"])
    assert "key" not in measured["runs"][0]
    assert (measured["key"]["engine"], measured["runs"][1]["key"]["engine"]) == ("vllm 0.31", "transformers 5.10")
