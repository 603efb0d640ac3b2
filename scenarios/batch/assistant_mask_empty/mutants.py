from pathlib import Path

from mutants import fails, replaces
from pytest_rlregress.fixtures import tiny_qwen


@replaces("regressed", "trl.trainer.sft_trainer.is_conversational", only="test_completion_needs")
def completions_are_text(example):
    """A trainer that no longer renders a completion's messages."""
    return False


@replaces("regressed", "transformers.PreTrainedTokenizerFast.apply_chat_template", only="qwen2.5")
def end_of_turn_left_out(original, self, *args, **options):
    rendered = original(self, *args, **options)
    if "assistant_masks" in rendered:
        mask = rendered["assistant_masks"]
        rendered["assistant_masks"] = [here and following for here, following in zip(mask, [*mask[1:], 0], strict=True)]
    return rendered


@replaces("absent", "trl.trainer.sft_trainer.get_training_chat_template", only="test_template_without_markers")
def any_family_is_known(processing_class):
    return Path(tiny_qwen.TEMPLATES, "qwen2.5.jinja").read_text()


replaces("changed", "trl.trainer.sft_trainer.SFTTrainer.__init__", only="test_template_without_markers")(fails)
