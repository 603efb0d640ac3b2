import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_rlregress.failures.act import act
from pytest_rlregress.failures.silent import silent
from pytest_rlregress.fixtures.drawn import EXAMPLES
from pytest_rlregress.stack.lazy import torch

RESULT = "\n\n<information>Doc 1: Lisbon has 545 796 inhabitants. 人口</information>\n\n"
NESTED = "\n\n<information>A <information> is closed by </information>, says B</information>\n\n"
INVALID = (
    "\nMy previous action is invalid. If I want to search, I should put the query between <search> and </search>. "
    "If I want to give the final answer, I should put the answer between <answer> and </answer>. Let me try again.\n"
)
PROMPT = "How many people live in Lisbon?"
# Text, and whether the policy wrote it.
ROLLOUT = [
    ("I ask Lisbon.", True),
    (INVALID, False),
    ("<think>Search it is.</think>\n<search>Lisbon</search>", True),
    (RESULT, False),
    ("<answer>545 796</answer>", True),
]
# What was sampled, the system's text encoded apart; and from a memory database, as text that is encoded whole: there
# tokens cross the borders. The latter is a negative example.
WAYS = pytest.mark.parametrize(("replayed", "advantage"), [(False, 1.0), (True, -1.0)], ids=["sampled", "replayed"])


def encoded(tokenizer, pieces, replayed):
    """Ids of a response, and for each 1 if all of it was written by the policy, else 0."""
    if not replayed:
        parts = [(tokenizer.encode(text), by_policy) for text, by_policy in pieces]
        return [token for ids, _ in parts for token in ids], [int(policy) for ids, policy in parts for _ in ids]
    author = [by_policy for text, by_policy in pieces for _ in text]
    whole = tokenizer("".join(text for text, _ in pieces), return_offsets_mapping=True)
    return whole["input_ids"], [int(all(author[begin:end])) for begin, end in whole["offset_mapping"]]


def gradient(model, prompt_ids, response_ids, mask, advantage):
    """The policy gradient loss, backward: norms of what reaches the logits of each response token."""
    ids = torch.tensor([prompt_ids + response_ids])
    logits = model(ids).logits[:, len(prompt_ids) - 1 : -1]
    logits.retain_grad()
    losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), ids[:, len(prompt_ids) :], reduction="none")
    mask = torch.tensor([mask])
    (advantage * losses * mask).sum().div(mask.sum()).backward()
    return logits.grad[0].norm(dim=-1).tolist()


@pytest.mark.reproduces("system-text-in-loss")
@WAYS
def test_response_mask_alone(tiny_qwen, replayed, advantage):
    tokenizer = tiny_qwen.tokenizer()
    ids, policy = encoded(tokenizer, ROLLOUT, replayed)
    with act():
        norms = gradient(tiny_qwen.model(), tokenizer.encode(PROMPT), ids, [1] * len(ids), advantage)
    inserted = [norm for norm, by_policy in zip(norms, policy, strict=True) if not by_policy]
    if any(inserted):
        silent(
            f"{sum(map(bool, inserted))} of {len(ids)} tokens trained on are the system's, "
            f"{sum(inserted) / sum(norms):.0%} of the gradient"
        )


@pytest.mark.guards("system-text-in-loss")
@WAYS
def test_only_the_policy_is_trained(tiny_qwen, subject, replayed, advantage):
    tokenizer = tiny_qwen.tokenizer()
    ids, policy = encoded(tokenizer, ROLLOUT, replayed)
    with act():
        norms = gradient(tiny_qwen.model(), tokenizer.encode(PROMPT), ids, subject(tokenizer, ids), advantage)
    assert [norm != 0 for norm in norms] == list(map(bool, policy)), "the gradient flows through other tokens"


POLICY = ["I see.", " 🙂 x < 3", "<think>a\n\nb</think>\n<search>Lisbon</search>", "<answer>\n545</answer>", "previous"]
SYSTEM = [RESULT, NESTED, INVALID]
PIECE = st.sampled_from([(text, text in POLICY) for text in POLICY + SYSTEM])


@pytest.mark.guards("system-text-in-loss")
@given(pieces=st.lists(PIECE, min_size=1, max_size=5), replayed=st.booleans(), limit=st.integers(1, 200))
@settings(EXAMPLES, max_examples=100)
def test_mask_of_any_response_is_the_policys(tiny_qwen, subject, pieces, replayed, limit):
    """Wherever the limit cuts, only the policy's tokens are trained on; all of them that can't be the system's are."""
    tokenizer = tiny_qwen.tokenizer()
    ids, policy = (one[:limit] for one in encoded(tokenizer, pieces, replayed))
    with act():
        mask = list(subject(tokenizer, ids))
    assert len(mask) == len(ids), f"{len(ids)} tokens have a mask of {len(mask)}"
    sure, doubtful = len(ids), ("<", "\n")
    while policy[-1] and sure and tokenizer.decode(ids[:sure]).endswith(doubtful):  # "\n<" may begin the system's text
        sure, doubtful = sure - 1, ("\n",)
    told = [(tokenizer.decode(token), trained) for token, trained in zip(ids, mask, strict=True)]
    assert mask[:sure] == policy[:sure], f"the mask is not the policy's: {told}"


@pytest.mark.guards("system-text-in-loss")
def test_mask_with_a_sentencepiece_tokenizer(subject):
    """The tokens of Llama 2 spell a space as ▁, and a line break as a byte."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    pieces = [({"\n": "<0x0A>", " ": "▁"}.get(letter, letter), policy) for text, policy in ROLLOUT for letter in text]
    numbers = {piece: number for number, piece in enumerate(dict.fromkeys(piece for piece, _ in pieces))}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(numbers, unk_token="a")))
    with act():
        assert list(subject(tokenizer, [numbers[piece] for piece, _ in pieces])) == [
            int(policy) for _, policy in pieces
        ]
