from itertools import pairwise

import pytest

from pytest_rlregress.agreement import logprobs
from pytest_rlregress.failures.act import act
from pytest_rlregress.failures.silent import silent
from pytest_rlregress.remedies import next_prompt
from pytest_rlregress.scenarios.tokens.turns import behind, one_thread, rendered, whole

FAMILIES = ["qwen3", "deepseek-r1-distill"]
OPENED = {"deepseek-r1-distill": "<think>\n"}  # by the generation prompt, so that it is not sampled
QUESTIONS = ["How much is 2 + 2?", "And 4 + 4?", "Half of that?"]
SAID = [
    "<think>\nTwo and two.\n</think>\n\nIt is 4.",
    "<think>\nTwice as much.\n</think>\n\nIt is 8.",
    "<think>\nHalf of 8 is 4.\n</think>\n\nIt is 4.",
]
MESSAGES = [
    {"role": role, "content": text}
    for turn in zip(QUESTIONS, SAID, strict=True)
    for role, text in zip(("user", "assistant"), turn, strict=True)
]


def tokenizer_of(tiny_qwen, family):
    if family != "qwen3":
        return tiny_qwen.tokenizer(family)
    from trl.chat_template_utils import qwen3_chat_template  # Qwen 3's own, by which TRL knows the family

    tokenizer = tiny_qwen.tokenizer("qwen2.5")
    tokenizer.chat_template = qwen3_chat_template
    return tokenizer


def sampled(tokenizer, family):
    """Of each turn, the ids that the policy samples."""
    texts = [text.removeprefix(OPENED.get(family, "")) for text in SAID]
    return [[*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id] for text in texts]


def appended(tokenizer, family):
    """The turns of a rollout that appends to its ids: of each the prompt and what was sampled."""
    turns = []
    for number, ids in enumerate(sampled(tokenizer, family)):
        so_far, question = MESSAGES[: 2 * number], MESSAGES[2 * number : 2 * number + 1]
        before = whole(turns[-1]) if turns else None
        prompt = next_prompt(tokenizer, before, so_far, question) if before else rendered(tokenizer, question)
        turns.append((prompt, ids))
    return turns


def rendered_anew(tokenizer, family):
    """The turns of a rollout that asks a chat server: each prompt is rendered from the messages so far."""
    prompts = [rendered(tokenizer, MESSAGES[: 2 * number + 1]) for number in range(len(SAID))]
    return list(zip(prompts, sampled(tokenizer, family), strict=True))


@pytest.mark.reproduces("history-reasoning-stripped")
@pytest.mark.parametrize("family", FAMILIES)
def test_rendered_for_training(tiny_qwen, family):
    tokenizer = tokenizer_of(tiny_qwen, family)
    with act():
        trained = tokenizer.apply_chat_template(MESSAGES, tokenize=False)
    lost = [ids for ids in sampled(tokenizer, family) if tokenizer.decode(ids) not in trained]
    if lost:
        silent(f"{len(lost)} of {len(SAID)} turns are not in the text trained on as they were sampled")


@pytest.mark.reproduces("history-reasoning-stripped")
@pytest.mark.parametrize("family", FAMILIES)
def test_last_turn_behind_another_history(sharp_qwen, family):
    """The rollout kept its ids, the trainer renders the messages: of the last turn it has the answer, behind less."""
    model, tokenizer = sharp_qwen.model(), tokenizer_of(sharp_qwen, family)
    row = whole(appended(tokenizer, family)[-1])
    with act():
        trained = rendered(tokenizer, MESSAGES, add_generation_prompt=False)
    trained = trained[: len(trained) - trained[::-1].index(tokenizer.eos_token_id)]
    answer = len(tokenizer.encode("It is 4.")) + 1
    with one_thread():
        then, now = (logprobs.token_logprobs(model, [ids])[0][-answer:] for ids in (row, trained))
        floor = logprobs.floor(model, [row])
    off = logprobs.mean_gap([then], [now])
    if not off <= 4 * floor:
        silent(f"the answer is {off:.2f} nats a token from what it was as the policy sampled it")


def check_rows(turns, rows):
    wanted = [pair for turn in turns for pair in behind(turn)]
    found = [pair for row in rows for pair in behind((row.prompt_ids, row.completion_ids), row.completion_mask)]
    assert found == wanted, "not each sampled token once, behind the tokens that it was sampled behind"
    breaks = sum(later[: len(whole(turn))] != whole(turn) for turn, (later, _) in pairwise(turns))
    assert len(rows) == (1 + breaks if turns else 0), "more rows than the prompts ask for"
    assert all(set(row.completion_mask) <= {0, 1} for row in rows)


@pytest.mark.guards("history-reasoning-stripped")
@pytest.mark.needs("trl")
@pytest.mark.parametrize("rollout", [appended, rendered_anew])
@pytest.mark.parametrize("family", [*FAMILIES, "qwen2.5"])
def test_every_turn_is_trained_on(tiny_qwen, subject, family, rollout):
    turns = rollout(tokenizer_of(tiny_qwen, family), family)
    with act():
        check_rows(turns, subject(turns))
