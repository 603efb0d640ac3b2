from mutants import broken, fails, replaces
from pytest_rlregress.remedies.tokens import next_prompt, turn_context


@broken(only="test_sampled_ids_stay")
def decoded_and_encoded(tokenizer, ids, messages, added):
    text = tokenizer.decode(next_prompt(tokenizer, ids, messages, added))
    return tokenizer.encode(text, add_special_tokens=False)


@broken(only="test_cut_turn")
def end_of_a_cut_turn_forgotten(tokenizer, ids, messages, added):
    return [*ids, *turn_context(tokenizer, messages, added)]


replaces("absent", ".test_retokenised_turns.in_pieces")(lambda tokenizer, text, cuts: tokenizer.encode(text))
replaces("changed", "transformers.PreTrainedTokenizerFast.decode", only="test_next_prompt_is_rendered")(fails)
