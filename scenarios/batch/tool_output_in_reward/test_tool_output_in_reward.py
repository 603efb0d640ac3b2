import asyncio
import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_rlregress.failures.act import act
from pytest_rlregress.failures.silent import silent
from pytest_rlregress.fixtures.drawn import EXAMPLES
from pytest_rlregress.stack.lazy import np, torch

pytestmark = pytest.mark.needs("verl")

WIDTH = 48  # tokens of a response, padding included
# What the policy wrote (True) and what the tool did.
GIVEN_UP = [("Let me ask. ", True), ("The verifier says: #### 42", False), (" I do not know.", True)]
ANSWERED = [("Let me ask. ", True), ("Nothing found.", False), (" It is #### 42", True)]


@pytest.fixture
def tokenizer(tiny_qwen):
    return tiny_qwen.tokenizer()


def tokens_of(tokenizer, pieces):
    return [(token, int(policy)) for text, policy in pieces for token in tokenizer.encode(text)]


def rollouts(tokenizer, responses):
    """A verl batch of responses, each a list of ids with 1 where the policy wrote them."""
    from verl.protocol import DataProto

    rows, pad = len(responses), tokenizer.pad_token_id
    padded = [[*tokens, *[(pad, 0)] * (WIDTH - len(tokens))] for tokens in responses]
    ids, mask = torch.tensor(padded).unbind(-1)
    there = torch.tensor([[1] * len(tokens) + [0] * (WIDTH - len(tokens)) for tokens in responses])
    prompts = torch.full((rows, 3), tokenizer.encode("a")[0])
    tensors = {
        "prompts": prompts,
        "responses": ids,
        "response_mask": mask,
        "attention_mask": torch.cat([torch.ones_like(prompts), there], 1),
        "input_ids": torch.cat([prompts, ids], 1),
    }
    truths = [{"ground_truth": "42"} for _ in responses]
    columns = {"reward_model": truths, "data_source": ["openai/gsm8k"] * rows}
    return DataProto.from_dict(tensors, {key: np.array(column, dtype=object) for key, column in columns.items()})


def naive(tokenizer, compute_score=None):
    from verl.workers.reward_manager import NaiveRewardManager

    return NaiveRewardManager(tokenizer, num_examine=0, compute_score=compute_score)


@pytest.mark.reproduces("tool-output-in-reward")
@pytest.mark.parametrize("manager", ["naive", pytest.param("reward-loop", marks=pytest.mark.needs("verl-trainer"))])
def test_answer_of_the_tool(tokenizer, manager):
    data = rollouts(tokenizer, [tokens_of(tokenizer, GIVEN_UP)])
    if manager == "naive":
        score_all = naive(tokenizer)
        with act():
            reward = score_all(data).sum().item()
    else:
        from verl.experimental.reward_loop.reward_manager import naive as of_the_loop

        async def score():
            of_a_loop = of_the_loop.NaiveRewardManager(None, tokenizer, None)
            with act():
                return await of_a_loop.run_single(data)

        reward = asyncio.run(score())["reward_score"]
    if reward != 0:
        silent(f"a reward of {reward} for an answer that only the tool gave")


@pytest.mark.guards("tool-output-in-reward")
def test_answer_of_the_policy(subject, tokenizer):
    data = rollouts(tokenizer, [tokens_of(tokenizer, pieces) for pieces in (GIVEN_UP, ANSWERED)])
    score = naive(tokenizer)
    with act():
        assert subject(score, data, tokenizer.pad_token_id).sum(-1).tolist() == [0, 1]


TOKENS = st.lists(st.tuples(st.integers(60, 900), st.integers(0, 1)), min_size=1, max_size=12)


def contents(data):
    tensors = {key: data.batch[key].tolist() for key in sorted(data.batch.keys())}
    return tensors, {key: column.tolist() for key, column in data.non_tensor_batch.items()}, data.meta_info


@pytest.mark.guards("tool-output-in-reward")
@given(responses=st.lists(TOKENS, min_size=1, max_size=4), pad=st.integers(0, 3))
@settings(EXAMPLES, max_examples=40)
def test_reward_reads_the_policys_tokens(subject, tokenizer, responses, pad):
    """Each row's reward is that of the policy's tokens, and stands at the last of them."""
    read, seen = [], []

    def compute_score(data_source, solution_str, ground_truth, extra_info):
        read.append(solution_str)
        return len(read) / 3

    score = naive(tokenizer, compute_score)

    def manager(data):
        there = data.batch["attention_mask"].sum(1).tolist()
        seen.append((data.batch["responses"].tolist(), there, data.meta_info))
        return score(data).double()

    data = rollouts(tokenizer, responses)
    data.meta_info["step"] = 7
    before = copy.deepcopy(contents(data))
    with act():
        rewards = subject(manager, data, pad)
    written = [[token for token, policy in tokens if policy] for tokens in responses]
    assert read == [tokenizer.decode(ids, skip_special_tokens=True) for ids in written if ids]
    shortened = [ids + [pad] * (WIDTH - len(ids)) for ids in written if ids]
    there = [3 + len(ids) for ids in written if ids]
    assert seen == ([(shortened, there, {"step": 7})] if shortened else [])
    assert (rewards.shape, rewards.dtype) == (data.batch["responses"].shape, torch.float32)
    wanted, scored = [[0.0] * WIDTH for _ in responses], 0
    for row, tokens in zip(wanted, responses, strict=True):
        if any(policy for _, policy in tokens):
            scored += 1
            row[max(index for index, (_, policy) in enumerate(tokens) if policy)] = scored / 3
    assert rewards.tolist() == torch.tensor(wanted).tolist()
    assert contents(data) == before
