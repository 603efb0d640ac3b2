"""Steps as goldens need them: which run is compared, from which weights others begin, and one golden a step."""

from __future__ import annotations

import subprocess
from types import SimpleNamespace

import needs
import pytest

from pytest_rlregress.fixtures.step_record import StepRecord
from pytest_rlregress.fixtures.trl_step import TrlRun, kept_as
from pytest_rlregress.goldens.golden import read
from pytest_rlregress.goldens.golden_step import perturbation
from pytest_rlregress.goldens.steps import altered, make_trl
from pytest_rlregress.records.measurements import Key

RECORD = StepRecord(
    number=1, loss=0.5, grad_norm=1.0, rewards=((0.0, 1.0),), disagreement_mean=1e-7, seconds=2.0, sampled="ab"
)
KEY = Key("a CPU", "2.13", "vllm 0.31", "CPU_ATTN", "float32")
RUN = TrlRun("colocate", ("a platform",), (RECORD,), KEY)


class Trl:
    """Stands for TRL's step: says what it was asked for."""

    model = SimpleNamespace(variant="tiny")

    def __init__(self, asked):
        self.asked = asked

    def run(self, steps, mode, **options):
        self.asked.append((steps, mode, options))
        return RUN


@pytest.fixture
def step(monkeypatch):
    monkeypatch.setattr("pytest_rlregress.goldens.steps.replace", lambda step, **changes: step)
    return Trl([])


def test_reuses_a_run_that_a_test_made(step):
    run = make_trl(step, {kept_as("colocate", 10): RUN}, 1e-5).run("colocate")
    assert step.asked == []
    assert (run["step"], run["variant"], run["loss"], run["agreement"], run["stand_ins"]) == (
        "trl-step",
        "colocate",
        [0.5],
        [1e-7],
        ["a platform"],
    )


def test_missing_run_is_made_once_per_seed(step):
    kept = {}
    recordable = make_trl(step, kept, 1e-5)
    for seed in (0, 0, 3):
        recordable.run("colocate", seed=seed)
    assert step.asked == [(10, "colocate", {}), (10, "colocate", {"seed": 3})]
    assert list(kept) == [kept_as("colocate", 10)]
    assert recordable.get_key() == KEY


def test_rejects_an_unsound_run(step):
    recordable = make_trl(step, {kept_as("colocate", 10): RUN}, 0.0)
    recordable.run("colocate")
    with pytest.raises(AssertionError, match="1 steps were recorded, 10 were asked for"):
        recordable.run("colocate", sound=True)


@needs.stack
def test_loads_the_altered_weights():
    from pytest_rlregress.fixtures.tiny_qwen import build

    model = build()
    before = {name: tensor.clone() for name, tensor in model.model().state_dict().items()}
    with altered(model, perturbation(0, "float32")) as copy:
        after = copy.model().state_dict()
        assert (copy.directory / "tokenizer.json").read_bytes() == (model.directory / "tokenizer.json").read_bytes()
    assert not copy.directory.exists()
    moved = {}
    for name, old in before.items():
        there = old != 0
        moved[name] = ((after[name] - old)[there] / old[there]).abs().max().item() if there.any() else None
    assert moved["model.embed_tokens.weight"] == moved["lm_head.weight"]
    assert all(5e-8 < most < 3e-7 for most in moved.values() if most is not None)
    with altered(model, None) as same:
        assert same is model


# -- two steps in one run ------------------------------------------------------------------------------------------

TESTS = """
import pytest
from pytest_rlregress.records.measurements import Key
from pytest_rlregress.goldens.golden_step import compare_or_record

KEY = Key("a card", "2.13", "vllm 0.31", "FLASH_ATTN", "float32")

class Step:
    variants, settings, repeats = ("one", "two"), {{"size": 3}}, {{"repeated": 1, "perturbed": 1, "other_seeds": 1}}
    get_key = staticmethod(lambda: KEY)

    def __init__(self, name):
        self.name = name

    def run(self, variant, *, seed=0, alter=None, sound=False):
        off = 0.5 * seed + (1e-6 if alter else 0) + ({off} if self.name == "second-step" else 0)
        return {{
            "step": self.name, "variant": variant, "steps": 2, "loss": [1.0 + off, 2.0], "sampled": [str(seed)] * 2,
        }}

@pytest.mark.parametrize("name", ["first-step", "second-step"])
def test_golden(name, request):
    compare_or_record(Step(name), request.node, print)
"""
UNRECORDED = """
from pytest_rlregress.goldens.golden_step import skip_unrecorded

def test_golden(request):
    skip_unrecorded(request.node, "first-step")
    raise AssertionError("the step runs, though no golden can be of it")
"""
GIT = ["git", "-c", "user.name=me", "-c", "user.email=me@example.org"]


@pytest.mark.slow
def test_each_step_has_its_own_golden(pytester, run):
    pytester.makeini("[pytest]\nrlregress_goldens = kept\n")
    (pytester.path / ".gitignore").write_text("__pycache__\n.cache\n*.py\n")
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "all"]):
        subprocess.run([*GIT, *command], check=True, cwd=pytester.path)
    arguments = "--hw=cpu", "test_it.py"
    run({"test_it": TESTS.format(off=0)}, *arguments).assert_outcomes(skipped=2)
    result = run({"test_it": TESTS.format(off=0)}, *arguments, "--rl-update-goldens")
    result.assert_outcomes(passed=2)
    goldens = {read(path).step: path.name for path in (pytester.path / "kept").iterdir()}
    assert goldens == {
        step: f"{step}_a-card_torch-2.13_vllm-0.31_flash-attn_float32.json" for step in ("first-step", "second-step")
    }
    result = run({"test_it": TESTS.format(off=0)}, *arguments)
    result.assert_outcomes(passed=2)
    result.stdout.no_fnmatch_line("*agrees:*")
    result = run({"test_it": TESTS.format(off=1e-4)}, *arguments, "-v")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*not as in the golden: one: loss of step 1 is 1.0001, the golden's 1:*"])
    result.stdout.fnmatch_lines(["*agrees: first-step, a card*", "*differs: second-step, a card*"])


def test_a_step_without_a_golden_does_not_run(pytester, run):
    pytester.makeini("[pytest]\nrlregress_goldens = kept\n")
    result = run({"test_it": UNRECORDED}, "--hw=cpu", "test_it.py", "-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*no golden of the first-step for this key (*: record it with --rl-update-goldens*"])
