"""requirements/card.sh: parts that are put together again, pieces that have every test for a GPU, clear refusals."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from cards import h200
from installed import CHECKOUT
from patience import PATIENCE
from workflow_jobs import commit, git

pytestmark = pytest.mark.slow

REQUIREMENTS = CHECKOUT / "requirements"
CARD = REQUIREMENTS / "card.sh"
PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
#: Fixtures.
USES_THE_GPU = {"vllm_engine", "vllm_server", "training_step", "fsdp_step", "trl_step", "verl_step", "experts"}


def call(*command, code=0, script=CARD, **environment):
    """What card.sh prints, once sure that it ended with ``code``."""
    done = subprocess.run(
        ["sh", script, *map(str, command)],
        env={**os.environ, "PYTHON": sys.executable, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == code, done.stdout
    return done.stdout


@pytest.fixture
def stage(tmp_path):
    """What pack has before it makes parts of it: two groups, one of which takes four parts of 20 kB."""
    stage = tmp_path / "stage"
    for group, size in {"small": 10, "large": 70_000}.items():
        (stage / group / "package").mkdir(parents=True)
        (stage / group / "package" / f"{group}.py").write_bytes(os.urandom(size))
    tool = stage / "small" / "package" / "tool"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    (stage / "about").write_text(f"stack made-up\npython {PYTHON}\ntorch 2.11.0\n")
    return stage


@pytest.fixture
def packed(stage, tmp_path):
    """A folder with its parts."""
    call("bundle", stage, tmp_path / "parts", CARD_PART="20k")
    return tmp_path / "parts"


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_help_shows_every_command():
    said = call("--help")
    assert all(f"card.sh {verb}" in said for verb in ("pack DIR", "unpack DIR TARGET", "piece N"))
    assert call(code=2) == said
    shown = set(re.findall(r"card\.sh (\w+)", (REQUIREMENTS / "card.md").read_text()))
    assert len(shown) > 2
    assert shown <= set(re.findall(r"card\.sh (\w+)", said))


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["fly"], "no command 'fly'"),
        (["piece", "7"], "no piece '7'; there are 1 to 6"),
        (["piece"], "no piece ''"),
        (["pack", "somewhere", "vllm-0.1"], "there are vllm-0.26 and vllm-0.31"),
        (["unpack", "somewhere"], "unpack DIR TARGET"),
    ],
    ids=["command", "piece", "no-piece", "stack", "no-target"],
)
def test_rejects_unknown_commands_and_pieces(command, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert words in call(*command, code=2)
    assert list(tmp_path.iterdir()) == []


def test_unpacking_restores_the_packed_files(packed, stage, tmp_path, monkeypatch):
    assert sorted(path.name for path in packed.glob("*.xz.*")) == [
        *(f"large.tar.xz.0{number}" for number in range(4)),
        "small.tar.xz.00",
    ]
    assert max(path.stat().st_size for path in packed.glob("*.xz.*")) <= 20 * 1024
    target = tmp_path / "target"
    monkeypatch.chdir(tmp_path)
    assert "sh target/card.sh piece 1" in call("unpack", "parts", "target", script=packed / "card.sh")
    for group in ("small", "large"):
        assert contents(stage / group).items() <= contents(target).items()
    assert os.access(target / "package" / "tool", os.X_OK)


def test_packing_again_is_identical_and_removes_old_parts(packed, stage):
    before = contents(packed)
    call("bundle", stage, packed, CARD_PART="20k")
    assert contents(packed) == before
    shutil.rmtree(stage / "large")
    call("bundle", stage, packed, CARD_PART="20k")
    assert not list(packed.glob("large*"))


def test_one_group_can_be_unpacked_before_the_others(packed, tmp_path):
    for path in packed.glob("large*"):
        path.rename(tmp_path / path.name)  # not yet carried
    target = tmp_path / "target"
    call("unpack", packed, target, "small")
    assert not list(target.rglob("large.py"))
    assert "large.tar.xz.00" in call("unpack", packed, target, code=2)
    for path in tmp_path.glob("large*"):
        path.rename(packed / path.name)
    assert "small: there already" in call("unpack", packed, target)
    assert list(target.rglob("large.py"))
    assert "there are large small" in call("unpack", packed, target, "other", code=2)


def test_refuses_a_missing_or_damaged_part_and_another_python(packed, stage, tmp_path):
    target, part = tmp_path / "target", packed / "large.tar.xz.02"
    content = bytearray(part.read_bytes())
    part.unlink()
    assert "has no large.tar.xz.02" in call("unpack", packed, target, code=2)
    content[100] ^= 1
    part.write_bytes(content)
    assert "large.tar.xz.02 is damaged" in call("unpack", packed, target, code=2)
    (stage / "about").write_text("stack made-up\npython 3.7\n")
    call("bundle", stage, packed)
    assert f"for Python 3.7, {sys.executable} is {PYTHON}" in call("unpack", packed, target, code=2)
    assert not target.exists()


def test_rejects_a_foreign_folder_and_replaces_an_older_pack(packed, stage, tmp_path):
    target = tmp_path / "target"
    target.mkdir()
    (target / "thesis.tex").touch()
    assert "not empty" in call("unpack", packed, target, code=2)
    (target / "thesis.tex").unlink()
    call("unpack", packed, target)
    (stage / "small" / "package" / "small.py").rename(stage / "small" / "package" / "renamed.py")
    call("bundle", stage, packed)
    call("unpack", packed, target)
    assert {path.name for path in (target / "package").iterdir()} == {"renamed.py", "large.py", "tool"}


# Resolves to what is asked for and a lock of its own; installs nothing but notes what it should.
UV = """#!/bin/sh
while [ $# -gt 0 ]; do
    case $1 in
    --output-file) cat >asked; cp "$2" preferred; cp resolved "$2" ;;
    --requirements) cp "$2" installed ;;
    --target) mkdir -p "$2/ray" "$2/vllm" "$2/bin" "$2/ray-2.dist-info" "$2/vllm-0.dist-info" ;;
    esac
    shift
