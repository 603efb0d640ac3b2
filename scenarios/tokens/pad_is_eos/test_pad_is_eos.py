import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_rlregress.agreement import logprobs
from pytest_rlregress.failures.act import act
from pytest_rlregress.failures.silent import silent
from pytest_rlregress.fixtures.drawn import EXAMPLES
from pytest_rlregress.scenarios.tokens.turns import one_thread
from pytest_rlregress.stack.lazy import torch

ANSWERS = ["It is 4.", "About half a million people.", "No."]
FAMILY = "deepseek-r1-distill"  # whose pad_token is its eos_token, as in the family's own tokenizer_config.json


def ended(tokenizer):
    return [[*tokenizer.encode(answer), tokenizer.eos_token_id] for answer in ANSWERS]


@pytest.mark.reproduces("pad-is-eos")
def test_end_of_turn_is_trained_on(tiny_qwen):
    from transformers import DataCollatorForLanguageModeling

    tokenizer = tiny_qwen.tokenizer(FAMILY)
    rows = ended(tokenizer)
    with act():
        batch = DataCollatorForLanguageModeling(tokenizer, mlm=False)([{"input_ids": row} for row in rows])
    trained = sum(labels[len(row) - 1] == row[-1] for labels, row in zip(batch["labels"].tolist(), rows, strict=True))
    if trained != len(rows):
        assert trained == 0
        silent(f"the end of the turn is trained on in {trained} of {len(rows)} rows")


@pytest.mark.reproduces("pad-is-eos")
def test_model_learns_to_stop(tiny_qwen):
    """What comes of it: the model is trained on answers until it knows them by heart, and goes on behind them."""
    from transformers import DataCollatorForLanguageModeling

    tokenizer = tiny_qwen.tokenizer(FAMILY)
    rows = ended(tokenizer)
    with act():
        batch = DataCollatorForLanguageModeling(tokenizer, mlm=False)([{"input_ids": row} for row in rows])
        before, ends = trained_by_heart(tiny_qwen.model(), batch, rows)
    if not ends > before:
        assert ends < 1e-4
        silent(f"training on answers that end took their ends from {before:.6f} to {ends:.6f}")


def trained_by_heart(model, batch, rows):
    """The probability of the rows' ends, before training and once the other tokens' is 0.9: mean of a token."""

    def likely():
        """Of all tokens but the ends, and of these."""
        rows_of = [torch.tensor(row).exp() for row in logprobs.token_logprobs(model, rows)]
        return tuple(torch.cat(part).mean().item() for part in ([p[:-1] for p in rows_of], [p[-1:] for p in rows_of]))

    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    with one_thread():
        answers, before = likely()
        for _ in range(200):
            if answers > 0.9:
                break
            model(**batch).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            answers, ends = likely()
    assert answers > 0.9, f"after 200 steps the answers' tokens have a probability of {answers}"
    return before, ends


@pytest.mark.guards("pad-is-eos")
def test_trained_to_stop(tiny_qwen, subject):
    tokenizer = tiny_qwen.tokenizer(FAMILY)
    rows = ended(tokenizer)
    with act():
        before, ends = trained_by_heart(tiny_qwen.model(), subject(rows, tokenizer.pad_token_id), rows)
    assert ends > before, f"training on answers that end took their ends from {before:.6f} to {ends:.6f}"


@pytest.mark.guards("pad-is-eos")
@given(rows=st.lists(st.lists(st.integers(0, 3), max_size=5), max_size=4), pad=st.integers(0, 3))
@settings(EXAMPLES, max_examples=100)
def test_rows_padded_by_length(subject, rows, pad):
    """Each row as it is, at the left: its ids, 1s and labels; behind it padding, 0s and -100."""
    batch = subject(rows, pad)
    longest = max(map(len, rows), default=0)
    for name, own, padding in (
        ("input_ids", lambda row: row, pad),
        ("attention_mask", lambda row: [1] * len(row), 0),
        ("labels", lambda row: row, -100),
    ):
        assert batch[name].dtype == torch.int64
        assert batch[name].shape == (len(rows), longest)
        assert batch[name].tolist() == [own(row) + [padding] * (longest - len(row)) for row in rows], name
    assert set(batch) == {"input_ids", "attention_mask", "labels"}
