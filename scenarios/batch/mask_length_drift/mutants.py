from types import SimpleNamespace

from mutants import broken, fails, replaces
from pytest_rlregress.remedies.masks import completion_mask


@broken(only="test_rollout_in_trl")
def longer_than_its_ids(*conversation_and_limits):
    whole = completion_mask(*conversation_and_limits)
    return SimpleNamespace(**{**vars(whole), "completion_mask": [*whole.completion_mask, 1]})


@broken(only="test_rollout_in_trl")
def all_of_it_trained(*conversation_and_limits):
    whole = completion_mask(*conversation_and_limits)
    return SimpleNamespace(**{**vars(whole), "completion_mask": [1] * len(whole.completion_ids)})


@replaces(
    "absent", "verl.utils.dataset.multiturn_sft_dataset.extract_system_prompt_and_generation", only="test_verl_data_set"
)
def header_as_it_is_rendered(original, *args, **kwargs):
    system_prompt, generation_prompt = original(*args, **kwargs)
    return system_prompt, generation_prompt[:1]


# As in TRL up to 1.5.
replaces("reproduced", "trl.trainer.sft_trainer.common_prefix_length", only="test_trl_prompt_and_completion")(
    lambda prompt_ids, ids: len(prompt_ids)
)
replaces("changed", "transformers.Qwen2ForCausalLM.forward", only="test_ids_and_mask_made_apart")(fails)
