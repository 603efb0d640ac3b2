import io

import pytest

from pytest_rlregress.failures.act import act
from pytest_rlregress.failures.silent import silent
from pytest_rlregress.stack.lazy import torch

RATE = 1e-6  # of full fine-tuning with RL, in most recipes
STEPS = 300  # that move a weight by 3e-4: more than the distance of two bfloat16 numbers of up to 0.06
SIZE = 2048


def weight(dtype="bfloat16"):
    """As large as a model's weights: of standard deviation 0.02."""
    drawn = 0.02 * torch.randn(SIZE, generator=torch.Generator().manual_seed(1))
    return torch.nn.Parameter(drawn.to(getattr(torch, dtype)))


def gradients(steps, seed=2):
    """A gradient a step: of one sign throughout for each weight, as a signal is, of changing size."""
    generator = torch.Generator().manual_seed(seed)
    sign = torch.randn(SIZE, generator=generator).sign()
    return [sign * (torch.rand(SIZE, generator=generator) + 0.5) for _ in range(steps)]


def train(optimizer, one, steps):
    for gradient in steps:
        optimizer.zero_grad()
        assert one.grad is None or not one.grad.any(), "zero_grad() leaves a gradient in the weight"
        one.grad = gradient.to(one.dtype)
        optimizer.step()
    return one.detach()


def adamw(one, rate=RATE, **options):
    return torch.optim.AdamW([one], lr=rate, weight_decay=0.01, **options)


def share_moved(one, **options):
    """The share of the weights that STEPS steps of AdamW move."""
    start = one.detach().clone()
    return (train(adamw(one, **options), one, gradients(STEPS)) != start).double().mean().item()


def check_steps_arrive(low, full, **options):
    found, wanted = share_moved(low, **options), share_moved(full, **options)
    # Half of what moves in float32 is far from both ends: see the catalogue.
    message = f"{100 * found:.1f} % of the weights moved in {STEPS} steps, in float32 {100 * wanted:.1f} %"
    if not found > wanted / 2:
        silent(message)


@pytest.mark.reproduces("bf16-update-vanishes")
@pytest.mark.parametrize("implementation", ["foreach", "fused"])
def test_steps_of_adamw(implementation):
    with act():
        check_steps_arrive(weight(), weight("float32"), **{implementation: True})


@pytest.mark.reproduces("bf16-update-vanishes")
def test_model_loaded_without_a_dtype(tiny_qwen, tmp_path):
    """transformers 5 loads the dtype of the checkpoint, which is bfloat16 for nearly every published model."""
    from transformers import AutoModelForCausalLM

    tiny_qwen.model("bfloat16").save_pretrained(tmp_path)
    with act():
        model = AutoModelForCausalLM.from_pretrained(tmp_path)
        loaded = model.get_parameter("model.layers.0.mlp.up_proj.weight").detach().flatten()[:SIZE]
        check_steps_arrive(torch.nn.Parameter(loaded.clone()), torch.nn.Parameter(loaded.float().clone()))


@pytest.mark.guards("bf16-update-vanishes")
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_all_steps_arrive(subject, dtype):
    """After as many steps as move a weight by 1e-4 and more, it is the one that float64 comes to, rounded once."""
    low, steps = weight(dtype), [one.to(getattr(torch, dtype)) for one in gradients(STEPS)]
    exact = torch.nn.Parameter(low.detach().double())
    with act():
        optimizers = subject(adamw(low)), adamw(exact)
    for rate, part in ((RATE, steps[:200]), (RATE / 2, steps[200:])):  # a schedule sets the rate in the groups
        for optimizer, one in zip(optimizers, (low, exact), strict=True):
            optimizer.param_groups[0]["lr"] = rate
            train(optimizer, one, part)
    assert low.dtype == getattr(torch, dtype)
    # What representation allows: the distance to the next number of that dtype, for float64's answer lies between two.
    spacing = (
        torch.nextafter(low.detach().abs(), torch.tensor(torch.inf, dtype=low.dtype)).double() - low.abs().double()
    )
    off = (low.double() - exact).abs() / spacing
    assert off.max() <= 1, f"{(off > 1).float().mean():.1%} of the weights are more than one number off float64's"


@pytest.mark.guards("bf16-update-vanishes")
def test_float32_weights_are_trained_as_ever(subject):
    both, plain = [weight("float32"), weight()], weight("float32")
    with act():
        optimizer = subject(torch.optim.AdamW([{"params": both[:1]}, {"params": both[1:]}], lr=RATE, weight_decay=0.01))
    wanted = train(adamw(plain), plain, gradients(20))
    assert train(optimizer, both[0], gradients(20)).equal(wanted)
    assert both[1].equal(weight()), "a weight without a gradient moved"


@pytest.mark.guards("bf16-update-vanishes")
def test_resumed_where_it_ended(subject):
    """Saved with the optimizer's state, the part of each weight that rounding hides is there again."""
    steps, one = gradients(200), weight()
    with act():
        optimizer = subject(adamw(one))
    train(optimizer, one, steps[:100])
    file = io.BytesIO()
    torch.save({"weight": one.detach(), "optimizer": optimizer.state_dict()}, file)
    wanted = train(optimizer, one, steps[100:])
    file.seek(0)
    state = torch.load(file)
    again = torch.nn.Parameter(state["weight"])
    resumed = subject(adamw(again))
    resumed.load_state_dict(state["optimizer"])
    assert train(resumed, again, steps[100:]).equal(wanted)
