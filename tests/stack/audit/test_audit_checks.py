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
    return "old_log_probs", 0, None


def other_ids(batch):
    batch["responses"][3, 7] += 1
    return "responses", 3, 7


def other_prompt(batch):
    batch["prompts"][5, 4] += 1
    return "prompts", 5, 4


def labels_for_ids(batch):
    for name, token in (("responses", 7), ("input_ids", 12)):
        batch[name][3, token] = -100
    return "input_ids", 3, 12


def mask_on_padding(batch):
    token, _ = audited.last(batch, 4)
    batch["response_mask"][4, token + 1] = 1
    return "response_mask", 4, token + 1


def empty_mask(batch):
    batch["response_mask"][6] = 0
    batch["token_level_scores"][6] = 0
    return "response_mask", 6, None


def reward_past_the_mask(batch):
    row = 2
    token, _ = audited.last(batch, row)
    batch["token_level_scores"][row] = batch["token_level_scores"][row].roll(1)
    return "token_level_scores", row, token + 1


def nan(batch):
    batch["old_log_probs"][1, 3] = float("nan")
    return "old_log_probs", 1, 3


def infinite_advantage(batch):
    batch["advantages"][7, 2] = float("inf")
    return "advantages", 7, 2


def probability(batch):
    batch["rollout_log_probs"][2, 5] = 0.9
    return "rollout_log_probs", 2, 5


def filled(batch):
    batch["rollout_log_probs"][5, 10:] = 0
    return "rollout_log_probs", 5, 10


def late(batch):
    batch["old_log_probs"][:, 1:] = batch["old_log_probs"][:, :-1].clone()
    return "old_log_probs", 0, 0


def early(batch):
    batch["old_log_probs"][:, :-1] = batch["old_log_probs"][:, 1:].clone()
    batch["old_log_probs"][batch["old_log_probs"] == 0] = -1
    return "old_log_probs", 0, 0


def end_cut_off(batch):
    token, whole = audited.last(batch, 2)
    for name in ("attention_mask", "input_ids"):
        batch[name][2, whole] = 0
    for name in ("response_mask", "responses", "old_log_probs", "rollout_log_probs", "advantages"):
        batch[name][2, token] = 0
    batch["token_level_scores"][2] = batch["token_level_scores"][2].roll(-1)
    return "responses", 2, token - 1


def end_not_trained(batch):
    token, _ = audited.last(batch, 2)
    batch["response_mask"][2, token] = 0
    batch["token_level_scores"][2] = batch["token_level_scores"][2].roll(-1)
    return "response_mask", 2, token


def positions_from_padding(batch):
    width = batch["input_ids"].shape[1]
    batch["position_ids"][:] = torch.arange(width)
    row = int((batch["attention_mask"][:, 0] == 0).nonzero()[0])
    return "position_ids", row, int(batch["attention_mask"][row].argmax())


def no_spread(batch):
    batch["token_level_scores"][4:] = (batch["token_level_scores"][4:] > 0).float()
    return "token_level_scores", 4, None


def same_sample(batch):
    for name in batch:
        if name != "token_level_scores":
            batch[name][3] = batch[name][1]
    return "responses", 3, None


BREAKS = {
    narrow: "lengths",
    other_ids: "ids",
    other_prompt: "ids",
    labels_for_ids: "ids",
    mask_on_padding: "mask",
    empty_mask: "mask",
    reward_past_the_mask: "reward",
    nan: "not-a-number",
    infinite_advantage: "not-a-number",
    probability: "log-probs",
    filled: "filled",
    late: "shifted",
    early: "shifted",
    end_cut_off: "end",
    end_not_trained: "end",
    positions_from_padding: "positions",
    no_spread: "group-spread",
    same_sample: "duplicate",
}


@pytest.mark.parametrize("break_it", BREAKS, ids=lambda one: one.__name__)
def test_each_break_gives_only_its_finding(good, break_it):
    batch, group = good
    column, row, token = break_it(batch)
    (finding,) = audit(batch, group)
    assert (finding.check, finding.column) == (BREAKS[break_it], column)
    assert (finding.places[0].row, finding.places[0].token) == (row, token)
    assert finding.what
    assert finding.instead
    assert audit(batch, group, skip=[finding.check]) == []


def test_every_check_has_a_break():
    assert {*BREAKS.values(), "group-size"} == {*CHECKS}


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
    batch["token_level_scores"][4:] = (batch["token_level_scores"][4:] > 0).float()
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


def sure_model(batch):
    """Exact zeros, as float32 has them of tokens that are all but certain."""
    for name in ("old_log_probs", "rollout_log_probs"):
        batch[name][:, 3:9] = 0


def sure_model_of_one_column(batch):
    sure_model(batch)
    del batch["old_log_probs"]


def equal_samples_of_a_sure_model(batch):
    same_sample(batch)
    for name in ("old_log_probs", "rollout_log_probs"):
        batch[name] /= 1000


def turns_of_tools(batch):
    """What tools and users said is attended to and not trained on."""
    for name in ("response_mask", "old_log_probs", "rollout_log_probs"):
        batch[name][:, 3:8] = 0


def mask_of_the_whole_row(batch):
    """verl's older multi-turn rollouts: loss_mask is as wide as input_ids."""
    batch["loss_mask"] = torch.cat([torch.zeros_like(batch["prompts"]), batch.pop("response_mask")], dim=1)


def positions_of_three_dimensions(batch):
    batch["position_ids"] = torch.zeros(8, 3, 29, dtype=torch.long)


def half_precision(batch):
    batch |= {name: value.bfloat16() for name, value in batch.items() if value.is_floating_point()}


@pytest.mark.parametrize(
    "change",
    [
        sure_model,
        sure_model_of_one_column,
        equal_samples_of_a_sure_model,
        turns_of_tools,
        mask_of_the_whole_row,
        positions_of_three_dimensions,
        half_precision,
    ],
    ids=lambda one: one.__name__,
)
def test_unusual_batches_have_no_finding(good, change):
    batch, group = good
    change(batch)
    assert audit(batch, group) == []


def test_accepts_the_tool_mask_of_trl(good):
    batch, _ = good
    tools = torch.ones_like(batch["response_mask"])
    tools[:, 3:8] = 0
    turns_of_tools(batch)
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


def narrower(value):
    return value[:, :-2]


def wider(value):
    return torch.cat([value, value[:, :3]], dim=1)


CHANGES = {
    "narrower": narrower,
    "wider": wider,
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
