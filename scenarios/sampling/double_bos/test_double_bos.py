import pytest

from pytest_rlregress.failures.act import act
from pytest_rlregress.failures.silent import silent
from pytest_rlregress.scenarios.sampling.rollouts import PUBLISHED, run

MESSAGES = [{"role": "user", "content": "What is 48 divided by 6?"}]


def rendered(tokenizer):
    return tokenizer.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=True)


def ids_of_chat(tokenizer):
    """As the tokenizer itself encodes what the template renders: a list in transformers 4, in 5 a BatchEncoding."""
    found = tokenizer.apply_chat_template(MESSAGES, tokenize=True, add_generation_prompt=True)
    return list(found if isinstance(found, list) else found["input_ids"])


def beginning(tokenizer, ids):
    """How many beginning-of-text tokens the ids begin with."""
    return next((index for index, token in enumerate(ids) if token != tokenizer.bos_token_id), len(ids))


def two_tokens():
    from vllm import SamplingParams

    return SamplingParams(max_tokens=2, temperature=0.0)


def check_beginning(tokenizer, text, ids):
    written = text.count(tokenizer.bos_token)
    found = beginning(tokenizer, ids)
    if found != written:
        assert (found, written) == (2, 1), f"{found} beginning-of-text tokens for {written}"
        silent(f"a prompt that begins with {found} beginning-of-text tokens, rendered with {written}")


@PUBLISHED
@pytest.mark.reproduces("double-bos")
def test_text_for_the_engine(published_engine, published_tokenizer):
    with act():
        text = rendered(published_tokenizer)
        [output] = run(published_engine, [text], two_tokens())
        check_beginning(published_tokenizer, text, output.prompt_token_ids)


@pytest.mark.reproduces("double-bos")
def test_text_for_the_trainer(published_tokenizer):
    with act():
        text = rendered(published_tokenizer)
        check_beginning(published_tokenizer, text, published_tokenizer(text)["input_ids"])


@PUBLISHED
@pytest.mark.guards("double-bos")
def test_engine_and_trainer_have_the_same_prompt(published_engine, published_tokenizer, subject):
    with act():
        ids = subject(published_tokenizer, rendered(published_tokenizer))
    [output] = run(published_engine, [{"prompt_token_ids": ids}], two_tokens())
    assert list(output.prompt_token_ids) == list(ids) == ids_of_chat(published_tokenizer)


def tokenizer_of(sharp_qwen, family, puts):
    """A tokenizer of one family that puts ``puts`` (``bos $A eos``) around a text."""
    from tokenizers import processors

    tokenizer = sharp_qwen.tokenizer(family)
    if puts != "$A":
        names = {"bos": tokenizer.bos_token, "eos": tokenizer.eos_token}
        template = " ".join(names.get(word, word) for word in puts.split())
        special = [
            (names[word], tokenizer.convert_tokens_to_ids(names[word])) for word in puts.split() if word in names
        ]
        tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
            single=template, special_tokens=special
        )
    return tokenizer


CASES = [(family, puts) for family in ("llama3", "deepseek-r1-distill") for puts in ("$A", "bos $A", "bos $A eos")]
CASES += [("qwen2.5", "$A"), ("qwen2.5", "$A eos")]


@pytest.mark.guards("double-bos")
@pytest.mark.parametrize(("family", "puts"), CASES)
def test_rendered_text_keeps_its_bos(sharp_qwen, subject, family, puts):
    tokenizer = tokenizer_of(sharp_qwen, family, puts)
    with act():
        assert subject(tokenizer, rendered(tokenizer)) == ids_of_chat(tokenizer)


@pytest.mark.guards("double-bos")
@pytest.mark.parametrize("text", ["What is 48 divided by 6?", "", " a\n"], ids=["question", "nothing", "spaces"])
@pytest.mark.parametrize(("family", "puts"), CASES)
def test_plain_text_gets_one_bos(sharp_qwen, subject, family, puts, text):
    """What was trained on with a token before it is to be continued with one before it, and none behind."""
    tokenizer = tokenizer_of(sharp_qwen, family, puts)
    first = [tokenizer.bos_token_id] if "bos" in puts else []
    with act():
        assert subject(tokenizer, text) == first + tokenizer.encode(text, add_special_tokens=False)


@pytest.mark.guards("double-bos")
def test_bos_further_on_stays(sharp_qwen, subject):
    """Examples in a prompt, each with its own token: these stay."""
    tokenizer = tokenizer_of(sharp_qwen, "llama3", "bos $A")
    bos, text = tokenizer.bos_token, tokenizer.encode("one", add_special_tokens=False)
    with act():
        assert subject(tokenizer, f"one{bos}one") == [tokenizer.bos_token_id, *text, tokenizer.bos_token_id, *text]
