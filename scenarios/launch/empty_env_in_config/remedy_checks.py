"""Each variable that is unset, empty or text is named, with its reason."""

from copy import deepcopy

import pytest


@pytest.mark.parametrize(
    ("written", "environ", "why"),
    [
        ("${oc.env:NODES}", {}, "not set"),
        ("${oc.env:NODES,}", {}, "not set"),
        ("${oc.env:NODES,''}", {}, "not set"),
        ("${oc.env:NODES}", {"NODES": ""}, "empty"),
        ("${oc.env:NODES,1}", {"NODES": ""}, "empty"),
        ("${oc.env:NODES}", {"NODES": "2"}, "the text '2'"),
        ("${oc.env:NODES,'1'}", {}, "the text '1'"),
        ("${oc.env: 'NODES' , 1 }", {}, "the text '1'"),
        ("${oc.decode:${oc.env:NODES,1}}", {}, None),
        ("${oc.decode:${oc.env:NODES}}", {"NODES": "2"}, None),
    ],
)
def test_each_is_named_with_its_reason(subject, written, environ, why):
    """However deep the configuration is in which verl's own stands."""
    found = subject({"runs": {"first": {"trainer": {"nnodes": written}}}}, environ)
    assert [one.key for one in found] == ["runs.first.trainer.nnodes"] * (why is not None)
    if why:
        assert "NODES" in found[0].why
        assert why in found[0].why
        text = why.startswith("the text")
        assert found[0].instead.startswith("${oc.decode:${oc.env:" if text else "export NODES="), found[0].instead


def test_names_only_what_is_empty(subject):
    config = {
        "trainer": {"experiment_name": "${oc.env:RUN}", "nnodes": 1, "logger": ["console", "${oc.env:LOGGER}"]},
        "data": {"train_files": "/data/${oc.env:SET_NAME}/train.parquet", "val_files": "${data.train_files}"},
    }
    environ = {"RUN": "7", "LOGGER": "wandb", "SET_NAME": "dapo"}
    assert subject(config, environ) == []
    assert {one.key for one in subject(config, {**environ, "SET_NAME": " "})} == {"data.train_files"}
    assert {one.key for one in subject(config, {**environ, "LOGGER": ""})} == {"trainer.logger.1"}
    before = deepcopy(config), dict(environ)
    assert [one.key for one in subject(config, {})] == [
        "trainer.experiment_name",
        "trainer.logger.1",
        "data.train_files",
    ]
    subject(config, environ)
    assert (config, environ) == before
