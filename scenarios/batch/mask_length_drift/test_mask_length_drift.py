import csv
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_rlregress.failures.act import act
from pytest_rlregress.failures.silent import silent
from pytest_rlregress.fixtures.drawn import EXAMPLES
from pytest_rlregress.scenarios.batch.masks import (
    LAYOUTS,
    check_masked,
    conversation,
    conversations,
    loss_function,
    per_token_loss,
)
from pytest_rlregress.stack.lazy import torch

LLAMA_HEADER = 4  # <|start_header_id|> assistant <|end_header_id|> \n\n
LIMIT = 1024
PROMPT, _ = conversation("You are a helpful assistant.", "What is 48 divided by 6, plus 10?")
RECORDED = [
    # chat template, tokens of ids, tokens of mask, whether the turn was ended by its end-of-turn token. At the limit it
    # was not; nor, taken from its drift of one, in sample 5, whose end nobody noted down.
    (
        {"llama": "llama3"}.get(row["chat_template"], row["chat_template"]),
        int(row["completion_ids_len"]),
        int(row["completion_mask_len"]),
        int(row["completion_ids_len"]) < LIMIT
        and (row["chat_template"], row["sample"]) != ("deepseek-r1-distill", "5"),
    )
    for row in csv.DictReader(
        Path(__file__).with_name("mask_length_drift.csv").read_text(encoding="utf-8").splitlines()
    )
]
COMPILED = pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])


def ids_and_mask_apart(tokenizer, generated, limit):
    """The failing act: a mask for the whole sequence by Llama's header, and then only the ids are sliced.

    What sliced them is not on record. Dropping the padding is one way that gives all sixteen recorded pairs of
    lengths: on R1-distill the padding token is the end-of-turn token, on Llama it is not.
    """

    def encode(add_generation_prompt):
        text = tokenizer.apply_chat_template(PROMPT, tokenize=False, add_generation_prompt=add_generation_prompt)
        return tokenizer.encode(text, add_special_tokens=False)

    prompt_ids = encode(True)
    mask = [0] * (len(encode(False)) + LLAMA_HEADER) + [1] * len(generated)
    completion_ids = [token for token in generated if token != tokenizer.pad_token_id][:limit]
    return prompt_ids, completion_ids, mask[len(prompt_ids) :]


def losses_of(tiny_qwen, pairs, *loss_functions):
    """Of each pair of ids and mask, the tokens' losses and what each function makes of them."""
    model = tiny_qwen.model()
    for prompt_ids, completion_ids, mask in pairs:
        with torch.no_grad():
            losses = per_token_loss(model, prompt_ids, completion_ids)
        yield losses[0].tolist(), [loss(losses, torch.tensor([mask])).item() for loss in loss_functions]


@pytest.mark.reproduces("mask-length-drift", fidelity="stand-in")
@COMPILED
def test_recorded_lengths(tiny_qwen, compiled):
    pairs = []
    for template, ids_length, mask_length, ended in RECORDED:
        tokenizer = tiny_qwen.tokenizer(template)
        end = [tokenizer.eos_token_id] * ended
        kept = [token for token in end if token != tokenizer.pad_token_id]
        generated = tokenizer.encode(" the") * (ids_length - len(kept)) + end
        prompt_ids, completion_ids, mask = ids_and_mask_apart(tokenizer, generated, LIMIT)
        assert (len(completion_ids), len(mask)) == (ids_length, mask_length), f"not as recorded for {template}"
        pairs.append((prompt_ids, completion_ids, mask))
    with act():
        list(losses_of(tiny_qwen, pairs, loss_function(compiled)))


@pytest.mark.reproduces("mask-length-drift", fidelity="stand-in")
@COMPILED
@pytest.mark.parametrize(
    ("template", "limit"),
    [("deepseek-r1-distill", LIMIT), ("qwen2.5", LIMIT), ("llama3", 5)],
    ids=["r1-distill-header", "qwen-header", "llama-at-the-limit"],
)
def test_ids_and_mask_made_apart(tiny_qwen, template, limit, compiled):
    tokenizer = tiny_qwen.tokenizer(template)
    generated = [*tokenizer.encode("First 48 / 6 = 8, then 8 + 10 = 18."), tokenizer.eos_token_id]
    with act():
        list(losses_of(tiny_qwen, [ids_and_mask_apart(tokenizer, generated, limit)], loss_function(compiled)))


@pytest.mark.reproduces("mask-length-drift", fidelity="stand-in")
def test_one_token_broadcasts(tiny_qwen):
    tokenizer = tiny_qwen.tokenizer("qwen2.5")
    pair = ids_and_mask_apart(tokenizer, [tokenizer.eos_token_id], LIMIT)
    with act():
        [(losses, _)] = losses_of(tiny_qwen, [pair], loss_function(compiled=False))
    if len(losses) != len(pair[2]):
        silent(f"a completion of {len(losses)} token has a mask of {len(pair[2])}")


@pytest.mark.guards("mask-length-drift")
@pytest.mark.parametrize("template", LAYOUTS)
@given(messages=conversations(), limits=st.tuples(st.integers(1, 80), st.integers(1, 120)))
@settings(EXAMPLES, max_examples=50)
def test_mask_covers_what_the_policy_wrote(tiny_qwen, subject, template, messages, limits):
    with act():
        check_masked(subject, tiny_qwen.tokenizer(template), template, *messages, *limits)


@pytest.mark.guards("mask-length-drift")
def test_loss_of_recorded_lengths(tiny_qwen, subject):
    samples = [
        (template, conversation("Be brief.", "Go on.", " the" * (length - ended)), length)
        for template, length, _, ended in RECORDED
    ]
    samples += [
        (template, conversation("", "1 + 1?", "</think>search", ["two", "2"], "It is 2.", "Sure?", "Yes."), LIMIT)
        for template in LAYOUTS
    ]
    with act():
        masked = [
            check_masked(subject, tiny_qwen.tokenizer(template), template, *messages, LIMIT, length)
            for template, messages, length in samples
        ]
    assert [len(one.completion_mask) for one in masked[: len(RECORDED)]] == [row[1] for row in RECORDED]
    pairs = [(one.prompt_ids, one.completion_ids, one.completion_mask) for one in masked]
    both = [loss_function(compiled=False), loss_function(compiled=True)]
    for (losses, means), one in zip(losses_of(tiny_qwen, pairs, *both), masked, strict=True):
        trained = [value for value, use in zip(losses, one.completion_mask, strict=True) if use]
        assert means == pytest.approx([sum(trained) / len(trained)] * 2, rel=1e-5)
