# ruff: noqa: RUF001 - DeepSeek's control tokens are spelt with fullwidth bars
from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pytest_rlregress.fixtures.tiny_qwen import NAMED_TOKENS, build, check_directory

# Recorded with tokenizers 0.22.2 and safetensors 0.8.0. If a new version of one of them writes other bytes, every
# golden number that rests on this model is to be recorded anew, and so are these.
GOLDEN = {
    "tiny": {
        "model.safetensors": "c98787b49736bc01fb5f92c243d60181d5e1588ed6ec0a3e78b9eb0749784499",
        "tokenizer.json": "b9075711d3700697cb004dc3674096e20cd7fa7ee3577d97f1a0195c035152e0",
    },
    "full-vocabulary": {
        "model.safetensors": "363926af9053290b0376d338bdc560e42ecda38bb277e6d7a9d64d98941ac2ef",
        "tokenizer.json": "b9075711d3700697cb004dc3674096e20cd7fa7ee3577d97f1a0195c035152e0",
    },
}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
CALL = {"type": "function", "function": {"name": "weather", "arguments": {"city": "北京"}}}
CONVERSATION = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Weather?"},
    {"role": "assistant", "content": "I look.</think>One moment.", "tool_calls": [CALL]},
    {"role": "tool", "content": "21 degrees"},
    {"role": "tool", "content": "sunny"},
    {"role": "assistant", "content": "Warm.</think>21 degrees ☀"},
    {"role": "user", "content": "Thanks"},
]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return build("tiny", tmp_path_factory.mktemp("cache"))


def manifest(qwen):
    return json.loads((qwen.directory / "manifest.json").read_text(encoding="utf-8"))


def test_same_bytes_in_any_process(tmp_path):
    code = "import sys, pathlib; from pytest_rlregress.fixtures import tiny_qwen as t; "
    code += "print(t.build('tiny', pathlib.Path(sys.argv[1])).directory)"
    differences = [
        {"PYTHONHASHSEED": "1", "RAYON_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
        {"PYTHONHASHSEED": "2", "RAYON_NUM_THREADS": "2", "OMP_NUM_THREADS": "2"},
    ]
    directories = []
    for number, difference in enumerate(differences):
        command = [sys.executable, "-W", "ignore", "-c", code, str(tmp_path / str(number))]
        done = subprocess.run(command, env=os.environ | difference, check=True, capture_output=True, text=True)
        directories.append(Path(done.stdout.strip()))
    first, second = ({path.name: path.read_bytes() for path in directory.iterdir()} for directory in directories)
    assert first == second


@pytest.mark.parametrize("variant", GOLDEN)
def test_bytes_are_the_recorded_ones(variant):
    with tempfile.TemporaryDirectory() as cache:
        digests = manifest(build(variant, Path(cache)))
    message = "tokenizers or safetensors write other bytes than when the golden numbers were recorded"
    assert {name: digests[name] for name in GOLDEN[variant]} == GOLDEN[variant], message


def test_processes_may_build_at_once(tmp_path):
    with ThreadPoolExecutor(3) as pool:
        built = list(pool.map(lambda _: build("tiny", tmp_path), range(3)))
    assert len(set(built)) == 1
    assert {path.name for path in tmp_path.iterdir()} == {built[0].directory.name, "models.lock"}


def change_a_byte(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [change_a_byte, Path.unlink, lambda path: path.write_bytes(b"")])
@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "manifest.json"])
def test_damaged_copy_is_rebuilt(tiny, name, damage):
    intact = {path.name: path.read_bytes() for path in tiny.directory.iterdir()}
    damage(tiny.directory / name)
    assert build("tiny", tiny.directory.parent) == tiny
    assert {path.name: path.read_bytes() for path in tiny.directory.iterdir()} == intact


def test_intact_copy_is_kept(tiny):
    before = tiny.directory.stat()
    assert build("tiny", tiny.directory.parent).directory.stat() == before


def test_loads_in_transformers(tiny):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny.directory)
    own = tiny.tokenizer("qwen2.5")
    text = own.apply_chat_template(CONVERSATION, tokenize=False)
    assert tokenizer.apply_chat_template(CONVERSATION, tokenize=False) == text
    assert tokenizer.encode(text) == own.encode(text)
    assert tokenizer.eos_token == own.eos_token == "<|im_end|>"

    ids = torch.tensor([own.encode(text)])
    logits = AutoModelForCausalLM.from_pretrained(tiny.directory, dtype=torch.float32)(ids).logits
    assert torch.equal(logits, tiny.model()(ids).logits)
    assert 0.1 < logits.std() < 1
    assert tiny.model("bfloat16").dtype == torch.bfloat16


