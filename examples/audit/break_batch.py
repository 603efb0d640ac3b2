"""Write broken.pkl: the same batch with six mistakes, none of which raises anything in a trainer."""

import torch
from verl import DataProto

batch = DataProto.load_from_disk("batch.pkl")
tensors = batch.batch
tensors.unlock_()
lengths = tensors["response_mask"].sum(dim=1)

# 1: two samples of a prompt had the same seed.
for name in tensors.keys() - {"advantages"}:
    tensors[name][6] = tensors[name][5]
# 2: the reward stands one token too far, on padding.
row = int(lengths.argmin())
tensors["token_level_scores"][row] = tensors["token_level_scores"][row].roll(1)
# 3: the engine gave no log-probabilities for the end of a row, and padding filled them.
tensors["rollout_log_probs"][12, 9:] = 0
# 4: the trainer gathered the logits of the token itself, not of the one before it.
tensors["old_log_probs"][8, 1:] = tensors["old_log_probs"][8, :-1].clone()
# 5: padding has the end token's id, and the mask was made from ids.
ended = int((lengths < 16).nonzero()[-1])
tensors["response_mask"][ended, lengths[ended] - 1] = 0
tensors["token_level_scores"][ended] = tensors["token_level_scores"][ended].roll(-1)
# 6: positions count the padding on the left.
tensors["position_ids"] = torch.arange(tensors["input_ids"].shape[1]).expand_as(tensors["input_ids"])

batch.save_to_disk("broken.pkl")
