import random
from contextlib import ExitStack

import pytest

from pytest_rlregress.failures.act import act
from pytest_rlregress.failures.silent import silent
from pytest_rlregress.scenarios.sampling.rollouts import STARTS
from pytest_rlregress.stack.lazy import np, torch

TRAINER_SEED = 12345


def seed_all(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def draws():
    """What each generator gives next. The normal ones first: a second one may lie ready from an earlier draw."""
    return {
        "random": [random.gauss(0, 1), random.random()],
        "numpy": [np.random.normal(), np.random.rand()],
        "torch": torch.randn(3).tolist() + torch.rand(2).tolist(),
    }


def engine_on(model, say):
    from vllm import EngineArgs

    from pytest_rlregress.fixtures import vllm_engine

    return vllm_engine.start(model.directory, say=say, seed=EngineArgs.seed)  # as where none is given


@STARTS
@pytest.mark.needs("vllm-engine")
@pytest.mark.reproduces("engine-resets-trainer-rng")
def test_start(sharp_qwen, progress):
    from vllm import EngineArgs

    seed_all(EngineArgs.seed)
    engines = draws()
    seed_all(TRAINER_SEED)
    trainers = draws()
    seed_all(TRAINER_SEED)
    with act(), engine_on(sharp_qwen, progress):
        found = draws()
    reset = [name for name in found if found[name] != trainers[name]]
    if reset:
        assert all(found[name] == engines[name] for name in reset), f"{', '.join(reset)} went on from neither's seed"
        silent(f"after the start of the engine {', '.join(reset)} went on from the engine's seed {EngineArgs.seed}")


@STARTS
@pytest.mark.needs("vllm-engine")
@pytest.mark.guards("engine-resets-trainer-rng")
def test_start_with_states_kept(sharp_qwen, progress, subject):
    seed_all(TRAINER_SEED)
    trainers = draws()
    seed_all(TRAINER_SEED)
    with act(), ExitStack() as stack:
        with subject():
            engine = stack.enter_context(engine_on(sharp_qwen, progress))
        assert draws() == trainers
        [completion] = engine.generate([[5, 6, 7]], 4, ignore_eos=True)
        assert len(completion.ids) == 4


@pytest.mark.guards("engine-resets-trainer-rng")
@pytest.mark.parametrize("used", ["just-seeded", "in-use"])
def test_draws_go_on_as_before_the_block(subject, used):
    seed_all(TRAINER_SEED)
    if used == "in-use":
        draws()  # leaves a normal number ready
    with act():
        for seed in (0, 1):
            with subject():
                seed_all(seed)
                draws()
    found = [draws() for _ in range(2)]
    seed_all(TRAINER_SEED)
    if used == "in-use":
        draws()
    assert found == [draws() for _ in range(2)]


@pytest.mark.guards("engine-resets-trainer-rng")
def test_draws_go_on_after_a_block_that_fails(subject):
    seed_all(TRAINER_SEED)
    trainers = draws()
    seed_all(TRAINER_SEED)

    def start():
        seed_all(0)
        raise MemoryError("no room for the cache")

    with act(), pytest.raises(MemoryError, match="no room"), subject():
        start()
    assert draws() == trainers


@pytest.mark.hw(capability=">=8.0")
@pytest.mark.guards("engine-resets-trainer-rng")
def test_draws_on_cuda_go_on(subject):
    torch.cuda.manual_seed_all(TRAINER_SEED)
    trainers = torch.rand(3, device="cuda").tolist()
    torch.cuda.manual_seed_all(TRAINER_SEED)
    with act(), subject():
        torch.cuda.manual_seed_all(0)
    assert torch.rand(3, device="cuda").tolist() == trainers
