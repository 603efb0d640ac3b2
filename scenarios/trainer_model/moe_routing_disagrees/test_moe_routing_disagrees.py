import contextlib

import pytest

from pytest_rlregress.failures.act import act
from pytest_rlregress.failures.silent import silent
from pytest_rlregress.fixtures import tiny_model
from pytest_rlregress.remedies.trainer_model import cast_parameters
from pytest_rlregress.stack.lazy import torch

ROWS = [[(start * 91 + step * 37) % 500 + 5 for step in range(48)] for start in range(8)]
EXPERTS, CHOSEN, LAYERS = 16, 4, 2


def built(dense=()):
    """The trainer's model in float32 and the rollout's in bfloat16, of the same bfloat16 weights.

    ``dense`` are the layers that have no experts.
    """
    sizes = {"num_experts": EXPERTS, "num_experts_per_tok": CHOSEN, "mlp_only_layers": list(dense)}
    stored = tiny_model.build("qwen3-moe", dtype="bfloat16", scale=4, **sizes)
    trainer, rollout = stored.model(), stored.model()
    return trainer, cast_parameters(rollout, torch.bfloat16)


@pytest.fixture
def models():
    return built()


def forward(model, rows=ROWS):
    """Log-probabilities of the rows' tokens, ``[rows, tokens - 1]``; their experts, ``[tokens, layers, chosen]``."""
    experts = []

    def note(module, arguments, output):
        # Since transformers 5 a router gives logits, weights and experts; before it was a linear layer.
        experts.append(output[2] if isinstance(output, tuple) else output.topk(CHOSEN, -1).indices)

    ids = torch.tensor(rows)
    with contextlib.ExitStack() as stack:
        for name, module in model.named_modules():
            if name.endswith(".gate"):
                stack.callback(module.register_forward_hook(note).remove)
        logprobs = model(input_ids=ids).logits[:, :-1].float().log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
    return logprobs, torch.stack(experts, dim=1)


def others(one, other):
    """Which tokens go to another set of experts in any layer, ``[rows, tokens]``."""
    return (one.sort(-1).values != other.sort(-1).values).any(-1).any(-1).view(len(ROWS), -1)


@pytest.mark.reproduces("moe-routing-disagrees")
def test_trainer_and_rollout(models):
    trainer, rollout = models
    with act(), torch.no_grad():
        share = others(forward(trainer)[1], forward(rollout)[1]).float().mean().item()
    if share != 0:
        silent(f"{share:.2%} of the tokens go to other experts than they did in the rollout")


@pytest.mark.guards("moe-routing-disagrees")
def test_rollouts_experts_in_the_trainer(subject, models):
    """With its experts the trainer is as near to the rollout as where both chose the same by themselves."""
    trainer, rollout = models
    with act(), torch.no_grad():
        (alone, own), (wanted, experts) = forward(trainer), forward(rollout)
        with subject(trainer, experts):
            found, replayed = forward(trainer)
        with subject(rollout, experts):  # in bfloat16 too
            again = forward(rollout)[1]
    assert not others(replayed, experts).any()
    assert not others(again, experts).any()
    same = others(own, experts).cumsum(-1)[:, :-1] == 0  # here and before: what it attends to is the same, too
    floor = (alone - wanted)[same].abs().mean()
    # Twice, for it is the mean over other tokens; and the last digit, where both compute alike.
    assert (found - wanted).abs().mean() <= 2 * floor + torch.finfo(torch.float32).eps * wanted.abs().mean()


@pytest.mark.guards("moe-routing-disagrees")
@pytest.mark.parametrize("variant", ["as-chosen", "order-reversed", "a-dense-layer"])
def test_own_experts_change_nothing(subject, variant):
    """Neither the log-probabilities nor the gradient, that of the routers included; nor does their order."""
    trainer, _ = built(dense=[0] if variant == "a-dense-layer" else [])

    def gradient(logprobs):
        return torch.cat([one.flatten() for one in torch.autograd.grad(logprobs.sum(), list(trainer.parameters()))])

    wanted, experts = forward(trainer)
    # The rows one by one are the same but for rounding.
    other = torch.cat([forward(trainer, [row])[0] for row in ROWS])
    with act(), subject(trainer, experts.flip(-1) if variant == "order-reversed" else experts):
        found = forward(trainer)[0]
        slope, true, again = gradient(found), gradient(wanted), gradient(other)
    last_digit = torch.finfo(torch.float32).eps
    assert (found - wanted).abs().mean() <= 10 * (other - wanted).abs().mean() + last_digit * wanted.abs().mean()
    assert (slope - true).norm() <= 10 * (again - true).norm() + last_digit * true.norm()


@pytest.mark.guards("moe-routing-disagrees")
@pytest.mark.parametrize("end", ["normal", "error"])
def test_routing_is_the_models_own_again_behind_it(subject, models, end):
    trainer, _ = models
    weights = {name: one.clone() for name, one in trainer.state_dict().items()}
    settings = trainer.training, trainer.config.to_dict()
    with act(), torch.no_grad():
        before, experts = forward(trainer)
        with contextlib.suppress(RuntimeError), subject(trainer, (experts + 1) % EXPERTS):
            assert not forward(trainer)[0].equal(before)
            if end == "error":
                raise RuntimeError
        assert forward(trainer)[0].equal(before)
    assert all(one.equal(weights[name]) for name, one in trainer.state_dict().items())
    assert (trainer.training, trainer.config.to_dict()) == settings


@pytest.mark.guards("moe-routing-disagrees")
def test_rejects_experts_that_do_not_fit(subject, models, tiny_qwen):
    trainer, _ = models
    experts = torch.arange(CHOSEN).expand(len(ROWS) * len(ROWS[0]), LAYERS, CHOSEN)
    with act(), pytest.raises(ValueError, match="layers"), subject(trainer, experts[:, :1]):
        pass
    with pytest.raises(ValueError, match="experts a token"), subject(trainer, experts[..., :2]):
        pass
    with pytest.raises(ValueError, match="layers"), subject(tiny_qwen.model(), experts):
        pass
    with pytest.raises(ValueError, match="tokens"), subject(trainer, experts[1:]):
        forward(trainer)
    trainer.config.norm_topk_prob = False
    with pytest.raises(ValueError, match="norm_topk_prob"), subject(trainer, experts):
        pass
