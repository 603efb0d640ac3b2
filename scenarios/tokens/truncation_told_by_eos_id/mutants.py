from mutants import broken, fails, replaces


@broken(only="test_cut_is")
def told_by_one_id(completion_ids, finish_reasons, stop_ids):
    return [not ids or ids[-1] not in (stop_ids or [2])[:1] for ids in completion_ids]


@broken(only="test_each_way")
def told_by_the_last_id(completion_ids, finish_reasons, stop_ids):
    return [not ids or ids[-1] not in stop_ids for ids in completion_ids]


@replaces("absent", "pytest_rlregress.scenarios.tokens.grpo.trainer")
def trainer_knows_every_end(original, directory, tokenizer, *arguments):
    """As if the trainer took over what the request added."""
    from pytest_rlregress.scenarios.tokens.truncation_told_by_eos_id import test_truncation_told_by_eos_id as scenario

    made = original(directory, tokenizer, *arguments)
    made.eos_token_ids = tokenizer.convert_tokens_to_ids(scenario.ENDS)
    return made


replaces("changed", "trl.GRPOTrainer._generate_and_score_completions", only="test_grpo_trainer")(fails)
