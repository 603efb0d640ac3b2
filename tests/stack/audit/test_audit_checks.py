"""Each check of a batch: nothing is found in a good one, and each way to break it gives its finding, with the place."""

from __future__ import annotations

import contextlib
import math

import audited
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from pytest_rlregress.audit import BatchError, audit_batch  # noqa: E402
from pytest_rlregress.audit.group_checks import duplicates  # noqa: E402
from pytest_rlregress.audit.whole import CHECKS  # noqa: E402


def audit(batch, group=None, ends=(audited.END,), **options):
    return audit_batch(batch, group, ends, **options)


@pytest.fixture
def good():
    return audited.made()


def test_nothing_is_found_in_a_good_batch(good):
    batch, group = good
    assert audit(batch, group) == []
    assert audit(batch) == []  # rows of one prompt are a group
    assert audit(audited.as_trl(batch)) == []
    assert audit(audited.as_openrlhf(batch), group) == []
    assert audit(audited.as_openrlhf(batch)) == []
    assert audit(audited.as_openrlhf(batch, shifted=True)) == []


@settings(max_examples=60, deadline=None)
@given(
    groups=st.integers(1, 5),
    group=st.sampled_from([1, 2, 8]),
    prompt=st.integers(1, 6),
    response=st.integers(1, 40),
    seed=st.integers(0, 2**32),
)
def test_nothing_is_found_in_good_batches_of_any_shape(groups, group, prompt, response, seed):
    batch, names = audited.made(groups * group, prompt, response, group, seed)
    # Of samples as short as one token two of a prompt are equal by chance, which their log-probabilities say.
    for form in (batch, audited.as_trl(batch), audited.as_openrlhf(batch)):
        assert audit(form, names) == []


def test_audit_leaves_the_batch_unchanged(good):
    batch, group = good
    before = {name: value.clone() for name, value in batch.items()}
    audit(batch, group)
    assert batch.keys() == before.keys()
    assert all(torch.equal(batch[name], value) for name, value in before.items())


def narrow(batch):
    batch["old_log_probs"] = batch["old_log_probs"][:, :-1]


def mask_on_padding(batch):
    token, _ = audited.last(batch, 4)
    batch["response_mask"][4, token + 1] = 1
    return token + 1


def reward_past_the_mask(batch):
    token, _ = audited.last(batch, 2)
    batch["token_level_scores"][2] = batch["token_level_scores"][2].roll(1)
    return token + 1


def late(batch):
    batch["old_log_probs"][:, 1:] = batch["old_log_probs"][:, :-1].clone()


def early(batch):
    batch["old_log_probs"][:, :-1] = batch["old_log_probs"][:, 1:].clone()
    batch["old_log_probs"][batch["old_log_probs"] == 0] = -1


def end_cut_off(batch):
    token, whole = audited.last(batch, 2)
    for name in ("attention_mask", "input_ids"):
        batch[name][2, whole] = 0
    for name in ("response_mask", "responses", "old_log_probs", "rollout_log_probs", "advantages"):
        batch[name][2, token] = 0
    batch["token_level_scores"][2] = batch["token_level_scores"][2].roll(-1)
    return token - 1


def end_not_trained(batch):
    token, _ = audited.last(batch, 2)
    batch["response_mask"][2, token] = 0
    batch["token_level_scores"][2] = batch["token_level_scores"][2].roll(-1)
    return token


def positions_from_padding(batch):
    batch["position_ids"][:] = torch.arange(batch["input_ids"].shape[1])
    padded = int((batch["attention_mask"][:, 0] == 0).nonzero()[0])
    return int(batch["attention_mask"][padded].argmax())


def no_spread(batch):
    batch["token_level_scores"][4:] = (batch["token_level_scores"][4:] > 0).float()


def same_sample(batch):
    for name in batch:
        if name != "token_level_scores":
            batch[name][3] = batch[name][1]


def put(*places):
    """Write values at places of columns."""

    def change(batch):
        for column, place, value in places:
            batch[column][place] = value

    return change


