"""Configurations as they are written: every key with its line, and commands as a shell hands them over."""

from __future__ import annotations

import shlex
import textwrap

import pytest
from installed import TESTS

from pytest_rlregress.commands.preflight.command import read

CONFIGS = sorted(file for file in (TESTS / "configs").iterdir() if file.suffix != ".sh")


@pytest.fixture
def config(tmp_path):
    """Read a text: ``config("toml", text, *overrides)``."""

    def config(suffix, text, *overrides, **environ):
        file = tmp_path / f"run.{suffix}"
        file.write_text(textwrap.dedent(text).strip(), encoding="utf-8")
        return read([str(file), *overrides], environ)

    return config


@pytest.mark.parametrize("file", CONFIGS, ids=lambda file: file.name)
def test_each_key_has_its_line_number(file):
    lines = file.read_text(encoding="utf-8").splitlines()
    places = {key: place for key, place in read([str(file)], {}).places.items() if place.file == str(file)}
    assert len(places) > 15
    for key, place in places.items():
        name = key.rpartition(".")[2]
        assert name.isdecimal() or name in lines[place.line - 1]


def test_reads_yaml_with_line_numbers(config):
    read = config(
        "yaml",
        """
        # anchors, flow style, lists
        base: &base
          lr: 1
        data: {train_files: [a, b],
               "x": 1}
        critic:
          <<: *base
          list:
            - c: 1
            - d: ${data.x}
        """,
    )
    assert read.tree["critic"] == {"lr": 1, "list": [{"c": 1}, {"d": 1}]}
    lines = {key: place.line for key, place in read.places.items()}
    assert [lines[key] for key in ("data.train_files", "data.x", "critic.lr", "critic.list.1.d")] == [4, 5, 3, 10]


def test_reads_toml_with_line_numbers(config):
    read = config(
        "toml",
        '''
        [trainer]
        list = [
          1,  # ]
        ]
        text = """
        [orchestrator]
        """
        a.b = 1

        [[orchestrator.env]]
        id = "one"
        [[orchestrator.env]]
        id = "two"
        ''',
    )
    lines = {key: place.line for key, place in read.places.items()}
    keys = ("trainer.list", "trainer.text", "trainer.a.b", "orchestrator", "orchestrator.env.0.id")
    assert [lines[key] for key in keys] == [2, 5, 8, 10, 11]
    assert lines["orchestrator.env.1"] == 12


def test_applies_overrides(config):
    read = config(
        "yaml",
        "data:\n  a: 1\n  b: 2\n",
        "data.a=3",
        "++data.c.d=[1,2]",
        "~data.b",
        "data.e=x=y",
        "data.f={b:1,c:{d:2}}",
    )
    assert read.tree == {"data": {"a": 3, "c": {"d": [1, 2]}, "e": "x=y", "f": {"b": 1, "c": {"d": 2}}}}
    assert str(read.place("data.a")) == "data.a=3"


def test_follows_references(config):
    read = config("yaml", "data:\n  a: ${data.b}\n  b: ${.c}\n  c: 1\n  d: ${data.c}\n  e: ???\n  f: ${data.f}\n")
    assert [read.get(f"data.{key}", "default") for key in "abdefg"] == [1, 1, 1, None, None, "default"]


def test_reads_a_command():
    words = shlex.split(
        "env ALLOC=a nohup uv run python3 -u -m verl.trainer.main_ppo model_engine=megatron data.files=[a,b] +data.b=1 "
        "data.text='two words' trainer.nnodes= data.b=2 other=1 --config-name=mine"
    )
    read_here = read(["data.b=3"], {"HOME": "/home/me"}, words)
    assert read_here.tree == {
        "model_engine": "megatron",
        "data": {"files": ["a", "b"], "b": 3, "text": "two words"},
        "trainer": {"nnodes": None},
    }
    assert read_here.environ == {"HOME": "/home/me", "ALLOC": "a"}
    assert (read_here.files, read_here.title) == ((), "verl.trainer.main_ppo")
    assert [str(read_here.place(key)) for key in ("data.text", "data.b", "ALLOC")] == [
        "data.text=two words",
        "data.b=3",
        "ALLOC=a",
    ]
    assert str(read_here.place("critic")) == read_here.title


def test_an_override_replaces_a_list(config):
    read = config("yaml", "data:\n  files:\n    - a\n    - b\n", "data.files=[c]", "data.x=1", "data.x.y=2")
    assert list(read.leaves("data")) == [("data.files.0", "c"), ("data.x.y", 2)]
    assert str(read.place("data.files.0")) == "data.files=[c]"
