"""The engine, the server and the Ray cluster: they compute what the model computes, and leave nothing behind."""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path

import psutil
import pytest

from pytest_rlregress.fixtures import ray_cluster, vllm_engine, vllm_server

PROMPTS = [[20, 30, 40, 50], [60, 70], list(range(100, 140))]


def reference_logprobs(model, sequence):
    import torch

    ids = torch.tensor(sequence)
    with torch.inference_mode():
        logprobs = model(input_ids=ids[None]).logits[0].log_softmax(dim=-1)
    return logprobs[:-1].gather(1, ids[1:, None]).flatten().tolist()


def check_agreement(engine, model):
    completions = engine.generate(PROMPTS, max_tokens=[8, 12, 16], seed=1, n=2, ignore_eos=True)
    assert [len(c.ids) for c in completions] == [8, 8, 12, 12, 16, 16]
    assert [c.prompt_ids for c in completions] == [p for p in PROMPTS for _ in range(2)]
    assert completions[0].ids != completions[1].ids
    sequences = [c.prompt_ids + c.ids for c in completions]
    scored = engine.logprobs(sequences)
    for completion, sequence, row in zip(completions, sequences, scored, strict=True):
        assert row == pytest.approx(reference_logprobs(model, sequence), abs=1e-4)
        assert completion.logprobs == pytest.approx(row[len(completion.prompt_ids) - 1 :], abs=1e-4)
    return completions


@pytest.mark.isolated(timeout=300)
@pytest.mark.needs("vllm", "transformers", "torch")
def test_engine_agrees_with_the_model_and_takes_new_weights(tiny_qwen, progress, tmp_path):
    import torch

    before, threads, set_num_threads = dict(os.environ), torch.get_num_threads(), torch.set_num_threads
    model = tiny_qwen.model()
    sequences = [[*prompt, 5, 6, 7] for prompt in PROMPTS]
    with vllm_engine.start(tiny_qwen.directory, say=progress) as engine:
        first = check_agreement(engine, model)
        assert check_agreement(engine, model) == first, "the same seeds gave other completions"
        old = engine.logprobs(sequences)
        with torch.no_grad():
            for index, parameter in enumerate(model.parameters()):
                generator = torch.Generator().manual_seed(index)
                parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.02)
        engine.load_weights(model.state_dict().items())
        check_agreement(engine, model)
        new = engine.logprobs(sequences)
        assert max(abs(a - b) for one, two in zip(old, new, strict=True) for a, b in zip(one, two, strict=True)) > 0.1
    shutil.copytree(tiny_qwen.directory, tmp_path / "new")
    model.save_pretrained(tmp_path / "new")
    with vllm_engine.start(tmp_path / "new", say=progress) as engine:  # a second one in this process
        for one, two in zip(engine.logprobs(sequences), new, strict=True):
            assert one == pytest.approx(two, abs=1e-4)
    assert (dict(os.environ), torch.get_num_threads()) == (before, threads)
    assert torch.set_num_threads is set_num_threads
    assert not torch.distributed.is_initialized()


@pytest.mark.parametrize("module", [vllm_engine, vllm_server])
def test_not_a_model_directory(module, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match=r"is not a model directory: it has no .*safetensors") as error:
        module.start(tmp_path).__enter__()
    assert str(tmp_path) in str(error.value)
    assert "\n" not in str(error.value)


def test_server_that_dies_shows_the_tail_of_its_log(tiny_qwen, tmp_path, monkeypatch):
    (tmp_path / "vllm.py").write_text("raise ImportError('a broken installation')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with vllm_server.start(tiny_qwen.directory, logs=tmp_path) as server:
        with socket.socket() as other, pytest.raises(OSError, match="in use"):  # long before vLLM binds it
            other.bind(("127.0.0.1", int(server.address.rpartition(":")[2])))
        with pytest.raises(RuntimeError, match=r"(?s)ended with exit status 1\. .*a broken installation") as error:
            server.wait_until_ready()
        assert str(server.log_path) in str(error.value)
    assert "a broken installation" in server.log(), "the log of a server that ended by itself was not kept"
    assert server.log_path.is_relative_to(tmp_path), "a contained test's temporary folder is removed"


@pytest.mark.needs("vllm")
def test_server_that_is_too_slow_is_stopped(tiny_qwen):
    with vllm_server.start(tiny_qwen.directory, timeout=1.0) as server:
        with pytest.raises(RuntimeError, match=r"not ready within 1 s\. The end of its log"):
            server.post("/v1/completions", {})
        assert psutil.pid_exists(server.process.pid)
    assert not psutil.pid_exists(server.process.pid)
    assert not server.log_path.parent.exists()


@pytest.mark.isolated(timeout=300)
@pytest.mark.needs("vllm")
def test_server_answers_on_loopback_and_leaves_nothing(tiny_qwen, progress):
    with vllm_server.start(tiny_qwen.directory, say=progress) as server:
        request = {"prompt": [20, 30], "max_tokens": 4, "ignore_eos": True}
        status, body = server.post("/v1/completions", {"model": server.model, **request})
        assert status == 200, f"{body}\n{server.log()[-5000:]}"
        assert body["usage"]["completion_tokens"] == 4
        status, body = server.post("/v1/completions", {"model": "another", **request})
        assert status == 404, body
        assert "/v1/completions" in server.log()
        leader = psutil.Process(server.process.pid)
        family = [leader, *leader.children(recursive=True)]
        listening = {c.laddr.ip for p in family for c in p.net_connections() if c.status == psutil.CONN_LISTEN}
        assert listening == {"127.0.0.1"}
        server.process.kill()
        server.process.wait()
        with pytest.raises(RuntimeError, match=r"ended with signal SIGKILL\. The end of its log"):
            server.post("/v1/completions", {"model": server.model, **request})
    assert [process for process in family if process.is_running()] == []
    shutil.rmtree(server.log_path.parent)


@pytest.mark.isolated(timeout=300)
@pytest.mark.needs("ray")
def test_ray_leaves_nothing(progress):
    before, here = dict(os.environ), psutil.Process()
    token = Path.home() / ".ray" / "auth_token"
    had_token = token.exists()
    with ray_cluster.start(nodes=2, say=progress) as cluster:
        import ray

        @ray.remote(num_cpus=2)
        class Actor:
            def node(self):
                print("written by the worker")
                return ray.get_runtime_context().get_node_id()

        actors = [Actor.remote(), Actor.remote()]
        assert set(ray.get([actor.node.remote() for actor in actors])) == {n.node_id for n in cluster.nodes}
        assert any("written by the worker" in log.read_text() for log in cluster.log_dir.glob("worker-*.out"))
        folder = cluster.log_dir.parents[2]
        family = here.children(recursive=True)
        assert len(family) > 4
        with pytest.raises(RuntimeError, match="connected to a Ray cluster already"), ray_cluster.start():
            pytest.fail("started")
    assert [process for process in family if process.is_running()] == []
    assert not folder.exists()
    assert dict(os.environ) == before
    assert token.exists() == had_token


@pytest.mark.needs("vllm")
def test_a_seed_decides_what_a_gpu_samples_too():
    import numpy
    import torch

    def drawn():
        vllm_engine.seed_sampling(2**40 + 7)
        return torch.rand(3).tolist(), numpy.random.randint(-(2**63), 2**63 - 1, 3).tolist()

    assert drawn() == drawn()
