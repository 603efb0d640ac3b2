"""A step of verl's RayPPOTrainer (trainer.use_v1=False) as its fit() writes it, from the prompts to the union."""

import inspect
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_rlregress.failures.act import act
from pytest_rlregress.failures.silent import silent
from pytest_rlregress.fixtures.drawn import EXAMPLES
from pytest_rlregress.stack.lazy import np, torch

PROMPTS, ROLLOUT_N = 2, 4
ROWS = PROMPTS * ROLLOUT_N
STREAMED_REWARDS: list[str] = []
COLOCATED_REWARDS = None


def column(values):
    return np.array(list(values), dtype=object)


@pytest.fixture(scope="module")
def trainer():
    """verl's trainer, of which a step up to the union touches nothing but its worker group's number of ranks."""
    from verl.trainer.ppo.ray_trainer import RayPPOTrainer

    trainer = object.__new__(RayPPOTrainer)
    trainer.actor_rollout_wg = SimpleNamespace(world_size=2)
    trainer.async_rollout_mode = True  # verl 0.7
    trainer._get_dp_size = lambda worker_group, role: 2
    return trainer


def read_prompts(trainer, prompts=PROMPTS, rollout_n=ROLLOUT_N):
    """Return a batch of prompts, and what goes to the rollout: each prompt ``rollout_n`` times."""
    from verl.protocol import DataProto

    tensors = {"index": torch.arange(prompts)}
    if '"position_ids"' in inspect.getsource(trainer._get_gen_batch):  # verl 0.6: the data set has tokenized them
        ids = torch.ones(prompts, 3, dtype=torch.long)
        tensors |= {"input_ids": ids, "attention_mask": ids, "position_ids": ids.cumsum(1)}
    batch = DataProto.from_single_dict({**tensors, "raw_prompt": column(range(prompts))})
    batch.non_tensor_batch["uid"] = column(f"prompt {number}" for number in range(prompts))
    return batch, trainer._get_gen_batch(batch).repeat(repeat_times=rollout_n, interleave=True)


def answer(gen_batch, kept, rewards=STREAMED_REWARDS):
    """Return verl's batch of one answer for each of the ``kept`` rows of the rollout."""
    from verl.experimental.agent_loop import agent_loop

    # In verl 0.7.0 and before AgentLoopWorker is an actor's class.
    worker_class = getattr(agent_loop, "AgentLoopWorkerBase", agent_loop.AgentLoopWorker)
    worker = object.__new__(worker_class)
    worker.reward_loop_worker_handles = rewards
    outputs = [
        agent_loop._InternalAgentLoopOutput(
            prompt_ids=torch.full((1, 3), row),
            response_ids=torch.full((1, 2), row),
            input_ids=torch.full((1, 5), row),
            position_ids=torch.arange(5)[None],
            response_mask=torch.ones(1, 2, dtype=torch.long),
            attention_mask=torch.ones(1, 5, dtype=torch.long),
            extra_fields={"answered": gen_batch.non_tensor_batch["uid"][row]},
            reward_score=1.0,
            metrics=agent_loop.AgentLoopMetrics(),
        )
        for row in kept
    ]
    given = {"input_non_tensor_batch": gen_batch.non_tensor_batch}
    known = inspect.signature(worker_class._postprocess).parameters
    return worker._postprocess(outputs, **{name: value for name, value in given.items() if name in known})


@pytest.mark.reproduces("union-batch-size")
@pytest.mark.parametrize("rewards", [STREAMED_REWARDS, COLOCATED_REWARDS], ids=["streamed", "colocated"])
def test_rollout_drops_answers(trainer, rewards):
    """With a colocated reward model the rollout's own columns are short before the union."""
    batch, gen_batch = read_prompts(trainer)
    answer(gen_batch, range(ROWS))
    with act():
        output = answer(gen_batch, range(ROWS - 2), rewards)
        batch.repeat(repeat_times=ROLLOUT_N, interleave=True).union(output)


@pytest.mark.reproduces("union-batch-size")
def test_prompts_are_not_repeated(trainer):
    batch, gen_batch = read_prompts(trainer)
    output = answer(gen_batch, range(ROWS))
    with act():
        batch.union(output)


def unite_with_column(trainer, rows):
    """Return the batch after its union, with a column set by hand before it, as fit() sets uid."""
    batch, gen_batch = read_prompts(trainer)
    batch = batch.repeat(repeat_times=ROLLOUT_N, interleave=True)
    batch.non_tensor_batch["memory_id"] = column(range(rows))
    return batch.union(answer(gen_batch, range(ROWS)))


@pytest.mark.reproduces("union-batch-size")
@pytest.mark.parametrize("rows", [PROMPTS, ROWS + PROMPTS], ids=["short", "long"])
def test_column_set_by_hand(trainer, rows):
    unite_with_column(trainer, ROWS)
    with act():
        united = unite_with_column(trainer, rows)
    odd = [len(values) for values in united.non_tensor_batch.values() if len(values) != len(united)]
    if odd:
        silent(f"union gave {len(united)} rows and a column of {odd[0]}")


LATER = {
    "balance_batch": lambda trainer, batch: trainer._balance_batch(batch, {}),
    "to-the-workers": lambda trainer, batch: batch.chunk(2),
    "rows-selected": lambda trainer, batch: batch[[0, ROWS - 1]],
}


@pytest.mark.reproduces("union-batch-size")
@pytest.mark.parametrize("later", LATER)
def test_short_column_is_found_later(trainer, later):
    LATER[later](trainer, unite_with_column(trainer, ROWS))
    united = unite_with_column(trainer, PROMPTS)
    with act():
        LATER[later](trainer, united)


@pytest.mark.guards("union-batch-size")
@given(prompts=st.integers(1, 4), rollout_n=st.integers(1, 4), data=st.data())
@EXAMPLES
def test_batch_repeated_and_cut_like_its_rollout(trainer, prompts, rollout_n, data):
    """Each row's columns and tensors are of one prompt, whichever answers are left."""
    rows = st.sampled_from(range(prompts * rollout_n))
    kept = sorted(data.draw(st.sets(rows, min_size=1)))
    batch, gen_batch = read_prompts(trainer, prompts, rollout_n)
    output = answer(gen_batch, kept)
    with act():
        united = batch.repeat(repeat_times=rollout_n, interleave=True)[kept].union(output)
        united.check_consistency()
    assert united.batch["responses"][:, 0].tolist() == kept
    assert united.batch["index"].tolist() == [row // rollout_n for row in kept]
    assert united.non_tensor_batch["uid"].tolist() == united.non_tensor_batch["answered"].tolist()
    assert {len(values) for values in united.non_tensor_batch.values()} == {len(kept)}


@pytest.mark.guards("union-batch-size")
@pytest.mark.parametrize("rows", [PROMPTS, ROWS + PROMPTS], ids=["short", "long"])
def test_check_consistency_names_the_column(trainer, rows):
    united = unite_with_column(trainer, ROWS)
    with act():
        united.check_consistency()
        united.non_tensor_batch["memory_id"] = column(range(rows))
        with pytest.raises(AssertionError, match=f"memory_id length {rows} .* batch size {ROWS}"):
            united.check_consistency()
