from mutants import broken, mutant, replaces
from pytest_rlregress.remedies.trainer_model import float32_masters
from pytest_rlregress.stack.lazy import torch


@broken(only="all_steps")
def copies_taken_anew_at_each_step(optimizer):
    """Steps in float32, of weights that were rounded after the step before."""
    optimizer = float32_masters(optimizer)
    weights = [one for group in optimizer.param_groups for one in group["params"]]

    def forget(*_):
        for copy in weights:
            copy.copy_(copy.bfloat16())

    optimizer.register_step_post_hook(forget)
    return optimizer


@broken(only="resumed")
def copies_not_saved(optimizer):
    optimizer = float32_masters(optimizer)
    optimizer._optimizer_state_dict_post_hooks.clear()
    optimizer._optimizer_load_state_dict_pre_hooks.clear()
    return optimizer


@mutant("absent", only="steps_of_adamw")
def adamw_rounds_only_what_it_gives(monkeypatch):
    """An AdamW that keeps float32 copies of its own."""
    torch.optim.AdamW([torch.zeros(1)])  # the first instance wraps the class' step in its hooks
    step = torch.optim.AdamW.step

    def step_on_copies(self, closure=None):
        copies = self.__dict__.setdefault("copies_of_its_own", {})
        places = [(group["params"], at) for group in self.param_groups for at in range(len(group["params"]))]
        places = [
            (weights, at, weights[at]) for weights, at in places if weights[at].dtype in (torch.bfloat16, torch.float16)
        ]
        for weights, at, weight in places:
            weights[at] = copies.setdefault(weight, weight.detach().float())
            weights[at].grad = weight.grad.float()
        result = step(self, closure)
        for weights, at, weight in places:
            weight.data.copy_(weights[at])
            weights[at] = weight
        return result

    step_on_copies.hooked = True
    monkeypatch.setattr(torch.optim.AdamW, "step", step_on_copies)


@replaces("changed", "torch.optim.AdamW.step", only="steps_of_adamw")
def adamw_refuses_bfloat16(self, closure=None):
    raise TypeError("AdamW takes float32 weights")
