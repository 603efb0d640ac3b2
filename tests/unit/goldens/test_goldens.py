"""Goldens: what is told of numbers that are not as recorded, and which file is whose."""

from __future__ import annotations

import copy
import json
import math
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_goldens import GOLDEN, KEY, OTHERS, RECORDED, SETTINGS, STEP, STEPS, VARIANTS, but, keep, run

from pytest_rlregress.fixtures.step_measurements import NUMBERS
from pytest_rlregress.goldens.comparison import FACTOR, compare, tolerances
from pytest_rlregress.goldens.golden import GoldenError, find, find_nearest, read
from pytest_rlregress.hardware.profiles import SHIPPED
from pytest_rlregress.records.measurements import numbers_of

with_ = msgspec.structs.replace


def told(*runs, golden=GOLDEN, settings=SETTINGS):
    return compare(golden, settings, runs or RECORDED)


def test_tolerances_come_from_differences_between_repeats():
    same, other = GOLDEN.tolerances["same"], GOLDEN.tolerances["other"]
    assert same == {name: pytest.approx({"max": FACTOR * 0.01, "drift": FACTOR * 0.001}) for name in NUMBERS}
    assert other == {name: pytest.approx({"max": FACTOR * 1.0, "drift": FACTOR * 0.1}) for name in NUMBERS}


def test_recorded_run_agrees_with_itself():
    found = told()
    assert (found.differences, found.notes, found.used) == ((), (), {"max": 0.0, "drift": 0.0})


def having(number, step, value, level=0):
    runs = copy.deepcopy(RECORDED)
    runs[level][number][step - 1] = value
    return runs


SHORT = {name: RECORDED[0][name][:5] for name in (*NUMBERS, "sampled")}


@pytest.mark.parametrize(
    ("runs", "lines"),
    [
        (
            having("loss", 4, 4.05),
            [
                "token: loss of step 4 is 4.05, the golden's 4: |Δ| 0.05, tolerance 0.04",
                "token: loss drifts: mean Δ +0.0083, tolerance 0.004",
            ],
        ),
        (but(up=0.03), [f"token: {n} drifts: mean Δ +0.03, tolerance 0.004" for n in NUMBERS]),
        (but(up=-0.005), [f"token: {n} drifts: mean Δ -0.005, tolerance 0.004" for n in NUMBERS]),
        (
            having("grad_norm", 6, None, 1),
            ["sequence: grad_norm of step 6 is not finite, the golden's 6: |Δ| inf, tolerance 0.04"],
        ),
        (but(steps=5, **SHORT), ["token: 5 steps, the golden has 6"]),
        ([RECORDED[0]], ["sequence: was not measured"]),
        ([*RECORDED, run("word")], ["word: there is none in the golden"]),
        (but(off=3.0), [f"token: {n} of step 1 is 4, the golden's 1: |Δ| 3, tolerance 0.04" for n in NUMBERS]),
        (
            but(tokens="ghijkl", off=5.0),
            [f"token: {n} of step 1 is 6, the golden's 1: |Δ| 5, tolerance 4" for n in NUMBERS],
        ),
        (but(tokens="ghijkl", up=0.5), [f"token: {n} drifts: mean Δ +0.5, tolerance 0.4" for n in NUMBERS]),
    ],
    ids=["outlier", "drift", "down", "not-finite", "step-less", "level-less", "level-more", "all", "tokens", "drift-2"],
)
def test_reports_each_difference(runs, lines):
    assert list(told(*runs).differences) == lines


def test_numbers_may_differ_more_once_other_tokens_are_drawn():
    numbers = {name: [1, 2, 3.01, 4 - 3, 5 + 3, 6] for name in NUMBERS}
    found = told(*but(tokens="abcxyz", **numbers))
    assert found.differences == ()
    assert found.notes == ("token: in step 4 or after it other tokens were drawn; it is compared as such",)
    assert found.used["max"] == pytest.approx(0.75)
    early = told(*but(tokens="abcxyz", **{**numbers, "loss": [1, 2, 3.1, 1, 8, 6]}))
    assert early.differences[0].startswith("token: loss of step 3 is 3.1, the golden's 3: |Δ| 0.1, tolerance")


def test_rounding_in_a_coarse_dtype_may_draw_other_tokens():
    """Every perturbed run did: how far numbers go with the same tokens is not known, and nothing narrow is made up."""
    coarse = [run(variant, tokens="uvwxyz", off=0.5, up=0.2) for variant in VARIANTS]
    limits = tolerances(RECORDED, RECORDED, coarse, OTHERS)
    assert list(limits) == ["other"]
    golden = with_(GOLDEN, tolerances=limits)
    assert told(*but(off=3.0), golden=golden).differences == ()
    assert told(*but(off=5.0), golden=golden).differences != ()


@given(st.lists(st.tuples(st.sampled_from(VARIANTS), *[st.floats(-0.1, 0.1)] * 2), min_size=1, max_size=4))
@settings(max_examples=40, deadline=None)
def test_golden_accepts_the_runs_it_was_measured_from(drawn):
    perturbed = [run(variant, off=off, up=up) for variant, off, up in drawn]
    golden = with_(GOLDEN, tolerances=tolerances(RECORDED, RECORDED, perturbed, OTHERS))
    for one in perturbed:
        pair = [one if one["variant"] == variant else run(variant) for variant in VARIANTS]
        found = told(*pair, golden=golden)
        assert found.differences == ()
        assert max(found.used.values()) <= 1 / FACTOR * (1 + 1e-9)