TEXTS = ["Hello", "你好,世界。", "👩‍🔬🇩🇪 ☀", "\x00\t\r\n  \n", "ᚠᛇᚻ 𝔘", '{"a": "é"}', "<think>\n</think>"]


@pytest.mark.parametrize("text", TEXTS)
def test_text_comes_back(tiny, text):
    for template in NAMED_TOKENS:
        tokenizer = tiny.tokenizer(template)
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_control_tokens_and_roles_are_single_tokens(tiny):
    tokenizer = tiny.tokenizer()
    assert len(tokenizer) == 1024
    single = ["assistant", "system", "user", "tool", "ipython", "\n\n", "<think>", "</think>", "<tool_call>"]
    single += [token for tokens in NAMED_TOKENS.values() for token in tokens.values()]
    assert {text: len(tokenizer.encode(text)) for text in single} == dict.fromkeys(single, 1)


RENDERED = {
    "qwen2.5": "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWeather?<|im_end|>\n"
    '<|im_start|>assistant\nI look.</think>One moment.\n<tool_call>\n{"name": "weather", "arguments": {"city": "北京"}}'
    "\n</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\n21 degrees\n</tool_response>\n<tool_response>\nsunny"
    "\n</tool_response><|im_end|>\n<|im_start|>assistant\nWarm.</think>21 degrees ☀<|im_end|>\n"
    "<|im_start|>user\nThanks<|im_end|>\n<|im_start|>assistant\n",
    "deepseek-r1-distill": "<｜begin▁of▁sentence｜>Be brief.<｜User｜>Weather?<｜Assistant｜>One moment."
    '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{"city": "北京"}\n```'
    "<｜tool▁call▁end｜><｜tool▁calls▁end｜><｜end▁of▁sentence｜><｜tool▁outputs▁begin｜>"
    "<｜tool▁output▁begin｜>21 degrees"
    "<｜tool▁output▁end｜>\n<｜tool▁output▁begin｜>sunny<｜tool▁output▁end｜><｜tool▁outputs▁end｜>21 degrees ☀"
    "<｜end▁of▁sentence｜><｜User｜>Thanks<｜Assistant｜><think>\n",
    "llama3": "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\nWeather?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
    'I look.</think>One moment.{"name": "weather", "parameters": {"city": "北京"}}<|eot_id|>'
    "<|start_header_id|>ipython<|end_header_id|>\n\n21 degrees<|eot_id|><|start_header_id|>ipython<|end_header_id|>\n\n"
    "sunny<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nWarm.</think>21 degrees ☀<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\nThanks<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
}


@pytest.mark.parametrize("template", RENDERED)
def test_template_renders_as_documented(tiny, template):
    tokenizer = tiny.tokenizer(template)
    text = tokenizer.apply_chat_template(CONVERSATION, tokenize=False, add_generation_prompt=True)
    assert text == RENDERED[template]


@pytest.mark.parametrize("template", RENDERED)
def test_template_marks_the_assistant(tiny, template):
    tokenizer = tiny.tokenizer(template)
    encoded = tokenizer.apply_chat_template(CONVERSATION, return_dict=True, return_assistant_tokens_mask=True)
    pairs = zip(encoded["input_ids"], encoded["assistant_masks"], strict=True)
    marked = tokenizer.decode([token for token, mark in pairs if mark])
    first, second = marked.split(tokenizer.eos_token)[:2]
    assert first.removeprefix("I look.</think>").startswith("One moment.")
    assert second.removeprefix("Warm.</think>") == "21 degrees ☀"
    assert marked.endswith(second + tokenizer.eos_token)


def test_qwen_without_a_system_turn_and_with_tools(tiny):
    text = tiny.tokenizer().apply_chat_template([CONVERSATION[1]], tools=[TOOL], tokenize=False)
    assert text.startswith(
        "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.\n\n"
    )
    assert f"<tools>\n{json.dumps(TOOL)}\n</tools>" in text
    assert text.endswith("</tool_call><|im_end|>\n<|im_start|>user\nWeather?<|im_end|>\n")


def test_unknown_names_say_what_there_is(tiny):
    with pytest.raises(ValueError, match="no variant 'huge' of the tiny Qwen; there are tiny, sharp, full-vocabulary"):
        build("huge")
    with pytest.raises(ValueError, match=r"no chat template 'gpt'; there are qwen2\.5, deepseek-r1-distill, llama3"):
        tiny.tokenizer("gpt")


def test_directory_that_is_no_model(tiny, tmp_path):
    assert check_directory(str(tiny.directory)) == tiny.directory
    with pytest.raises(ValueError, match="there is nothing at that path"):
        check_directory("Qwen/Qwen2.5-7B")
    with pytest.raises(ValueError, match="there is a file at that path"):
        check_directory(__file__)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match=r"it has no \*\.safetensors or \*\.bin, no tokenizer\.json or"):
        check_directory(tmp_path)
