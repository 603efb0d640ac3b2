import re

from mutants import broken, mutant, replaces


@broken(only="test_only_the_policy")
def response_mask_alone(tokenizer, response_ids):
    return [1] * len(response_ids)


def by_pattern(tokenizer, response_ids, pattern):
    """A mask over the pattern's matches in the decoded text, by the offsets of encoding that again."""
    text = tokenizer.decode(response_ids)
    spans = [found.span() for found in re.finditer(pattern, text, re.DOTALL)]
    offsets = tokenizer(text, return_offsets_mapping=True)["offset_mapping"]
    return [int(not any(first < end and begin < last for first, last in spans)) for begin, end in offsets]


@broken(only="test_mask_of_any")
def nesting_overlooked(tokenizer, response_ids):
    return by_pattern(tokenizer, response_ids, r"\n*<information>.*?(</information>\n*|\Z)|\n*My previous[^\n]*\n*")


@mutant("absent")
def insertions_are_never_sampled(monkeypatch):
    """A stack that keeps the system's text out of the response."""
    from pytest_rlregress.scenarios.batch.system_text_in_loss import test_system_text_in_loss as scenario

    monkeypatch.setattr(scenario, "ROLLOUT", [piece for piece in scenario.ROLLOUT if piece[1]])


replaces("changed", "torch.nn.functional.cross_entropy")(lambda logits, ids, reduction: ids.float())