done
"""


def test_the_pack_has_what_the_image_lacks(tmp_path, monkeypatch):
    checkout = tmp_path / "checkout"
    (checkout / "requirements").mkdir(parents=True)
    for name in ("card.sh", "card_measure.py"):
        shutil.copy(REQUIREMENTS / name, checkout / "requirements")
    (checkout / "requirements" / "gpu.txt").write_text("numpy==2.3.5\nray==2.60.0\n")
    commit(checkout, "harness")
    monkeypatch.chdir(tmp_path)
    Path("uv").write_text(UV)
    Path("uv").chmod(0o755)
    Path("resolved").write_text(
        "torch==2.11.0\nnvidia-cublas==13.1\nnvidia-ml-py==13.0\nnumpy==2.3.5\nhuggingface-hub==1.33.0\n"
        "pandas==3.1.1\nray==2.60.0\nscipy==1.18.1\n"
    )
    Path("image").write_text(
        "torch==2.11.0+cu130\nHuggingface_Hub==1.33.0\nnumpy==2.5.2\npandas @ file:///wheels/p.whl\n"
    )
    path = f"{tmp_path}:{os.environ['PATH']}"
    said = call("pack", "parts", "vllm-0.26", "image", script=checkout / "requirements" / "card.sh", PATH=path)
    assert "vllm==0.26.0\n" in Path("asked").read_text()
    # What is preferred: the image's versions, and the lock's for the rest.
    assert set(Path("preferred").read_text().split()) == {
        "torch==2.11.0", "huggingface-hub==1.33.0", "numpy==2.5.2", "ray==2.60.0",
    }  # fmt: skip
    assert set(Path("installed").read_text().split()) == {
        "numpy==2.3.5", "nvidia-ml-py==13.0", "ray==2.60.0", "scipy==1.18.1",
    }  # fmt: skip
    assert all(f"{group}: " in said for group in ("harness", "rest", "ray", "vllm"))
    about = Path("parts/about").read_text()
    assert f"commit {git(checkout, 'rev-parse', 'HEAD')}\n" in about
    call("pack", "parts", script=checkout / "requirements" / "card.sh", PATH=path)  # an image with nothing but torch
    assert "pandas==3.1.1" in Path("installed").read_text()
    assert "torch==" not in Path("installed").read_text()


COLLECT = """
import json
def pytest_collection_modifyitems(items):
    found = [
        [str(item.path), item.name, sorted(item.fixturenames)]
        + [mark and [mark.args, mark.kwargs] for mark in [item.get_closest_marker("hw")]]
        for item in items
    ]
    print("FOUND", json.dumps(found))
