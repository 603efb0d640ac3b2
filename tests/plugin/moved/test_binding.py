"""Names and calls of a made trainer against two made engines, by the real type checker."""

import shutil
import sysconfig
from pathlib import Path

import pytest
from made_wheels import make_wheel, open_releases

from pytest_rlregress.commands.moved import binding
from pytest_rlregress.commands.moved.binding import find_unbound
from pytest_rlregress.commands.moved.facts import Facts
from pytest_rlregress.commands.moved.index import NotRead
from pytest_rlregress.commands.moved.wheels import PYTHON, TRAINER

TRAINER_SOURCE = """
from vllm.outputs import Output, gone_name
from vllm.engine import Engine

try:
    from vllm.outputs import guarded_name
except ImportError:
    guarded_name = None

if is_vllm_available(min_version="2.0"):
    from vllm.new import only_new
else:
    from vllm.outputs import only_old


class Server:
    def __init__(self):
        self.engine = Engine.make()

    def abort(self):
        return self.engine.pause(wait=True)

    def start(self):
        self.engine.start(1, 2)
        return self.engine.state


def typo(value: int):
    return value.nothing
"""
OUTPUTS = "class Output: ...\ndef gone_name(): ...\ndef guarded_name(): ...\ndef only_old(): ...\n"
ENGINE = """
class Engine:
    state: int = 0
    @classmethod
    def make(cls) -> "Engine":
        return cls()
    def pause(self, *, wait: bool = False) -> None: ...
    def start(self, first: int, second: int) -> None: ...
"""
NEW_ENGINE = (
    ENGINE.replace(", *, wait: bool = False", "").replace(", second: int", "").replace("state: int", "status: int")
)


@pytest.fixture
def read(tmp_path):
    make_wheel(tmp_path, "trl", "9001.0", {"trl/__init__.py": "", "trl/server.py": TRAINER_SOURCE})
    old = {"vllm/__init__.py": "", "vllm/outputs.py": OUTPUTS, "vllm/engine.py": ENGINE}
    new = {**old, "vllm/outputs.py": "class Output: ...\n", "vllm/engine.py": NEW_ENGINE}
    make_wheel(tmp_path, "vllm", "1.0", old)
    make_wheel(tmp_path, "vllm", "2.0", {**new, "vllm/new.py": "only_new = 1\n"})
    releases = open_releases(tmp_path, links=[tmp_path])
    trainer = releases.read("trl", "9001.0", TRAINER)
    engines = releases.read("vllm", "1.0", PYTHON), releases.read("vllm", "2.0", PYTHON)
    return lambda: find_unbound(trainer, engines, "vllm", Facts(tmp_path / "facts"))


@pytest.mark.skipif(
    not (shutil.which("ty") or Path(sysconfig.get_path("scripts"), "ty").is_file()), reason="ty is an extra"
)
def test_finds_names_and_calls_that_no_longer_bind(read):
    found = {(one.rule, one.function, one.guarded) for one in read()}
    assert found == {
        ("missing-module-member", "", False),  # gone_name
        ("missing-module-member", "", True),  # guarded_name
        ("unknown-argument", "abort", False),  # through a class method, and an attribute
        ("too-many-positional-arguments", "start", False),
        ("missing-attribute", "start", False),
    }


def test_without_the_checker_it_is_not_read(read, monkeypatch):
    def find_nothing():
        raise NotRead("names and calls: the type checker ty isn't installed here")

    monkeypatch.setattr(binding, "find_checker", find_nothing)
    with pytest.raises(NotRead, match="type checker"):
        read()
