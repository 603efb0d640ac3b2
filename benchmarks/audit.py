"""`rlregress audit` on a large batch, and what the checks take beside a training step on the same tokens."""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import measure

ROWS, PROMPT, RESPONSE, GROUP = 1024, 1024, 3072, 8
STEP_ROWS, STEP_PROMPT, STEP_RESPONSE, REPEATS = 16, 256, 768, 5
END, VOCABULARY = 1, 1024


def main() -> None:
    """Time both and print them."""
    _of_file()
    _of_step()


def made(rows: int, prompt: int, response: int, group: int = GROUP) -> dict[str, Any]:
    """Make a batch as verl has it between rollout and update, with nothing wrong in it; ids and numbers are random."""
    import torch

    draw = torch.Generator().manual_seed(0)
    prompts = torch.randint(2, VOCABULARY, (rows // group, prompt), generator=draw).repeat_interleave(group, 0)
    begins = torch.randint(0, prompt, (rows // group, 1), generator=draw).repeat_interleave(group, 0)
    lengths = torch.randint(response // 4, response + 1, (rows,), generator=draw)
    last = torch.arange(rows), lengths - 1
    mask = torch.arange(response) < lengths[:, None]
    responses = torch.randint(2, VOCABULARY, (rows, response), generator=draw) * mask
    responses[last] = END
    attention = torch.cat([torch.arange(prompt) >= begins, mask], dim=1)
    prompts = prompts * attention[:, :prompt]
    rollout = -torch.rand(rows, response, generator=draw).mul_(4).add_(0.01)
    scores = torch.zeros(rows, response)
    scores[last] = torch.rand(rows, generator=draw)
    return {
        "prompts": prompts,
        "responses": responses,
        "input_ids": torch.cat([prompts, responses], dim=1),
        "attention_mask": attention.long(),
        "position_ids": (attention.cumsum(dim=1) - 1).clamp(min=0),
        "response_mask": mask.long(),
        "rollout_log_probs": rollout * mask,
        "old_log_probs": (rollout * (1 + 0.01 * torch.rand(rows, response, generator=draw))) * mask,
        "ref_log_prob": (rollout * (1 + 0.02 * torch.rand(rows, response, generator=draw))) * mask,
        "token_level_scores": scores,
        "token_level_rewards": scores.clone(),
        "advantages": torch.randn(rows, 1, generator=draw).expand(rows, response) * mask,
        "returns": torch.randn(rows, 1, generator=draw).expand(rows, response) * mask,
    }


def _of_file() -> None:
    write = "import sys, torch; from benchmarks.audit import *; torch.save(made(ROWS, PROMPT, RESPONSE), sys.argv[1])"
    with tempfile.TemporaryDirectory() as folder:
        batch = Path(folder, "batch.pt")
        if (written := measure.run([sys.executable, "-c", write, batch])).code:
            sys.exit(written.err)
        size = batch.stat().st_size
        torch_alone = measure.run([sys.executable, "-c", "import torch"])
        done, mib = measure.run_rlregress("audit", batch, "--eos", str(END), code=0)
    print(f"\nrlregress audit, {ROWS:,} rows of {PROMPT + RESPONSE:,} tokens, {size / 1e6:.0f} MB, start included:")
    print(f"  {done.seconds:7.2f} s as the clock ran                (wanted: under 5)")
    print(
        f"  {done.core_seconds:7.2f} s of a core's time; importing torch alone takes {torch_alone.core_seconds:.2f} s"
    )
    print(f"  {mib:7.1f} MiB of memory at most              (wanted: under 1024)")


def _of_step() -> None:
    """Time the update alone, with a model of under half a million parameters: a real step takes far longer."""
    import torch

    from pytest_rlregress.audit import audit_batch
    from pytest_rlregress.fixtures import tiny_qwen, training_step

    torch.set_num_threads(1)
    batch = made(STEP_ROWS, STEP_PROMPT, STEP_RESPONSE, group=4)
    model = tiny_qwen.build().model("float32").train()
    optimizer = torch.optim.AdamW(model.parameters())
    group = [row // 4 for row in range(STEP_ROWS)]
    steps, audits = [], []
    for _ in range(REPEATS):
        begun = time.perf_counter()
        optimizer.zero_grad()
        logprobs = training_step.token_logprobs(model, batch["input_ids"], batch["attention_mask"], STEP_RESPONSE)
        mask = batch["response_mask"]
        training_step.policy_loss(logprobs, logprobs.detach(), batch["advantages"][:, 0], mask).backward()
        optimizer.step()
        steps.append(time.perf_counter() - begun)
        begun = time.perf_counter()
        findings = audit_batch(batch, group, ends=[END])
        audits.append(time.perf_counter() - begun)
        if findings:
            sys.exit(str(findings))
    step, audit = statistics.median(steps), statistics.median(audits)
    print(f"\naudit_batch in a training loop, {STEP_ROWS} rows of {STEP_PROMPT + STEP_RESPONSE:,} tokens:")
    print(f"  update of the tiny model  {1000 * step:8.1f} ms, without its rollout")
    print(f"  all checks                {1000 * audit:8.1f} ms")
    print(f"  checks / update           {audit / step:8.2%}                  (wanted: under 1 %)")
