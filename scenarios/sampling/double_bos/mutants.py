from mutants import broken, failing, replaces


@broken(only="test_rendered_text")
def tokenizer_as_it_is(tokenizer, text):
    return tokenizer.encode(text)


@broken(only="test_plain_text")
def never_special(tokenizer, text):
    return tokenizer.encode(text, add_special_tokens=False)


@replaces("absent", "transformers.PreTrainedTokenizerFast.__call__", only="test_text_for_the_trainer")
def tokenizer_looks_first(original, self, text, **options):
    written = bool(self.bos_token) and isinstance(text, str) and text.startswith(self.bos_token)
    return original(self, text, **{"add_special_tokens": not written, **options})


replaces("changed", "transformers.PreTrainedTokenizerFast.apply_chat_template", only="test_text_for_the_trainer")(
    failing(TypeError("can only concatenate str (not 'NoneType') to str"))
)


@replaces("regressed", "transformers.PreTrainedTokenizerFast.__call__", only="test_grpo_trainer_has_one_token")
def tokenizer_puts_two(original, self, *texts, **options):
    found = original(self, *texts, **options)
    if options.get("add_special_tokens", True):
        found["input_ids"] = [[self.bos_token_id, *ids] for ids in found["input_ids"]]
    return found