THE_LAST = object()
#: What is changed, and the only finding: check, column, row, and token, which a function may return.
BREAKS = {
    "narrow column": (narrow, "lengths", "old_log_probs", 0, None),
    "another id": (put(("responses", (3, 7), 1)), "ids", "responses", 3, 7),
    "another prompt": (put(("prompts", (5, 4), 1)), "ids", "prompts", 5, 4),
    "labels": (put(("responses", (3, 7), -100), ("input_ids", (3, 12), -100)), "ids", "input_ids", 3, 12),
    "mask on padding": (mask_on_padding, "mask", "response_mask", 4, THE_LAST),
    "empty mask": (put(("response_mask", 6, 0), ("token_level_scores", 6, 0)), "mask", "response_mask", 6, None),
    "reward past the mask": (reward_past_the_mask, "reward", "token_level_scores", 2, THE_LAST),
    "NaN": (put(("old_log_probs", (1, 3), math.nan)), "not-a-number", "old_log_probs", 1, 3),
    "infinity": (put(("advantages", (7, 2), math.inf)), "not-a-number", "advantages", 7, 2),
    "probability": (put(("rollout_log_probs", (2, 5), 0.9)), "log-probs", "rollout_log_probs", 2, 5),
    "filled": (put(("rollout_log_probs", (5, slice(10, None)), 0)), "filled", "rollout_log_probs", 5, 10),
    "late": (late, "shifted", "old_log_probs", 0, 0),
    "early": (early, "shifted", "old_log_probs", 0, 0),
    "end cut off": (end_cut_off, "end", "responses", 2, THE_LAST),
    "end not trained": (end_not_trained, "end", "response_mask", 2, THE_LAST),
    "padding counted": (positions_from_padding, "positions", "position_ids", 0, THE_LAST),
    "no spread": (no_spread, "group-spread", "token_level_scores", 4, None),
    "same sample": (same_sample, "duplicate", "responses", 3, None),
}


@pytest.mark.parametrize("name", BREAKS)
def test_each_break_gives_only_its_finding(good, name):
    batch, group = good
    change, check, column, row, token = BREAKS[name]
    last = change(batch)
    (finding,) = audit(batch, group)
    assert (finding.check, finding.column) == (check, column)
    assert (finding.places[0].row, finding.places[0].token) == (row, last if token is THE_LAST else token)
    assert finding.what
    assert finding.instead
    assert audit(batch, group, skip=[check]) == []


def test_every_check_has_a_break():
    assert {check for _, check, *_ in BREAKS.values()} | {"group-size"} == {*CHECKS}


def test_finds_a_group_of_another_size(good):
    batch, group = good
    (finding,) = audit({name: value[:-1] for name, value in batch.items()}, group[:-1])
    assert (finding.check, finding.column) == ("group-size", "uid")
    assert finding.places[0].row == 4
    assert "has 3" in finding.places[0].text


@pytest.mark.parametrize("prompt", [1, 2, 5])
@pytest.mark.parametrize("form", [dict, audited.as_trl, audited.as_openrlhf, lambda b: audited.as_openrlhf(b, True)])
def test_rows_of_one_prompt_are_a_group(form, prompt):
    batch, _ = audited.made(prompt=prompt)
    no_spread(batch)
    same_sample(batch)
    found = [(one.check, one.places[0].row) for one in audit(form(batch))]
    assert found == [("group-spread", 4), ("duplicate", 3)]


def test_nan_log_probabilities_are_not_duplicates():
    assert duplicates({"a": [0, 1]}, ["same", "same"], [1, 1], [math.nan, math.nan]) == []
    assert duplicates({"a": [0, 1]}, ["same", "same"], [99, 99], [math.nan, math.nan])  # as without them


def test_rows_without_groups_are_not_compared_as_groups(good):
    batch, _ = good
    batch["token_level_scores"][:] = (batch["token_level_scores"] > 0).float()
    batch["responses"][3] = batch["responses"][1]
    assert [one.check for one in audit(batch, list(range(8)))] == ["ids"]


def test_a_break_in_every_row_is_one_finding_that_counts(good):
    batch, group = good
    batch["rollout_log_probs"][:, 4:6] = float("-inf")
    findings = audit(batch, group)
    (finding,) = [one for one in findings if one.check == "not-a-number"]
    assert (finding.rows, finding.tokens, len(finding.places)) == (8, 16, 5)
    assert finding.places[0].text == "-inf"


def test_finds_log_probabilities_of_other_rows(good):
    batch, group = good
    batch["old_log_probs"] = batch["old_log_probs"].roll(3, dims=0).clamp(max=-0.02)
    (finding,) = audit(batch, group)
    assert finding.check == "shifted"
    assert "not of the same tokens" in finding.what


def test_a_whole_response_of_zeros_needs_no_second_column(good):
    batch, group = good
    del batch["old_log_probs"]
    batch["rollout_log_probs"][2] = 0
    (finding,) = audit(batch, group)
    assert (finding.check, finding.places[0].row) == ("filled", 2)


def equal_samples_of_a_sure_model(batch):
    same_sample(batch)
    for name in ("old_log_probs", "rollout_log_probs"):
        batch[name] /= 1000


def mask_of_the_whole_row(batch):
    batch["loss_mask"] = torch.cat([torch.zeros_like(batch["prompts"]), batch.pop("response_mask")], dim=1)


