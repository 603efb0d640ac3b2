from mutants import broken, fails, mutant, replaces


@broken(only="test_as_the_family")
def added_by_itself_without_its_system_prompt(tokenizer, messages, added):
    """As verl 0.7 does: what two empty user messages have in common is taken for the system prompt."""
    empty = [{"role": "user", "content": ""}]
    one, two = (tokenizer.apply_chat_template(empty * count, tokenize=False) for count in (1, 2))
    text = tokenizer.apply_chat_template(added, tokenize=False, add_generation_prompt=True)
    return tokenizer.encode(text[len(one) - (len(two) - len(one)) :], add_special_tokens=False)


@broken(only="test_tool_calls_outside")
def tool_calls_taken_for_context(tokenizer, messages, added):
    whole = [*messages[:-1], {**messages[-1], "content": "said"}, *added]
    text = tokenizer.apply_chat_template(whole, tokenize=False, add_generation_prompt=True)
    return tokenizer.encode(text.rpartition("said")[2].removeprefix(tokenizer.eos_token))


@mutant("absent")
def model_type_is_known(monkeypatch):
    from verl.utils.tokenizer import continuous_token_wiring as wiring

    monkeypatch.setitem(wiring._MODEL_TYPE_TO_FAMILY, "llama", wiring.ContinuousTokenModelFamily.QWEN)


replaces("changed", "verl.experimental.agent_loop.tool_agent_loop.ToolAgentLoop.run", only="test_agent_loop")(fails)
