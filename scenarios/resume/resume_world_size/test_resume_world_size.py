import pytest

from pytest_rlregress.failures.act import act
from pytest_rlregress.scenarios.resume.verl_run import verl_run
from pytest_rlregress.stack.lazy import torch

# torchdata 0.11 on torch 2.13
pytestmark = [pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"), pytest.mark.needs("verl")]
RANKS = pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2)], ids=["fewer", "more"])


def saved(folder, tiny_model, ranks, step=9):
    """The weights that each rank had when it saved."""
    weights = []
    for rank in range(ranks):
        with verl_run(folder, tiny_model("qwen2"), rank, ranks) as run:
            weights.append(run.train(step))
    return weights


@pytest.mark.reproduces("resume-world-size")
@RANKS
def test_another_number_of_ranks(tiny_model, tmp_path, before, after):
    saved(tmp_path, tiny_model, before)
    with verl_run(tmp_path, tiny_model("qwen2"), ranks=after) as run, act():
        run.resume()


@pytest.mark.guards("resume-world-size")
@RANKS
def test_rejects_another_number_of_ranks(subject, tiny_model, tmp_path, before, after):
    """Also where an older checkpoint would do: weeks would be lost unseen."""
    saved(tmp_path, tiny_model, after, step=8)
    saved(tmp_path, tiny_model, before)
    with act(), pytest.raises(ValueError, match=rf"global_step_9\b.*\b{before} processes.*\b{after}\b"):
        subject(tmp_path, after)
    assert subject(tmp_path).name == subject(tmp_path, before).name == "global_step_9"


@pytest.mark.guards("resume-world-size")
@pytest.mark.parametrize("ranks", [1, 2])
def test_every_rank_gets_its_own(subject, tiny_model, tmp_path, ranks):
    weights = saved(tmp_path, tiny_model, ranks)
    with act():
        path = subject(tmp_path, ranks)
    for rank in range(ranks):
        with verl_run(tmp_path, tiny_model("qwen2"), rank, ranks) as run:
            assert run.resume(str(path)) == 9
            assert all(map(torch.equal, run.weights(), weights[rank]))


@pytest.mark.guards("resume-world-size", fidelity="injected")
@pytest.mark.parametrize("kind", ["model", "optim", "extra_state"])
def test_rejects_a_missing_shard(subject, tiny_model, tmp_path, kind):
    """As where each machine of several saved on a disk of its own."""
    saved(tmp_path, tiny_model, 2)
    (tmp_path / "global_step_9" / "actor" / f"{kind}_world_size_2_rank_1.pt").unlink()
    with act():
        for ranks in (None, 2):
            with pytest.raises(ValueError, match=rf"global_step_9.*{kind}.*rank 1\b"):
                subject(tmp_path, ranks)
