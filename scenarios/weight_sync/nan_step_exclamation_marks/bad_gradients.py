"""Gradients that are not finite, as they come about in a training step."""

from pytest_rlregress.scenarios.weight_sync.policies import SHORT
from pytest_rlregress.stack.lazy import torch


def masked_token_loss(model, forbidden=7):
    """The policy loss of the tokens that the mask leaves; both policies give a masked one a probability of zero."""
    ids = torch.tensor(SHORT)
    logits = model(input_ids=ids).logits[:, :-1].index_fill(-1, torch.tensor([forbidden]), float("-inf"))
    labels, mask = ids[:, 1:].clone(), torch.ones(len(SHORT), len(SHORT[0]) - 1)
    labels[0, 3], mask[0, 3] = forbidden, 0
    logprobs = logits.log_softmax(-1).gather(-1, labels[..., None])[..., 0]
    ratio = (logprobs - logprobs.detach()).exp()  # there NaN, and what the mask multiplies with 0 stays NaN
    return -(ratio * mask).sum() / mask.sum()


def backward(model, source):
    """Gradients of a step, of which one is NaN, or that come from a loss that is."""
    if source == "masked-token":
        masked_token_loss(model).backward()
    else:
        model(input_ids=(ids := model.dummy_inputs["input_ids"]), labels=ids).loss.backward()
        model.model.norm.weight.grad[5] = float("nan")
