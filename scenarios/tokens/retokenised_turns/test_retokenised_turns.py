from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_rlregress.agreement import logprobs
from pytest_rlregress.failures.act import act
from pytest_rlregress.failures.silent import silent
from pytest_rlregress.fixtures.drawn import EXAMPLES
from pytest_rlregress.scenarios.batch.masks import LAYOUTS, conversation, conversations, documented
from pytest_rlregress.scenarios.tokens.turns import one_thread, rendered
from pytest_rlregress.stack.lazy import torch

EVERY_TEMPLATE = pytest.mark.parametrize("template", LAYOUTS)
PROMPT, [ANSWER, QUESTION] = conversation("", "How much is 2 + 2?", "four", "And 3 + 3?")
TURNS, TOKENS = 16, 8


def sampled_turns(model, tokenizer, prompt_ids):
    """Ids that the policy samples at temperature 1, padding and end of the turn taken off."""
    torch.manual_seed(0)
    prompts = torch.tensor([prompt_ids] * TURNS)
    sampled = model.generate(
        prompts, attention_mask=torch.ones_like(prompts), do_sample=True, top_k=0, max_new_tokens=TOKENS,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    ends = {tokenizer.eos_token_id, tokenizer.pad_token_id}
    return [[token for token in row if token not in ends] for row in sampled[:, len(prompt_ids) :].tolist()]


def in_pieces(tokenizer, text, cuts):
    """Ids of a text as a policy may spell it: the pieces between the cuts, each encoded by itself."""
    borders = [0, *sorted(cut for cut in cuts if 0 < cut < len(text)), len(text)]
    pieces = [text[begin:end] for begin, end in pairwise(borders)]
    return [token for piece in pieces for token in tokenizer.encode(piece, add_special_tokens=False)]


@pytest.mark.reproduces("retokenised-turns")
def test_trainer_encodes_the_text(sharp_qwen):
    model, tokenizer = sharp_qwen.model(), sharp_qwen.tokenizer()
    prompt_ids = rendered(tokenizer, PROMPT)

    def total(rows):
        """Of each turn the log-probability, in nats."""
        of_tokens = logprobs.token_logprobs(model, [prompt_ids + row for row in rows])
        return [sum(row[len(prompt_ids) - 1 :]) for row in of_tokens]

    with act(), one_thread():
        turns = [turn for turn in sampled_turns(model, tokenizer, prompt_ids) if turn]
        again = [tokenizer.encode(tokenizer.decode(turn), add_special_tokens=False) for turn in turns]
        totals = zip(total(turns), total(again), strict=True)
    changed = sum(one != other for one, other in zip(turns, again, strict=True))
    off = sum(abs(one - other) for one, other in totals) / len(turns)
    if changed != 0:
        silent(
            f"{changed} of {len(turns)} sampled turns are other ids when encoded again, "
            f"their log-probabilities {off:.1f} nats off"
        )


@EVERY_TEMPLATE
@pytest.mark.reproduces("retokenised-turns")
def test_next_prompt_is_rendered(tiny_qwen, template):
    tokenizer = tiny_qwen.tokenizer(template)
    said = [*in_pieces(tokenizer, ANSWER["content"], range(4)), tokenizer.eos_token_id]
    with act():
        prompt_ids = rendered(tokenizer, [*PROMPT, {**ANSWER, "content": tokenizer.decode(said[:-1])}, QUESTION])
    there = any(prompt_ids[begin : begin + len(said)] == said for begin in range(len(prompt_ids)))
    if not there:
        silent(f"the next turn's prompt has other ids for what was sampled, {said[:-1]}")


@EVERY_TEMPLATE
@pytest.mark.guards("retokenised-turns")
@given(messages=conversations(), cuts=st.lists(st.integers(1, 30), max_size=8))
@settings(EXAMPLES, max_examples=40)
def test_sampled_ids_stay(tiny_qwen, subject, template, messages, cuts):
    """Whatever the split: the ids of each turn's prompt begin with those before, and read as the family documents."""
    tokenizer, (prompt, completion) = tiny_qwen.tokenizer(template), messages
    ids, added = rendered(tokenizer, prompt), []
    with act():
        for turn, message in enumerate(completion):
            if message["role"] != "assistant":
                added.append(message)
                continue
            if added:
                before, so_far = list(ids), [*prompt, *completion[: turn - len(added)]]
                ids = subject(tokenizer, before, so_far, added)
                assert ids[: len(before)] == before, "ids of earlier turns became others"
                added = []
            ids = [*ids, *in_pieces(tokenizer, message["content"], cuts), tokenizer.eos_token_id]
    text, pieces = documented(template, prompt, completion)
    assert tokenizer.decode(ids) == text + "".join(piece for piece, _ in pieces)


@EVERY_TEMPLATE
@pytest.mark.guards("retokenised-turns")
def test_cut_turn_gets_its_end(tiny_qwen, subject, template):
    """It gets the token that ends it, once, and the caller's list stays as it is."""
    tokenizer = tiny_qwen.tokenizer(template)
    cut = [*rendered(tokenizer, PROMPT), *tokenizer.encode("fou")]
    before = list(cut)
    with act():
        wanted = subject(tokenizer, [*cut, tokenizer.eos_token_id], [*PROMPT, ANSWER], [QUESTION])
    assert subject(tokenizer, cut, [*PROMPT, ANSWER], [QUESTION]) == wanted
    assert wanted[: len(cut) + 1] == [*before, tokenizer.eos_token_id]
    assert cut == before
