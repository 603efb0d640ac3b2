"""A router may be a linear layer that gives logits alone, as before transformers 5: what is replayed goes by those."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

TOKENS, WIDTH, LAYERS, EXPERTS, CHOSEN = 40, 16, 3, 8, 2
# Beyond the rounding that the order of the experts makes: the weights are a softmax of a softmax here.
FACTOR = 10


def built(**config):
    """A model of layers that add what their experts say; the second one has none."""
    import torch

    class Mixture(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = torch.nn.Linear(WIDTH, EXPERTS, bias=False)
            self.experts = torch.nn.Parameter(torch.randn(EXPERTS, WIDTH, WIDTH) / WIDTH)

        def forward(self, hidden):
            weights, chosen = self.gate(hidden).softmax(-1).topk(CHOSEN, -1)
            return self.mixed(hidden, weights / weights.sum(-1, keepdim=True), chosen)

        def mixed(self, hidden, weights, chosen):
            return torch.einsum("tc,tw,tcwv->tv", weights, hidden, self.experts[chosen])

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            dense = torch.nn.Linear(WIDTH, WIDTH)
            self.layers = torch.nn.ModuleList(torch.nn.Module() for _ in range(LAYERS))
            for at, layer in enumerate(self.layers):
                layer.mlp = dense if at == 1 else Mixture()
            self.config = SimpleNamespace(num_experts_per_tok=CHOSEN, **config)

        def get_decoder(self):
            return self

        def forward(self, hidden):
            for layer in self.layers:
                hidden = hidden + layer.mlp(hidden)
            return hidden

    torch.manual_seed(0)
    return Model().double(), torch.randn(TOKENS, WIDTH, dtype=torch.float64)


def by_hand(model, hidden, experts):
    """The model's output where each token goes to the experts of ``[tokens, layers with experts, chosen]``."""
    for at, layer in enumerate(model.layers):
        if at == 1:
            hidden = hidden + layer.mlp(hidden)
        else:
            chosen = experts[:, at // 2]
            weights = layer.mlp.gate(hidden).gather(-1, chosen).softmax(-1)
            hidden = hidden + layer.mlp.mixed(hidden, weights, chosen)
    return hidden


@pytest.mark.guards("moe-routing-disagrees")
def test_linear_routers_choose_what_is_given(subject):
    """The output and the gradient of all weights are those of these experts, and the model's own again behind it."""
    import torch

    model, hidden = built(norm_topk_prob=True)
    experts = torch.stack([torch.randperm(EXPERTS)[:CHOSEN] for _ in range(TOKENS * 2)]).view(TOKENS, 2, CHOSEN)

    def seen(output):
        return [output.detach(), *torch.autograd.grad(output.square().sum(), list(model.parameters()))]

    before, wanted = model(hidden), seen(by_hand(model, hidden, experts))
    other = seen(by_hand(model, hidden, experts.flip(-1)))
    with subject(model, experts):
        found = seen(model(hidden))
    for one, exact, again in zip(found, wanted, other, strict=True):
        floor = (again - exact).norm() + torch.finfo(exact.dtype).eps * exact.norm()
        assert (one - exact).norm() <= FACTOR * floor
    assert model(hidden).equal(before)


@pytest.mark.guards("moe-routing-disagrees")
def test_linear_routers_refuse_what_does_not_fit(subject):
    import torch

    model, hidden = built(norm_topk_prob=True)
    experts = torch.zeros(TOKENS + 1, 2, CHOSEN, dtype=torch.int64)
    with pytest.raises(ValueError, match="tokens"), subject(model, experts):
        model(hidden)
    with pytest.raises(ValueError, match="norm_topk_prob"), subject(built()[0], experts):
        pass
