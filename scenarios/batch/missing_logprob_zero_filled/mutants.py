from mutants import broken, failing, replaces
from pytest_rlregress.remedies.masks import trained_where_known


@broken(only="test_only_what")
def filled_with_zero_and_trained(response_mask, logprobs):
    return list(response_mask), trained_where_known(response_mask, logprobs)[1]


@broken(only="-nan")
def none_alone_is_missing(response_mask, logprobs):
    mask = [int(mask and one is not None) for mask, one in zip(response_mask, logprobs, strict=True)]
    return mask, [one or 0.0 for one in logprobs]


@replaces("absent", ".test_missing_logprob_zero_filled.rollout_batch")
def masked_where_there_is_none(original, tokenizer, ids, mask, logprobs):
    return original(tokenizer, ids, [*mask[: len(logprobs)], *[0] * (len(mask) - len(logprobs))], logprobs)


replaces("changed", ".test_missing_logprob_zero_filled.rollout_batch")(failing(ValueError("lengths differ")))
