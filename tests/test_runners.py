"""The factories of engines and models: the same answers, one engine at a time, refusals that name the cause."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace

import pytest

PROMPTS = {
    "ids": [[step * 37 % 1000 + 5 for step in range(300)], [5, 6, 7]],
    "text": ["The answer of 2 + 2 is", "a"],
    "chat": [[{"role": "user", "content": "What is 2 + 2?"}], [{"role": "system", "content": "b"}]],
}


def group(name):
    return [pytest.mark.isolated(group=f"runners: {name}", timeout=300), pytest.mark.needs("transformers")]


class TestBothSides:
    pytestmark = group("both sides")

    @pytest.fixture
    def hf(self, hf_runner, sharp_qwen):
        return hf_runner(sharp_qwen, dtype="float32")

    @pytest.fixture
    def vllm(self, vllm_runner, sharp_qwen):
        return vllm_runner(sharp_qwen, dtype="float32", max_model_len=512)

    @pytest.mark.parametrize("kind", PROMPTS)
    def test_greedy(self, hf, vllm, check_logprobs_close, kind):
        sides = [side.generate_greedy(PROMPTS[kind], 24, top_logprobs=5) for side in (hf, vllm)]
        check_logprobs_close(*sides)
        assert [one.ids for one in sides[0]] == [one.ids for one in sides[1]]
        assert [(one.text, one.finish_reason) for one in sides[0]] == [
            (one.text, one.finish_reason) for one in sides[1]
        ]
        assert hf.tokenizer.decode(sides[0][0].ids, skip_special_tokens=True) == sides[1][0].text
        scored = [side.logprobs([one.prompt_ids + one.ids for one in sides[0]]) for side in (hf, vllm)]
        for one, other in zip(*scored, strict=True):
            assert one == pytest.approx(other, abs=1e-4)  # up to 5e-6 on a CPU

    def test_prompts_are_encoded_as_transformers_does(self, vllm):
        tokenizer = vllm.get_tokenizer()
        text, chat = (vllm.generate_greedy(PROMPTS[kind], 1) for kind in ("text", "chat"))
        assert [one.prompt_ids for one in text] == [tokenizer(prompt)["input_ids"] for prompt in PROMPTS["text"]]
        for one, messages in zip(chat, PROMPTS["chat"], strict=True):
            wanted = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
            assert tokenizer.decode(one.prompt_ids) == wanted

    @pytest.mark.parametrize("part", ["layers.1.mlp.up_proj", "norm.weight"])
    def test_another_model_is_told(self, hf, vllm, check_logprobs_close, part):
        [weight] = [
            weight for name, weight in hf.model.model.named_parameters() if part in name and "layernorm" not in name
        ]
        weight.data *= 1.01
        sides = [side.generate_greedy(PROMPTS["ids"], 24, top_logprobs=5) for side in (hf, vllm)]
        with pytest.raises(
            AssertionError, match=r"prompt 0, token \d+.* of hf: vllm gave it -\d\.\d+, .* nats apart"
        ) as error:
            check_logprobs_close(*sides)
        print(error.value)

    def test_sampling(self, hf):
        import torch

        state = torch.get_rng_state()
        first = hf.generate(PROMPTS["ids"], [3, 5], seed=7, n=2, ignore_eos=True)
        assert [len(one.ids) for one in first] == [3, 3, 5, 5]
        assert first == hf.generate(PROMPTS["ids"], [3, 5], seed=7, n=2, ignore_eos=True)
        assert first[0].ids != first[1].ids
        assert torch.get_rng_state().equal(state)
        cut = hf.generate([[5]], 8, temperature=2.0, seed=1, top_k=1, ignore_eos=True)
        assert cut[0].ids == hf.generate_greedy([[5]], 8, ignore_eos=True)[0].ids

    def test_end(self, hf, vllm):
        [free] = hf.generate_greedy([[5, 6, 7]], 8, ignore_eos=True)
        ends = [side.generate_greedy([[5, 6, 7]], 8, stop_token_ids=[free.ids[2]]) for side in (hf, vllm)]
        assert [one.ids for [one] in ends] == [free.ids[: free.ids.index(free.ids[2]) + 1]] * 2
        assert {one.finish_reason for [one] in ends} == {"stop"}

    def test_wrong_prompts(self, hf, vllm):
        for side in (hf, vllm):
            with pytest.raises(ValueError, match="prompt 0: id 5000 at position 1"):
                side.generate([[5, 5000]], 2)
            with pytest.raises(TypeError, match="a list of prompts"):
                side.generate("text", 2)
            with pytest.raises(TypeError, match="prompt 0 is neither text"):
                side.generate([[0.5]], 2)


class TestOneEngineAtATime:
    pytestmark = group("one at a time")

    def test_kept_stopped_and_asked_again(self, vllm_runner, sharp_qwen):
        first = vllm_runner(sharp_qwen, max_model_len=512)
        before, llm = first.generate_greedy([[5, 6]], 4), first.llm
        assert vllm_runner(sharp_qwen.directory, max_model_len=512) is first
        assert first.llm is llm, "the same arguments started it anew"
        del llm
        second = vllm_runner(sharp_qwen, max_model_len=256)
        second.generate_greedy([[5, 6]], 4)
        adapted = replace(first, lora=None)
        for stopped in (first, adapted):
            with pytest.raises(
                RuntimeError, match=r"max_model_len=512 was stopped when .*max_model_len=256 was asked for"
            ):
                stopped.generate_greedy([[5, 6]], 4)
        again = vllm_runner(sharp_qwen, max_model_len=512)
        assert again.generate_greedy([[5, 6]], 4) == before
        assert first.generate_greedy([[5, 6]], 4) == before, "the runner that a test held is not the one that runs"

    def test_default_is_the_fixture(self, vllm_runner, vllm_engine, sharp_qwen):
        assert vllm_runner() is vllm_engine
        vllm_runner(sharp_qwen)
        with pytest.raises(RuntimeError, match="was stopped"):
            vllm_engine.generate([[5]], 1)

    def test_fixture_runs_again_in_the_next_test(self, vllm_engine):
        assert len(vllm_engine.generate([[5]], 2, ignore_eos=True)[0].ids) == 2

    def test_leaves_a_request(self, vllm_engine):
        from vllm import SamplingParams

        params = SamplingParams(max_tokens=8, detokenize=False)
        vllm_engine.llm.llm_engine.add_request("left", {"prompt_token_ids": [5] * 300}, params)
        type(self).left = True

    def test_it_is_gone(self, vllm_engine):
        if not getattr(self, "left", False):
            pytest.skip("test_leaves_a_request has not run before")
        assert not vllm_engine.llm.llm_engine.has_unfinished_requests()


class TestRefusals:
    pytestmark = group("refusals")

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (
                {"max_modellen": 64},
                r"max_modellen=…\): vLLM .* has no engine argument 'max_modellen'; there is 'max_model_len'",
            ),
            ({"dtype": "float33"}, "with dtype='float33': "),
            ({"max_model_len": 10**6}, "with max_model_len=1000000: "),
            ({"max_num_seqs": -1, "block_size": 128}, "with max_num_seqs=-1: "),
            ({"kv_cache_dtype": "int1", "max_num_seqs": 4}, "kv_cache_dtype='int1'"),
            ({"tensor_parallel_size": 3}, "with tensor_parallel_size=3: "),
            ({"kv_cache_memory_bytes": 2**47}, r"kv_cache_memory_bytes=\d+\): 131072.0 GiB, and .* GiB are free"),
        ],
        ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
    )
    def test_engine_argument(self, vllm_runner, arguments, message):
        with pytest.raises(ValueError, match=message):
            vllm_runner(**arguments)

    def test_interface_of_another_release(self, vllm_runner):
        from pytest_rlregress.stack import InterfaceMissing

        with pytest.raises(InterfaceMissing, match=r"drives the engine argument 'of_2031', which vllm \d.* has not"):
            vllm_runner(of_2031=True)

    def test_the_next_one_starts(self, vllm_runner):
        with pytest.raises(ValueError, match="tensor_parallel_size"):
            vllm_runner(tensor_parallel_size=3)
        assert len(vllm_runner().generate([[5]], 1)) == 1

    @pytest.mark.parametrize("factory", ["vllm_runner", "hf_runner"])
    def test_model(self, request, factory, sharp_qwen, tmp_path, monkeypatch):
        start = request.getfixturevalue(factory)
        with pytest.raises(ValueError, match="is not a model directory: there is nothing"):
            start(tmp_path / "none")
        with pytest.raises(
            ValueError, match=r"model='some/model' is neither a folder here nor a complete model in the local"
        ):
            start("some/model")
        odd = shutil.copytree(sharp_qwen.directory, tmp_path / "odd")
        config = json.loads((odd / "config.json").read_text())
        config |= {"architectures": ["OddForCausalLM"], "model_type": "odd"}
        (odd / "config.json").write_text(json.dumps(config))
        with pytest.raises(ValueError, match=rf"{odd}(?s:.*)odd"):
            start(odd, dtype="float32")

    def test_dtype(self, hf_runner):
        with pytest.raises(ValueError, match="dtype='float33'"):
            hf_runner(dtype="float33")

    def test_cached_name(self, hf_runner, sharp_qwen, tmp_path, monkeypatch):
        import huggingface_hub.constants

        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
        snapshot = tmp_path / "models--some--model" / "snapshots" / ("0" * 40)
        shutil.copytree(sharp_qwen.directory, snapshot)
        reference = tmp_path / "models--some--model" / "refs" / "main"
        reference.parent.mkdir()
        reference.write_text("0" * 40)
        assert hf_runner("some/model", dtype="float32").folder.samefile(snapshot)


BREAKS = """
import os
import pytest

def test_breaks(vllm_runner, tmp_path_factory):
    engine = vllm_runner(max_model_len=256)
    engine.llm.llm_engine.output_processor.process_outputs = None
    with pytest.raises(TypeError):
        engine.generate([[5]], 4)
    with pytest.raises(RuntimeError, match="this vLLM engine is broken: after TypeError"):
        engine.generate([[5]], 4)
    os.environ["OF_THE_BROKEN"] = "set"

def test_next(vllm_runner):
    assert "OF_THE_BROKEN" not in os.environ
    assert len(vllm_runner(max_model_len=256).generate([[5]], 4, ignore_eos=True)[0].ids) == 4
"""


@pytest.mark.needs("vllm")
def test_engine_that_does_not_come_back_is_given_up(pytester):
    pytester.makepyfile(BREAKS)
    result = pytester.runpytest_subprocess("-v", "-p", "no:randomly", "-p", "no:cacheprovider", timeout=280)
    result.stdout.fnmatch_lines(
        ["*does not generate again: TypeError*Its process is given up, the next test gets a new*"]
    )
    result.assert_outcomes(passed=2)
    assert "OF_THE_BROKEN" not in os.environ
