"""Engines on the sharp Qwen, one for each way of sampling; each lives in a child of its own (``isolated(group=…)``)."""

import json
import shutil

import pytest

# As Qwen publishes, and every other field that vLLM takes over.
SAMPLING_DEFAULTS = {
    "do_sample": True,
    "temperature": 0.7,
    "top_p": 0.8,
    "top_k": 20,
    "min_p": 0.02,
    "repetition_penalty": 1.05,
    "presence_penalty": 0.3,
    "frequency_penalty": 0.2,
    "max_new_tokens": 12,
}
TOKENIZER_SIZE = 900  # of the model's 1024 ids
BOS = "<|begin_of_text|>"


@pytest.fixture(scope="session")
def trainer(sharp_qwen):
    """The trainer's model, float32, of the engines' own weights."""
    return sharp_qwen.model()


@pytest.fixture(scope="session")
def raw_engine(sharp_qwen, vllm_runner):
    """An engine whose log-probabilities are as vLLM gives them by default."""
    return vllm_runner(sharp_qwen, max_model_len=256)


@pytest.fixture(scope="session")
def processed_engine(sharp_qwen, vllm_runner):
    """An engine whose log-probabilities are to be those of the distribution that it samples from."""
    return vllm_runner(sharp_qwen, max_model_len=256, logprobs_mode="processed_logprobs")


def tokenizer_with(model, has):
    """Llama 3's of the tiny Qwen, less the ids that ``has(id)`` denies; it puts a beginning-of-text token first."""
    from tokenizers import Tokenizer, processors
    from transformers import PreTrainedTokenizerFast

    document = json.loads((model.directory / "tokenizer.json").read_text(encoding="utf-8"))
    bpe = document["model"]
    bpe["vocab"] = {token: number for token, number in bpe["vocab"].items() if has(number)}
    pairs = [merge if isinstance(merge, list) else merge.split(" ") for merge in bpe["merges"]]
    bpe["merges"] = [pair for pair in pairs if bpe["vocab"].keys() >= {*pair, "".join(pair)}]
    tokenizer = Tokenizer.from_str(json.dumps(document))
    bos = tokenizer.token_to_id(BOS)
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, bos)])
    family = model.tokenizer("llama3")
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        chat_template=family.chat_template,
        bos_token=BOS,
        eos_token=family.eos_token,
        pad_token=family.pad_token,
        clean_up_tokenization_spaces=False,
    )


@pytest.fixture(scope="session")
def published_tokenizer(sharp_qwen):
    """A tokenizer that puts a beginning-of-text token first, as Llama 3's, and has 900 of the model's 1024 ids."""
    return tokenizer_with(sharp_qwen, lambda token: token < TOKENIZER_SIZE)


@pytest.fixture(scope="session")
def gapped_tokenizer(sharp_qwen):
    """One that has none of these for the ids from 600 to 699 either."""
    return tokenizer_with(sharp_qwen, lambda token: token < TOKENIZER_SIZE and token // 100 != 6)


@pytest.fixture(scope="session")
def published_engine(sharp_qwen, published_tokenizer, tmp_path_factory, vllm_runner):
    """An engine on a model folder as they are published: sampling defaults, a tokenizer, a padded vocabulary."""
    folder = tmp_path_factory.mktemp("model") / "published"
    folder.mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copy(sharp_qwen.directory / name, folder)
    (folder / "generation_config.json").write_text(json.dumps(SAMPLING_DEFAULTS), encoding="utf-8")
    published_tokenizer.save_pretrained(folder)
    return vllm_runner(folder, max_model_len=256, skip_tokenizer_init=False, logprobs_mode="processed_logprobs")
