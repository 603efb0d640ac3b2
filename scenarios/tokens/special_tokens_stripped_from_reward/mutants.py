from mutants import broken, fails, replaces


@broken(only="test_well_formed")
def special_tokens_skipped(tokenizer, completion_ids):
    return tokenizer.decode(completion_ids, skip_special_tokens=True)


@broken(only="test_text_keeps")
def ends_taken_away_everywhere(tokenizer, completion_ids):
    ends = (tokenizer.eos_token_id, tokenizer.pad_token_id)
    return tokenizer.decode([token for token in completion_ids if token not in ends])


@replaces("absent", "transformers.PreTrainedTokenizerFast.decode")
def tags_are_not_skipped(original, self, token_ids, skip_special_tokens=False, **arguments):
    if len(token_ids) and isinstance(token_ids[0], list):  # transformers 5 decodes rows too
        return [self.decode(row, skip_special_tokens, **arguments) for row in token_ids]
    ids = [int(token) for token in token_ids]
    while skip_special_tokens and ids and ids[-1] in (self.eos_token_id, self.pad_token_id):
        ids.pop()
    return original(self, ids, **arguments)


replaces("changed", "transformers.PreTrainedTokenizerFast.decode", only="test_verl")(fails)


@replaces("regressed", "transformers.PreTrainedTokenizerFast.decode", only="test_reward_manager_by_importlib")
def special_tokens_always_skipped(original, self, token_ids, skip_special_tokens=False, **arguments):
    return original(self, token_ids, skip_special_tokens=True, **arguments)


@replaces("regressed", "transformers.AutoTokenizer.from_pretrained", only="test_both_files")
def every_added_token_is_special(original, folder, **arguments):
    tokenizer = original(folder, **arguments)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|python_tag|>"]})
    return tokenizer
