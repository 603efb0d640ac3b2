from mutants import broken, fails, replaces


@broken(only="stub")
def the_name_is_enough(wanted):
    from transformers.utils import import_utils

    return wanted if import_utils.is_flash_attn_2_available() else "sdpa"


@broken(only="test_what_can_be_used")
def sdpa_for_all(wanted):
    return "sdpa"


replaces("absent", "transformers.PreTrainedModel._check_and_adjust_attn_implementation")(
    lambda self, *args, **kwargs: "sdpa"
)
replaces("changed", "transformers.AutoModelForCausalLM.from_pretrained")(fails)
