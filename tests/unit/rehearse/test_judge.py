"""What a rehearsal comes to: findings first, and green only if the checks without which nothing is known were made."""

from __future__ import annotations

import pytest
from rehearsed import make_events, make_record

from pytest_rlregress.commands.rehearse import show
from pytest_rlregress.commands.rehearse.judge import CORE, judge
from pytest_rlregress.util.coverage import Result

PROMPTS = {
    "kind": "prompts",
    "rows": 3,
    "lengths": [10, 20, 90],
    "longest": 90,
    "longest_row": 2,
    "seconds": 0.1,
    "opened": True,
    "bos": 0,
    "end": "<|im_start|>assistant\n",
}
SAVED = {"kind": "saved", "what": "checkpoint", "folder": "checkpoint-2", "compared": 3, "differ": [], "missing": []}
SOUND = [make_record(1), make_record(2)]


def find_row(judged, name):
    return next(row for row in judged.rows if row.check == name)


def test_two_sound_steps_are_sound():
    assert judge(make_events(*SOUND)).result is Result.CLEAN


def test_no_step_is_never_sound():
    judged = judge([])
    assert judged.result is Result.UNCHECKED
    assert "nothing was rehearsed" in show.conclude("trl grpo", judged)


def test_one_update_is_not_enough():
    judged = judge(make_events(SOUND[0]))
    assert judged.result is Result.PARTIAL
    assert "updates" in judged.coverage.missing


@pytest.mark.parametrize("name", [*CORE, "sync", "agreement"])
def test_a_core_check_that_was_not_made_is_not_green(name):
    unseen = {"not_seen": {name: "for a reason", "reference": "beta is 0"}}
    judged = judge(make_events(*(make_record(number, **unseen) for number in (1, 2))))
    assert judged.result is Result.PARTIAL
    assert name in judged.coverage.missing


def test_transformers_needs_no_sync():
    unseen = {"sync": "there is no engine", "agreement": "there is no engine", "reference": "beta is 0"}
    unseen |= {"engine's prompts": "there is no engine", "cached prompts": "there is no engine"}
    none = {"engine_prompts": None, "engine_completions": None, "gap": None, "stale": None, "not_seen": unseen}
    assert judge(make_events(make_record(1, **none), make_record(2, **none))).result is Result.CLEAN


def test_a_complaint_in_one_step_is_a_finding():
    judged = judge(make_events(SOUND[0], make_record(2, stale=("lm_head.weight",))))
    assert judged.result is Result.FINDINGS
    assert judged.findings[0].why.startswith("step 2: the engine samples with other weights")


def test_stubbed_rewards_are_told():
    judged = judge(make_events(make_record(1, stubbed=True, own_rewards=((0.0, 0.0), (0.0, 0.0))), SOUND[1]))
    assert judged.result is Result.CLEAN
    row = find_row(judged, "spread of rewards")
    assert row.status == "stubbed"
    assert "in step 1" in row.why


@pytest.mark.parametrize(
    ("event", "row", "why"),
    [
        ({"kind": "refused", "text": "ValueError: 3 by 8", "processes": 1}, "configuration", "as it is written"),
        (PROMPTS | {"opened": False}, "answer's turn", "no prompt opens the answer's turn"),
        (PROMPTS | {"bos": 2}, "BOS", "2 BOS tokens"),
        (SAVED | {"differ": ["a"]}, "checkpoint", "1 tensors of checkpoint-2 aren't the trained ones"),
        (SAVED | {"missing": ["b"]}, "checkpoint", "aren't in it, the first is b"),
        (SAVED | {"compared": 0}, "checkpoint", "none of the trained tensors"),
        (SAVED | {"what": "saved model", "differ": ["a"]}, "saved model", "aren't the trained ones"),
        ({"kind": "resumed", "steps": 0, "compared": 3, "differ": [], "moments": 3}, "resume", "for no step"),
        (
            {"kind": "resumed", "steps": 1, "compared": 3, "differ": ["a"], "moments": 3},
            "resume",
            "aren't the checkpoi",
        ),
        ({"kind": "resumed", "steps": 1, "compared": 3, "differ": [], "moments": 0}, "resume", "without its moments"),
        (
            {"kind": "failed", "ours": False, "when": "in step 2", "places": ["r.py:3"], "text": "E"},
            "training",
            "r.py:3",
        ),
    ],
)
def test_events_of_the_run_are_findings(event, row, why):
    judged = judge([*make_events(*SOUND), event])
    assert why in find_row(judged, row).why
    assert judged.result is Result.FINDINGS


@pytest.mark.parametrize(
    ("room", "completion", "why"),
    [(80, 8, "1 prompts are as long as vllm_max_model_length 80, the first is row 2"), (95, 8, "leave less than")],
)
def test_prompts_that_do_not_fit_the_real_run(room, completion, why):
    written = [
        {"kind": "change", "key": "vllm_max_model_length", "old": room, "new": room, "why": ""},
        {"kind": "change", "key": "max_completion_length", "old": completion, "new": 4, "why": ""},
    ]
    assert why in find_row(judge([*make_events(*SOUND), *written, PROMPTS]), "prompt lengths").why


def test_a_template_of_ours_says_nothing_of_the_users():
    unread = {"kind": "no_template", "why": "the tokenizer of Qwen/Qwen2.5-7B can't be read here"}
    judged = judge([*make_events(*SOUND), unread, PROMPTS])
    assert judged.result is Result.PARTIAL
    assert find_row(judged, "answer's turn").why == unread["why"]


@pytest.mark.parametrize(
    "text",
    [
        "RuntimeError: 0 active drivers ([]). There should only be one.",
        "RuntimeError: Found no NVIDIA driver on your system.",
        "AssertionError: Torch not compiled with CUDA enabled",
    ],
)
def test_what_takes_a_gpu_says_nothing_of_the_run(text):
    ended = {"kind": "failed", "ours": False, "when": "in step 1", "places": ["driver.py:20"], "text": text}
    judged = judge([*make_events(*SOUND), ended])
    assert judged.result is Result.PARTIAL
    assert find_row(judged, "training").why.startswith("it takes a GPU, which isn't here: it ends in step 1")


def test_an_error_of_the_rehearsal_is_told():
    judged = judge([*make_events(*SOUND), {"kind": "observer", "where": "x", "trace": "Traceback\nKeyError: 'x'"}])
    assert "KeyError" in show.as_text("trl grpo", judged, [])


def test_the_text_has_table_tokens_and_one_sentence():
    text = show.as_text("trl grpo", judge(make_events(*SOUND)), ["3 s"])
    assert "completion 0, 2 tokens" in text
    assert text.splitlines()[-1] == "trl grpo: 2 steps of your trainer are sound in all that was rehearsed"


def test_the_document_has_the_same_result():
    judged = judge(make_events(SOUND[0], make_record(2, second_pass=0.01)))
    document = show.as_document("trl grpo", judged, {})
    assert document["result"] == "findings"
    assert [one["check"] for one in document["findings"]] == ["second pass"]
