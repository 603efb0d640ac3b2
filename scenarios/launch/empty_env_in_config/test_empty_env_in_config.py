"""Variables that size the cluster are empty, reach verl's Hydra configuration as text and are multiplied."""

from __future__ import annotations

import functools
from copy import deepcopy
from pathlib import Path

import pytest

KEYS = {"trainer.n_gpus_per_node": "ARNOLD_WORKER_GPU", "trainer.nnodes": "ARNOLD_WORKER_NUM"}
EMPTY = dict.fromkeys(KEYS.values(), "")
SET = {"ARNOLD_WORKER_GPU": "8", "ARNOLD_WORKER_NUM": "1"}
WRITTEN = {
    "plain": "${{oc.env:{}}}",
    "default": "${{oc.env:{},1}}",
    "decoded": "${{oc.decode:${{oc.env:{}}}}}",
    "decoded-default": "${{oc.decode:${{oc.env:{},1}}}}",
}


VERL = pytest.mark.needs("verl-trainer")


@functools.cache
def compose(*overrides):
    """What Hydra makes of arnold.yaml, which stands on verl's own configuration."""
    from hydra import compose, initialize_config_dir

    with initialize_config_dir(str(Path(__file__).parent), version_base=None):
        return compose("arnold", overrides=list(overrides))


def start(monkeypatch, config, environ):
    """The first thing verl does with a configuration, in this environment."""
    from verl.utils import config as verl_config

    for name in KEYS.values():
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    verl_config.validate_config(config, use_reference_policy=False, use_critic=False)


def check(subject, config, environ):
    """The variables a check names, by key; looked for in the file as written, as preflight does."""
    from omegaconf import OmegaConf

    raw = OmegaConf.to_container(config, resolve=False)
    advice = [one for one in subject(raw, environ) if one.key in KEYS]
    assert all(KEYS[one.key] in one.why + one.instead for one in advice), advice
    return {one.key: one.instead for one in advice}


@VERL
@pytest.mark.reproduces("empty-env-in-config")
@pytest.mark.parametrize("environ", [EMPTY, {**SET, "ARNOLD_WORKER_NUM": ""}, SET], ids=["both", "one", "text"])
def test_interpolated(monkeypatch, environ):
    start(monkeypatch, compose(), environ)


@VERL
@pytest.mark.reproduces("empty-env-in-config")
def test_expanded_by_the_shell(monkeypatch):
    start(monkeypatch, compose("trainer.n_gpus_per_node=", "trainer.nnodes="), EMPTY)


@VERL
@pytest.mark.guards("empty-env-in-config")
@pytest.mark.parametrize("written", WRITTEN)
@pytest.mark.parametrize(
    "environ", [{}, EMPTY, {**SET, "ARNOLD_WORKER_GPU": ""}, SET], ids=["unset", "empty", "one-empty", "set"]
)
def test_what_the_check_lets_through_starts(monkeypatch, subject, written, environ):
    from omegaconf import OmegaConf

    dots = [f"{key}={WRITTEN[written].format(name)}" for key, name in KEYS.items()]
    config = OmegaConf.merge(compose(), OmegaConf.from_dotlist(dots))
    found = check(subject, config, environ)
    if not found:
        start(monkeypatch, config, environ)
        return
    for key, name in KEYS.items():
        ready = environ.get(name) if name in environ or "default" not in written else "1"
        assert (key in found) == (not ready or "decoded" not in written), f"{written}, {name} is {ready!r}: {found}"


@VERL
@pytest.mark.guards("empty-env-in-config")
def test_what_the_check_says_to_write_starts(monkeypatch, subject):
    from omegaconf import OmegaConf

    instead = check(subject, compose(), SET)
    assert instead.keys() == KEYS.keys()
    ready = OmegaConf.merge(compose(), OmegaConf.from_dotlist([f"{key}={text}" for key, text in instead.items()]))
    start(monkeypatch, ready, SET)


@pytest.mark.guards("empty-env-in-config")
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


@pytest.mark.guards("empty-env-in-config")
def test_each_of_several_in_one_text(subject):
    found = subject({"data": {"files": "${oc.env:ROOT}/${oc.env:NAME}/${oc.env:PART}"}}, {"ROOT": "/data", "PART": ""})
    assert [one.key for one in found] == ["data.files"] * 2
    assert [("NAME" in one.why, "PART" in one.why) for one in found] == [(True, False), (False, True)]


@pytest.mark.guards("empty-env-in-config")
def test_only_what_is_empty(subject):
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
