"""What tells whether an engine has new weights: its log-probabilities are those of a model that has them."""

import re

from pytest_rlregress.agreement import logprobs
from pytest_rlregress.stack.lazy import torch

SEQUENCES = [[(start * 91 + step * 37) % 1000 + 5 for step in range(32)] for start in range(8)]
# Nats a token, mean. Measured: bfloat16 0.005 (Qwen3-MoE) and 0.011 (gpt-oss), other weights 0.7, old sinks 0.14.
TOLERANCE = 0.03
LONG = [step * 37 % 1000 + 5 for step in range(200)]  # tokens: more than a block of the KV cache


def tolerance():
    """Of a dense model, nats a token, mean. Measured in float32: 3e-7, and 0.004 where the weights lost precision."""
    from pytest_rlregress.fixtures import vllm_engine

    return 5e-5 if vllm_engine.dtype() == "float32" else TOLERANCE


def logprobs_of(model):
    """What the trainer's model says of the sequences, as the engine does."""
    return logprobs.token_logprobs(model, SEQUENCES)


def after_an_update(model):
    """The model after an update that moved every parameter."""
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.data += 0.05 * torch.randn(parameter.shape, generator=generator)
    return model


def save(model, folder, with_head):
    """A checkpoint; ``save_pretrained`` leaves a tied head out."""
    from safetensors.torch import save_file

    model.save_pretrained(folder)
    if with_head:
        weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        save_file(weights, folder / "model.safetensors")
    return str(folder)


def _answers(server, prompts, max_tokens, **options):
    body = {"model": server.model, "prompt": prompts, "max_tokens": max_tokens, "temperature": 0, **options}
    status, answer = server.post("/v1/completions", body)
    assert status == 200, answer
    return answer["choices"]


def scored_by_server(server, sequences):
    """What the server says of the sequences: log-probability of each token but the first."""
    choices = _answers(server, sequences, 1, prompt_logprobs=0)
    return [
        [
            position[str(token)]["logprob"]
            for token, position in zip(sequence[1:], choice["prompt_logprobs"][1:], strict=True)
        ]
        for sequence, choice in zip(sequences, choices, strict=True)
    ]


def generated_by_server(server, prompts, max_tokens):
    """Ids and log-probabilities of a completion each, which may use what is cached of its prompt."""
    choices = _answers(server, prompts, max_tokens, logprobs=0, ignore_eos=True, return_token_ids=True)
    return [(choice["token_ids"], choice["logprobs"]["token_logprobs"]) for choice in choices]


def requests_run(server):
    """Whether a server's metrics tell of a request that is running."""
    import requests

    metrics = requests.get(f"{server.base_url}/metrics", timeout=5).text
    return re.search(r"^vllm:num_requests_running\{.*\} [1-9]", metrics, re.MULTILINE)
