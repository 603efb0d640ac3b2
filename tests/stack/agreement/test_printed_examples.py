"""The examples of docs/agreement.md and of the README's "Your own tests" run as printed, and say what is printed."""

from __future__ import annotations

import re
import subprocess
import sys
import xml.etree.ElementTree as ET

import documents
import needs
import pytest

pytestmark = [needs.stack, pytest.mark.slow]

README = (documents.DOCS.parent / "README.md").read_text()
BLOCKS = re.findall(
    r"^    (?:@|def )test_.*\n(?:(?:    .*)?\n)*", README.partition("## Your own tests")[2].partition("\n## ")[0], re.M
)
#: What the README's examples leave to the reader: a model, prompts, a sync and a loss with a mistake each.
PRELUDE = """
import pytest
from test_rollouts import PROMPTS

from pytest_rlregress.remedies.rollout import reload_by_worker


@pytest.fixture(autouse=True)
def my_model(sharp_qwen):
    global MY_MODEL
    MY_MODEL = sharp_qwen.directory


def my_sync(llm, weights):
    reload_by_worker(llm, weights)


def my_loss(batch):
    return -(batch.log_probs * batch.advantages * batch.mask).sum() / batch.mask.sum()


"""
BARE = """
def test_a_bare_assert(vllm_runner, sharp_qwen, agreement):
    engine = vllm_runner(sharp_qwen)
    completions = engine.generate(PROMPTS, max_tokens=24, temperature=0.5)
    assert agreement(engine, sharp_qwen.model(), completions, temperature=0.5)
"""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """By test what its report has: a failure's text, the output; one run, one engine."""
    folder = tmp_path_factory.mktemp("printed")
    documents.write(documents.files("agreement.md"), folder)
    printed = "".join(line.removeprefix("    ") for block in BLOCKS for line in block.splitlines(keepends=True))
    (folder / "agreement" / "test_readme.py").write_text(PRELUDE + printed + BARE)
    options = ["--junitxml=junit.xml", "-o", "junit_logging=all", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", "--hw=cpu", *options, "agreement"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=580)
    assert (folder / "junit.xml").exists(), done.stdout + done.stderr
    cases = ET.parse(folder / "junit.xml").iter("testcase")
    return {case.get("name"): {part.tag: f"{part.get('message')}\n{part.text}" for part in case} for case in cases}


def without_numbers(text):
    return re.sub(r"\d[\d.]*(e-\d+)?", "N", text)


PASSING = ["test_rollouts_agree", "test_sync", "test_my_model_in_both"]
FAILING = ["test_my_rollouts", "test_my_sync", "test_my_loss"]


@pytest.mark.parametrize("test", PASSING)
def test_example_passes(outcomes, test):
    assert "failure" not in outcomes[test]


@pytest.mark.parametrize("test", FAILING)
def test_example_says_what_its_comment_says(outcomes, test):
    [block] = [text for text in re.split(r"\n\n", "".join(BLOCKS)) if f"def {test}(" in text]
    comment = without_numbers(block.partition("# ")[2].splitlines()[0])
    failure = outcomes[test]["failure"]
    said = without_numbers(" ".join(failure.split()))
    assert [part for part in comment.split("…") if part.strip() not in said] == [], failure


def test_a_bare_assert_names_the_cause(outcomes):
    assert "the engine's log-probabilities are before temperature 0.5" in outcomes["test_a_bare_assert"]["failure"]


@pytest.mark.parametrize("test", [*FAILING, "test_a_bare_assert"])
def test_the_report_has_the_users_lines_alone(outcomes, test):
    places = re.findall(r"^(\S+\.py):\d+: ", outcomes[test]["failure"], re.M)
    assert {*places} == {"agreement/test_readme.py"}, outcomes[test]


def test_report_leaves_out_the_start_log_of_an_engine(outcomes):
    output = [outcomes[test].get(tag, "") for test in (*PASSING, *FAILING) for tag in ("system-out", "system-err")]
    assert any("Reloading weights" in text for text in output), "what the engine logs later is"
    assert not any("Initializing a V1 LLM engine" in text for text in output)