"""


def test_every_test_for_a_gpu_is_in_one_piece(pytester, cards):
    cards(h200())
    pytester.makepyfile(collect=COLLECT)
    pytester.syspathinsert()
    command = ["--hw=h200", "--rl-long", "--collect-only", "-q", "-p", "collect", "--pyargs"]
    pieces = {line[0]: line[2:].split() for line in call("pieces").splitlines()}
    assert list(pieces) == list("123456")

    def collected(*what):
        done = pytester.runpytest_subprocess(*command, *(f"pytest_rlregress.scenarios{one}" for one in what))
        assert done.ret == 0, done.stdout.str()
        return json.loads(re.search(r"^FOUND (.*)$", done.stdout.str(), re.MULTILINE)[1])

    def name(found):
        return found[0], found[1]

    runs = Counter(map(name, collected(*(f".{module}" for modules in pieces.values() for module in modules))))
    wanted = {
        name(found) for found in collected("") if (found[3] and found[3][0] != ["cpu"]) or USES_THE_GPU & set(found[2])
    }
    assert len(wanted) > 20
    assert wanted - set(runs) == set(), "in no piece"
    modules = [module for modules in pieces.values() for module in modules]
    assert len(modules) == len(set(modules)), "in two pieces"


def test_piece_says_if_cuda_is_missing(tmp_path):
    said = call("piece", "1", code=2, OUT=str(tmp_path / "out"), CUDA_VISIBLE_DEVICES="")
    assert "no CUDA here: " in said
    assert contents(tmp_path) == {}


TORCH = "zeros = lambda *_, **__: None\n"


@pytest.fixture
def target(packed, tmp_path):
    """An unpacked pack with a torch, a harness and a pytest that are made up; its tests fail."""
    target = tmp_path / "target"
    call("unpack", packed, target)
    (target / "torch.py").write_text(TORCH)
    (target / "pytest.py").write_text("import sys\nprint('ran', *sys.argv[1:])\nsys.exit(1)\n")
    (target / "pytest_rlregress" / "scenarios").mkdir(parents=True)
    for package in (".", "scenarios"):
        (target / "pytest_rlregress" / package / "__init__.py").touch()
    return target


def test_a_piece_leaves_a_log_and_says_what_is_next(target, tmp_path):
    said = call("piece", "3", code=1, script=target / "card.sh", OUT=str(tmp_path / "out"), HW="h200")
    assert said.splitlines()[-1] == f"next: bring {tmp_path}/out/piece-3 home, then piece 4"
    log = (tmp_path / "out" / "piece-3" / "log.txt").read_text()
    [ran] = [line.split() for line in log.splitlines() if line.startswith("ran ")]
    assert {f"--rootdir={target}/pytest_rlregress/scenarios", "--hw=h200", "--durations=0"} <= set(ran)
    assert f"--rl-record-dir={tmp_path}/out/piece-3" in ran
    modules = call("pieces").splitlines()[2].split()[1:]
    assert ran[ran.index("--pyargs") + 1 :] == [f"pytest_rlregress.scenarios.{module}" for module in modules]


def test_goldens_are_written_into_the_packs_checkout_and_come_home(target, tmp_path):
    harness = target / "harness"
    (harness / "hardware_markers" / "goldens").mkdir(parents=True)
    (harness / "hardware_markers" / "goldens" / "old.json").write_text("{}")
    commit(harness, "harness")
    git(target, "clone", "-q", "--bare", "harness", "checkout.git")
    (target / "pytest.py").write_text(
        "import os, pathlib, sys\nassert '--rl-update-goldens' in sys.argv\n"
        "(pathlib.Path(os.environ['RLREGRESS_GOLDENS']) / 'new.json').write_text('1')\n"
    )
    said = call("piece", "6", script=target / "card.sh", OUT=str(tmp_path / "out"))
    assert "hardware_markers/goldens" in said.splitlines()[-1]
    assert {path.name for path in (tmp_path / "out" / "piece-6").iterdir()} == {"log.txt", "new.json"}


def test_counts_descriptors_by_kind(script):
    measure = script("card_measure")
    before = measure.count_descriptors()
    ends = [end for _ in range(2) for end in os.pipe()]
    assert measure.count_descriptors() - before == {"pipe": 4}
    for end in ends:
        os.close(end)
