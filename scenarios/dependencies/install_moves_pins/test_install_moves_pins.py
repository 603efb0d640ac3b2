import sys

import pytest

from pytest_rlregress.failures.act import act
from pytest_rlregress.failures.silent import silent
from pytest_rlregress.scenarios.dependencies import wheel_index

# What the packages' own metadata says; the last three stand for any.
INDEX = [
    ("torch", "2.9.0", []),
    ("torch", "2.13.0", []),
    ("vllm", "0.12.0", ["torch==2.9.0"]),
    ("numpy", "1.26.4", []),
    ("numpy", "2.2.6", []),
    ("megatron-core", "0.13.1", ["numpy<2.0.0"]),
    ("opencv-python-headless", "4.11.0.86", ["numpy>=1.23.5"]),
    ("opencv-python-headless", "4.12.0.88", ["numpy>=2,<2.3.0"]),
    ("wandb", "0.22.0", []),
    ("trainer", "1.0", ["megatron-core", "wandb"]),
    ("extension", "1.0", ["torch==2.9.0"]),
]
PINS = ["torch==2.13.0", "numpy==2.2.6", "opencv-python-headless==4.12.0.88"]

# torchvision's import in a few lines: the operators are registered although its native library did not load.
TORCHVISION = {
    "torchvision/__init__.py": "from torchvision import extension, _meta_registrations",
    "torchvision/extension.py": "import contextlib, torch\n"
    "with contextlib.suppress(OSError):\n    torch.ops.load_library('_C_of_another_build.so')\n",
    "torchvision/_meta_registrations.py": "import torch\n"
    "@torch.library.register_fake('torchvision::nms')\ndef nms(dets, scores, iou_threshold): ...\n",
}


class Environment:
    """A fresh environment with PINS, and the index beside it."""

    def __init__(self, folder):
        index = folder / "index"
        index.mkdir()
        for name, version, requires in INDEX:
            wheel_index.wheel(index, name, version, requires)
        self.python = folder / "venv"
        self.offline = ["--no-config", "--no-cache", "--no-index", "--find-links", str(index)]
        wheel_index.uv("venv", "--quiet", "--python", sys.executable, self.python)
        self.install(*PINS)

    def install(self, *requirements):
        wheel_index.uv("pip", "install", "--python", self.python, *self.offline, *requirements)

    def check(self):
        wheel_index.uv("pip", "check", "--python", self.python)

    def installed(self):
        said = wheel_index.uv("pip", "freeze", "--quiet", "--python", self.python)
        return sorted(line for line in said.splitlines() if "==" in line)


@pytest.fixture
def environment(tmp_path):
    return Environment(tmp_path)


@pytest.mark.reproduces("install-moves-pins")
def test_vllm_moves_torch(environment):
    with act():
        environment.install("vllm")
    moved = [line for line in environment.installed() if line.startswith("torch==") and line not in PINS]
    if moved:
        silent(f"installing vllm moved torch==2.13.0 to {moved[0]}")


@pytest.mark.reproduces("install-moves-pins")
def test_megatron_breaks_opencv(environment):
    with act():
        environment.install("megatron-core")
        environment.check()


@pytest.mark.reproduces("install-moves-pins")
def test_pip_says_so_after_the_act(environment):
    said = wheel_index.pip("--python", environment.python, "install", *environment.offline[2:], "megatron-core")
    assert "Successfully installed megatron-core" in said
    assert "dependency conflicts" not in said, said


@pytest.mark.reproduces("install-moves-pins")
@pytest.mark.isolated(fresh=True)  # where an installed torchvision has registered nothing yet
@pytest.mark.needs("torch")
def test_torchvision_of_another_build(monkeypatch, tmp_path):
    wheel = wheel_index.wheel(tmp_path, "torchvision", "0.28.0+cu130", files=TORCHVISION)
    wheel_index.put_in_front(monkeypatch, wheel, "torchvision")
    with act():
        import torchvision  # noqa: F401


@pytest.mark.guards("install-moves-pins")
@pytest.mark.needs("uv")
@pytest.mark.parametrize(
    ("requirement", "move"),
    [
        ("extension", "torch 2.13.0 -> 2.9.0"),
        ("megatron-core", "numpy 2.2.6 -> 1.26.4"),
        ("trainer", "numpy 2.2.6 -> 1.26.4"),
        ("opencv-python-headless==4.11.0.86", "opencv-python-headless 4.12.0.88 -> 4.11.0.86"),
    ],
)
def test_a_move_is_shown_and_refused(environment, subject, requirement, move):
    with pytest.raises(RuntimeError, match=move):
        subject([requirement], environment.python, environment.offline)
    assert environment.installed() == sorted(PINS)


@pytest.mark.guards("install-moves-pins")
@pytest.mark.needs("uv")
def test_what_cannot_be_resolved_changes_nothing(environment, subject):
    with pytest.raises(RuntimeError, match=r"torch==2\.9\.0"):
        subject(["wandb", "extension", "torch==2.13.0"], environment.python, environment.offline)
    assert environment.installed() == sorted(PINS)


@pytest.mark.guards("install-moves-pins")
@pytest.mark.needs("uv")
def test_what_moves_nothing_goes_in(environment, subject, capfd):
    environment.install("numpy<2", "opencv-python-headless==4.11.0.86")  # as documented, before Megatron
    before = environment.installed()
    added = ["megatron-core==0.13.1", "trainer==1.0", "wandb==0.22.0"]
    with act():
        assert subject(["trainer"], environment.python, environment.offline) == added
    assert capfd.readouterr() == ("", "")
    assert environment.installed() == sorted([*before, *added])
    environment.check()
