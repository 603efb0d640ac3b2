import inspect
import sys

import pytest

from pytest_rlregress.failures.act import act
from pytest_rlregress.scenarios.dependencies import wheel_index
from pytest_rlregress.stack import InterfaceMissing, versions
from pytest_rlregress.stack.lazy import torch

# verl replaces functions of transformers, and remembers whether there is a TRL
pytestmark = [pytest.mark.isolated, pytest.mark.needs("verl")]

HEAD = "class AutoModelForCausalLMWithValueHead:\n    pass\n"
PPO = {"trl/__init__.py": "", "trl/experimental/__init__.py": "", "trl/experimental/ppo/__init__.py": HEAD}
WITH_HEAD = {"0.26.2": {"trl/__init__.py": HEAD}, "1.11.0": PPO}
WITHOUT_HEAD = {"1.13.0": {"trl/__init__.py": "KTO = 1\n", "trl/experimental/__init__.py": ""}}


def small_model():
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 2}
    config = AutoConfig.for_model("qwen2", num_hidden_layers=1, vocab_size=16, **sizes)
    return AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()


def logits(model):
    with torch.no_grad():
        return model(torch.arange(8)[None]).logits


@pytest.fixture(autouse=True)
def what_verl_asks():
    """Verl's own answer whether TRL is installed is back after each test, wherever verl has it."""
    from verl.utils import import_utils

    asked = import_utils.is_trl_available
    yield
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "verl" and "is_trl_available" in vars(module):
            module.is_trl_available = asked


def put_trl_in_front(monkeypatch, folder, version, files):
    wheel_index.put_in_front(monkeypatch, wheel_index.wheel(folder, "trl", version, files=files), "trl")


@pytest.mark.reproduces("trl-value-head-removed")
def test_actor_with_the_installed_trl():
    from verl.models.transformers.monkey_patch import apply_monkey_patch

    with act():
        apply_monkey_patch(small_model(), use_remove_padding=False)


@pytest.mark.guards("trl-value-head-removed")
@pytest.mark.parametrize("called", ["before-verl", "after-verl"])
def test_actor_is_patched(subject, called):
    """The way verl is asked to be used: it computes what the model computed before."""
    with act():
        if called == "before-verl":
            subject()
        from verl.models.transformers.monkey_patch import apply_monkey_patch

        if called == "after-verl":
            subject()
        model = small_model()
        before = logits(model)
        apply_monkey_patch(model, use_remove_padding=False)
    assert logits(model).equal(before)


@pytest.mark.guards("trl-value-head-removed", fidelity="stand-in")
@pytest.mark.parametrize(("version", "files"), WITHOUT_HEAD.items(), ids=WITHOUT_HEAD)
def test_a_trl_without_the_class_is_said_and_stays(subject, monkeypatch, tmp_path, version, files):
    put_trl_in_front(monkeypatch, tmp_path, version, files)
    with act():
        said = subject()
    assert f"trl {version}" in said
    assert "AutoModelForCausalLMWithValueHead" in said
    from verl.utils import model

    assert model.is_trl_available() is False, "verl would import the class"
    import trl

    assert trl.KTO == 1, "TRL itself is gone"


@pytest.mark.guards("trl-value-head-removed", fidelity="stand-in")
@pytest.mark.parametrize(("version", "files"), WITH_HEAD.items(), ids=WITH_HEAD)
def test_a_trl_with_the_class_is_left_to_verl(subject, monkeypatch, tmp_path, version, files):
    from verl.models.transformers import monkey_patch

    if files is PPO and "trl.experimental.ppo" not in inspect.getsource(monkey_patch):
        raise InterfaceMissing(f"needs a verl that looks in trl.experimental, which {versions()['verl']} doesn't")
    put_trl_in_front(monkeypatch, tmp_path, version, files)
    with act():
        assert subject() is None
    from verl.utils import model

    assert model.is_trl_available(), "a critic would lack its value head"


@pytest.mark.guards("trl-value-head-removed", fidelity="injected")
def test_nothing_to_hide_without_trl(subject, monkeypatch):
    monkeypatch.setitem(sys.modules, "trl", None)
    assert subject() is None