TOOLS = [(name, (slice(None), slice(3, 8)), 0) for name in ("response_mask", "old_log_probs", "rollout_log_probs")]
UNUSUAL = {
    # Exact zeros, as float32 has them of tokens that are all but certain.
    "sure model": put(*[(name, (slice(None), slice(3, 9)), 0) for name in ("old_log_probs", "rollout_log_probs")]),
    "sure model, one column": lambda batch: (UNUSUAL["sure model"](batch), batch.pop("old_log_probs")),
    "equal samples of a sure model": equal_samples_of_a_sure_model,
    "turns of tools": put(*TOOLS),  # attended to and not trained on
    "mask of the whole row": mask_of_the_whole_row,  # verl's older multi-turn rollouts
    "positions of three dimensions": lambda batch: batch.update(position_ids=torch.zeros(8, 3, 29, dtype=torch.long)),
    "half precision": lambda batch: batch.update(
        {name: value.bfloat16() for name, value in batch.items() if value.is_floating_point()}
    ),
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_unusual_batches_have_no_finding(good, name):
    batch, group = good
    UNUSUAL[name](batch)
    assert audit(batch, group) == []


def test_accepts_the_tool_mask_of_trl(good):
    batch, _ = good
    tools = torch.ones_like(batch["response_mask"])
    tools[:, 3:8] = 0
    put(*TOOLS)(batch)
    assert audit(audited.as_trl(batch) | {"tool_mask": tools}) == []


def test_rewards_of_rows_have_no_token(good):
    batch, _ = good
    batch = audited.as_trl(batch)
    batch["rewards"][:4] = 1.0
    (finding,) = audit(batch)
    assert (finding.check, finding.column, finding.places[0].row) == ("group-spread", "rewards", 0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"response_mask": None},
            ["no response_mask", "what is trained on", "action_mask", "--map response_mask=COLUMN"],
        ),
        ({"attention_mask": None}, ["no attention_mask", "what is padding"]),
        ({"responses": torch.zeros(7, 24, dtype=torch.long)}, ["differ in rows", "responses has 7", "has 8"]),
        ({"old_log_probs": torch.zeros(8, 24, 2)}, ["old_log_probs", "(8, 24, 2)", "2 dimensions", "rows and tokens"]),
        ({"input_ids": torch.zeros(8, 29)}, ["input_ids", "float32", "whole numbers"]),
    ],
)
def test_says_why_a_batch_cannot_be_checked(good, change, words):
    batch, group = good
    batch = {name: value for name, value in (batch | change).items() if value is not None}
    with pytest.raises(BatchError) as error:
        audit(batch, group)
    for word in words:
        assert word in str(error.value)


CHANGES = {
    "narrower": lambda value: value[:, :-2],
    "wider": lambda value: torch.cat([value, value[:, :3]], dim=1),
    "empty": lambda value: value[:, :0],
    "of rows": lambda value: value[:, 0],
    "three": lambda value: value[..., None].expand(*value.shape, 3),
    "float": lambda value: value.float(),
    "small": lambda value: value.to(torch.int16),
    "unsigned": lambda value: value.int().abs().to(torch.uint16),
    "bool": lambda value: value.bool(),
    "half": lambda value: value.half(),
    "negative": lambda value: -value.long(),
    "large": lambda value: value * 1e30 if value.is_floating_point() else value * 2**40,
    "nan": lambda value: torch.full(value.shape, float("nan")),
}


@pytest.mark.parametrize("change", ["narrower", "wider", "empty", "three", "nan"])
def test_finds_a_column_of_the_wrong_shape(change):
    unseen = []
    for column in audited.made(response=9)[0]:
        batch, group = audited.made(response=9)
        batch[column] = CHANGES[change](batch[column])
        with contextlib.suppress(BatchError):
            unseen += [] if audit(batch, group) else [column]
    assert unseen == []


@settings(max_examples=300, deadline=None)
@given(data=st.data(), form=st.sampled_from([dict, audited.as_trl, audited.as_openrlhf]))
def test_any_changed_column_gives_findings_or_a_reason(data, form):
    batch, group = audited.made(response=9)
    batch = form(batch)
    for column in data.draw(st.lists(st.sampled_from(sorted(batch)), max_size=3, unique=True)):
        change = data.draw(st.sampled_from([*CHANGES, "missing"]))
        if change == "missing":
            del batch[column]
        elif batch[column].dim() == 2:
            batch[column] = CHANGES[change](batch[column])
    with contextlib.suppress(BatchError):
        assert all(one.rows and one.what and one.check in CHECKS for one in audit(batch, group))


def test_accepts_custom_column_names(good):
    batch, group = good
    batch["mine"] = batch.pop("response_mask")
    assert audit(batch, group, mapped={"response_mask": "mine"}) == []
    batch["mine"][6] = 0
    assert {one.column for one in audit(batch, group, mapped={"response_mask": "mine"})} > {"mine"}
    with pytest.raises(BatchError, match=r"no column other\. It has advantages, attention_mask"):
        audit(batch, group, mapped={"response_mask": "other"})
    with pytest.raises(BatchError, match=r"mask isn't a known name\. Known: input_ids"):
        audit(batch, group, mapped={"mask": "mine"})


def test_rejects_an_unknown_check(good):
    with pytest.raises(ValueError, match="no check rewards; there are lengths"):
        audit(*good, skip=["rewards"])
