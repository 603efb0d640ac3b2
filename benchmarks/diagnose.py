"""`rlregress diagnose` on a long log: lines of Ray, vLLM and a trainer, progress bars, some tracebacks."""

from __future__ import annotations

import itertools
import random
import tempfile
from pathlib import Path

from benchmarks import measure

MEGABYTES = 300
PIECE_LINES = 20_000
#: One in so many lines begins a traceback: a log of a million lines has some hundred.
TRACEBACK_EVERY = 10_000
ORDINARY = [
    "\x1b[36m(TaskRunner pid={pid})\x1b[0m step:{n} - global_seqlen/mean:{x} - actor/pg_loss:{y} - actor/grad_norm:{y} "
    "- actor/entropy:{y} - critic/score/mean:{y} - response_length/mean:{x} - perf/throughput:{x} - timing_s/gen:{y}",
    "(EngineCore pid={pid}) INFO 12-01 05:34:{s} [loggers.py:{n}] Engine 000: Avg prompt throughput: {x} tokens/s, "
    "Avg generation throughput: {x} tokens/s, Running: 8 reqs, Waiting: 0 reqs, GPU KV cache usage: {y}%",
    '(APIServer pid={pid}) INFO:     127.0.0.1:{n} - "POST /v1/chat/completions HTTP/1.1" 200 OK',
    "2025-12-01 05:34:{s},{n} - verl.trainer - INFO - val/test_score/openai/gsm8k: {y}, val/num_turns/mean: {y}",
    "\x1b[36m(WorkerDict pid={pid})\x1b[0m After update_actor, memory allocated (GB): {x}, reserved (GB): {x}",
    "[rank{r}]: [response] Let x be the number of apples. Then {n} + {n} = {x}, so the answer is #### {n}",
    "[prompt] user\nNatalia sold clips to {n} of her friends in April. How many did she sell? Think in steps.",
]
BAR = "\rProcessed prompts:  {s}%|████▌     | {s}/100 [00:01<00:01, {y}it/s, est. speed input: {x} toks/s]"
TRACEBACK = """(WorkerDict pid={pid}) Traceback (most recent call last):
(WorkerDict pid={pid})   File "/opt/verl/workers/fsdp_workers.py", line {n}, in generate_sequences
(WorkerDict pid={pid})     output = self.rollout.generate_sequences(prompts=prompts)
(WorkerDict pid={pid})   File "/opt/verl/utils/reward_score/math.py", line {n}, in compute_score
(WorkerDict pid={pid})     raise TimeoutError(f"no answer after {{seconds}} s")
(WorkerDict pid={pid}) TimeoutError: no answer after {n} s"""
DOCUMENTED = "CUDA error: an illegal memory access was encountered\nKeyError: 'ministral3'\n"


def main() -> None:
    """Time it on one core and print the rate."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "train.log")
        _write(log)
        size = log.stat().st_size
        done, mib = measure.run_rlregress("diagnose", log, code=1)
    print(f"\nrlregress diagnose, a log of {size / 1e6:.0f} MB, start included:")
    print(f"  {size / 1e6 / done.core_seconds:7.1f} MB/s of one core's time     (wanted: at least 80)")
    print(f"  {size / 1e6 / done.seconds:7.1f} MB/s as the clock ran")
    print(f"  {mib:7.1f} MiB of memory at most")


def _write(log: Path) -> None:
    """Many pieces of which only some differ: writing is not what is timed."""
    pieces = [_piece(random.Random(seed)).encode() for seed in range(8)]
    with log.open("wb") as file:
        for piece in itertools.cycle(pieces):
            file.write(piece)
            if file.tell() > MEGABYTES * 1e6:
                break
        file.write(DOCUMENTED.encode())


def _piece(rng: random.Random) -> str:
    lines = []
    for _ in range(PIECE_LINES):
        values = {
            "pid": rng.randrange(1000, 9999),
            "n": rng.randrange(1000),
            "x": f"{rng.uniform(0, 5000):.2f}",
            "y": f"{rng.random():.6f}",
            "s": f"{rng.randrange(60):02}",
            "r": rng.randrange(8),
        }
        form = TRACEBACK if rng.random() * TRACEBACK_EVERY < 1 else rng.choice(ORDINARY)
        lines.append(form.format(**values))
        if rng.random() < 0.01:
            lines[-1] += "\n" + "".join(BAR.format(**values) for _ in range(rng.randrange(5, 50)))
    return "\n".join(lines) + "\n"
