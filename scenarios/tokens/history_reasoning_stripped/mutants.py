from mutants import broken, fails, replaces
from pytest_rlregress.remedies.masks import MaskedCompletion


@broken(only="test_every_turn")
def one_row_whatever_the_prompts(turns):
    row = MaskedCompletion(list(turns[0][0]), list(turns[0][1]), [1] * len(turns[0][1]))
    for prompt, sampled in turns[1:]:
        context = list(prompt[len(row.prompt_ids) + len(row.completion_ids) :])
        mask = row.completion_mask + [0] * len(context) + [1] * len(sampled)
        row = MaskedCompletion(row.prompt_ids, row.completion_ids + context + list(sampled), mask)
    return [row]


@broken(only="test_rows_of_any")
def a_row_for_each_turn(turns):
    return [MaskedCompletion(list(prompt), list(sampled), [1] * len(sampled)) for prompt, sampled in turns]


def keeps_the_reasoning(tiny_qwen, family):
    tokenizer = tiny_qwen.tokenizer("qwen2.5")
    if family == "deepseek-r1-distill":
        end = "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}"
        assert end in tokenizer.chat_template
        tokenizer.chat_template = tokenizer.chat_template.replace(end, end + "{{- '<think>\\n' -}}")
    return tokenizer


replaces("absent", ".test_history_reasoning_stripped.tokenizer_of")(keeps_the_reasoning)
replaces("changed", "transformers.PreTrainedTokenizerFast.apply_chat_template", only="test_rendered_for_training")(
    fails
)
