import functools
from pathlib import Path

import pytest

from pytest_rlregress.failures.act import act

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
    config = compose()
    with act():
        start(monkeypatch, config, environ)


@VERL
@pytest.mark.reproduces("empty-env-in-config")
def test_expanded_by_the_shell(monkeypatch):
    config = compose("trainer.n_gpus_per_node=", "trainer.nnodes=")
    with act():
        start(monkeypatch, config, EMPTY)


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
    with act():
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

    config = compose()
    with act():
        instead = check(subject, config, SET)
    assert instead.keys() == KEYS.keys()
    ready = OmegaConf.merge(config, OmegaConf.from_dotlist([f"{key}={text}" for key, text in instead.items()]))
    start(monkeypatch, ready, SET)