def test_ignores_speed_and_memory():
    assert told(*but(step_seconds=[0.9] * STEPS, host_memory_bytes=10**8)).differences == ()


@pytest.mark.parametrize("now", [{"learning_rate": 1e-3, "dtype": "bfloat16"}, {**SETTINGS, "epochs": 2}, {}])
def test_step_with_other_settings_is_not_compared(now):
    [line] = told(settings=now).differences
    assert "a step with other settings" in line
    assert "learning_rate 0.002 -> 0.001" in line or len(now) != 2
    assert "learning_rate 0.002 -> none" in line or now


@pytest.mark.parametrize(
    ("now", "said"), [(3.0, "is 3, the golden's not finite"), (None, "is not finite, the golden's not finite")]
)
def test_reports_a_value_that_is_not_finite(now, said):
    golden = with_(GOLDEN, runs=tuple(having("loss", 3, None)))
    [line] = told(*having("loss", 3, now), golden=golden).differences
    assert said in line


# -- the file ------------------------------------------------------------------------------------------------------


def test_finds_a_golden_by_its_exact_key(tmp_path):
    assert find(tmp_path, STEP, KEY) is None
    path = keep(tmp_path)
    assert path.name == "miniature-step_nvidia-h100-80gb-hbm3_torch-2.13_vllm-0.31_flash-attn-3_bfloat16.json"
    assert compare(find(tmp_path, STEP, KEY), SETTINGS, RECORDED).differences == ()
    others = [
        replace(KEY, device="NVIDIA H100 PCIe"),
        replace(KEY, torch="2.12"),
        replace(KEY, engine="vllm 0.30"),
        replace(KEY, attention="FLASH_ATTN 2"),
        replace(KEY, dtype="float32"),
    ]
    assert [find(tmp_path, STEP, other) for other in others] == [None] * 5
    assert [find_nearest(tmp_path, STEP, other) for other in others] == [None, *[KEY] * 4]


def test_the_nearest_has_most_in_common(tmp_path):
    keep(tmp_path, with_(GOLDEN, key=replace(KEY, torch="2.12", engine="vllm 0.30")))
    near = replace(KEY, torch="2.12")
    keep(tmp_path, with_(GOLDEN, key=near))
    (tmp_path / "broken.json").write_text("{")
    assert find_nearest(tmp_path, STEP, KEY) == near


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda path: path.write_text(path.read_text()[:-9]), "isn't a golden that this release reads"),
        (lambda path: path.write_text('{"format": 1, "key": {}}'), "isn't a golden"),
        (lambda path: path.write_text('["format"]'), "isn't a golden"),
        (lambda path: path.write_bytes(b"\xff"), "isn't a golden"),
        (
            lambda path: path.write_text(json.dumps({**msgspec.to_builtins(GOLDEN), "format": 2})),
            "Invalid enum value 2 .*upgrade this package",
        ),
        (
            lambda path: keep(path.parent, with_(GOLDEN, key=replace(KEY, torch="2.12")), path.name),
            "of miniature-step, NVIDIA .* torch 2.12",
        ),
        (lambda path: keep(path.parent, with_(GOLDEN, key=replace(KEY, attention="Flash-Attn 3"))), "Flash-Attn 3"),
    ],
    ids=["cut-off", "foreign", "list", "bytes", "newer", "renamed", "same-name"],
)
def test_rejects_a_damaged_or_foreign_golden(tmp_path, spoil, message):
    spoil(keep(tmp_path))
    with pytest.raises(GoldenError, match=message):
        find(tmp_path, STEP, KEY)


def shipped():
    return sorted((SHIPPED / "goldens").glob("*.json"))


@pytest.mark.parametrize("path", shipped(), ids=lambda path: path.stem)
def test_the_shipped_goldens_can_be_read(path):
    golden = read(path)
    assert golden.file == path.name
    assert golden.step != STEP or {run["variant"] for run in golden.runs} == {"token", "sequence", "token, random"}
    assert {run["step"] for run in golden.runs} == {golden.step}
    assert golden.origin.keys() >= {"date", "commit", "driver", "versions"}


@pytest.mark.parametrize("path", shipped(), ids=lambda path: path.stem)
def test_the_limits_of_shipped_goldens_limit(path):
    """A limit that another rollout meets proves nothing: what engine and trainer differ by is always as small."""
    golden = read(path)
    same, other = golden.tolerances["same"], golden.tolerances["other"]
    assert set(same) == set(other) == set(numbers_of(golden.runs[0]))
    for number in set(same) - {"reward"}:
        largest = max(abs(value) for run in golden.runs for value in run[number])
        for kind in ("max", "drift"):
            near, far = same[number][kind], other[number][kind]
            assert 0 < near < math.inf
            assert 0 < far < math.inf
            if "agreement" in number:
                assert max(near, far) < 1e-6, "the step itself allows 1e-5"
            else:
                assert near < far / 100
                assert far < 2 * FACTOR * largest


@pytest.mark.parametrize("path", shipped(), ids=lambda path: path.stem)
def test_shipped_goldens_reject_another_number(path):
    golden = read(path)
    assert compare(golden, golden.settings, golden.runs).differences == ()
    for which, run_ in enumerate(golden.runs):
        for number in numbers_of(run_):
            runs = copy.deepcopy(list(golden.runs))
            runs[which][number][-1] += 1.01 * golden.tolerances["same"][number]["max"] + 1e-9
            assert number in " ".join(compare(golden, golden.settings, runs).differences)
