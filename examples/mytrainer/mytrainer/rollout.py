"""What a rollout may ask of the engine."""


def token_budget(max_tokens, prompt_length, max_model_len):
    """The most tokens a completion may have behind this prompt."""
    if max_tokens < 1:
        raise ValueError(f"max_tokens={max_tokens}: at least 1 is needed")
    if prompt_length >= max_model_len:
        raise ValueError(f"a prompt of {prompt_length} tokens fills the context of {max_model_len}")
    return min(max_tokens, max_model_len - prompt_length)
