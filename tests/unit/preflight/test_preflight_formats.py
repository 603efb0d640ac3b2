"""Configurations as they are written: every key with its line, and launch scripts as far as they can be read."""

from __future__ import annotations

import textwrap

import pytest
from installed import TESTS

from pytest_rlregress.preflight.document import read

CONFIGS = sorted((TESTS / "configs").iterdir())


@pytest.fixture
def config(tmp_path):
    """Read a text: ``config("toml", text, *overrides)``."""

    def config(suffix, text, *overrides, **environ):
        file = tmp_path / f"run.{suffix}"
        file.write_text(textwrap.dedent(text).strip(), encoding="utf-8")
        return read([str(file), *overrides], environ)

    return config


@pytest.mark.parametrize("file", CONFIGS, ids=lambda file: file.name)
def test_every_key_stands_in_its_line(file):
    lines = file.read_text(encoding="utf-8").splitlines()
    places = {key: place for key, place in read([str(file)], {}).places.items() if place.file == str(file)}
    assert len(places) > 15
    for key, place in places.items():
        name = key.rpartition(".")[2]
        assert name.isdecimal() or name in lines[place.line - 1]


def test_yaml(config):
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
    assert read.tree["critic"] == {"lr": 1, "list": [{"c": 1}, {"d": "${data.x}"}]}
    lines = {key: place.line for key, place in read.places.items()}
    assert [lines[key] for key in ("data.train_files", "data.x", "critic.lr", "critic.list.1.d")] == [4, 5, 3, 10]


def test_toml(config):
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


def test_overrides_are_laid_over(config):
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


def test_a_comment_ends_a_command_of_a_launch_script(config):
    read = config("sh", "python3 -m verl.trainer.main_ppo data.a=1 \\\n    # data.b=2 \\\n    data.c=3\n")
    assert read.tree == {"data": {"a": 1}}  # bash ends a comment, and with it the command, at the line's end


def test_references_are_followed(config):
    read = config("yaml", "data:\n  a: ${data.b}\n  b: ${.c}\n  c: 1\n  d: ${data.c}\n  e: ???\n  f: ${data.f}\n")
    assert [read.get(f"data.{key}", "default") for key in "abdefg"] == [1, 1, 1, None, None, "default"]


def test_a_launch_script(config):
    read = config(
        "sh",
        """
        #!/bin/bash
        # it's no quote
        export CUDA_DEVICE_MAX_CONNECTIONS=1 OTHER
        OTHER=2; HERE=3
        DATA=${DATA:-"${HOME}/data"}
        GPUS=$(nvidia-smi -L | wc -l)
        LENGTH=$((1024 * 2))
        cat <<EOF
        it's a here-document
        EOF
        ALLOC=a python3 -m verl.trainer.main_ppo --config-name='x.yaml' \\
            data.train_files="['$DATA/a.parquet','b']" \\
            data.max_prompt_length=$LENGTH \\
            trainer.n_gpus_per_node=$GPUS \\
            trainer.nnodes=${NODES} \\
            ++trainer.x='${oc.env:HOME}' \\
            trainer.logger=['console','wandb'] \\
            data.prompt='two
        lines' trainer.y=1 $@
        """,
        HOME="/home/me",
    )
    assert read.tree["data"] == {
        "train_files": ["/home/me/data/a.parquet", "b"],
        "max_prompt_length": "???",
        "prompt": "two lines",
    }
    assert read.tree["trainer"] == {
        "n_gpus_per_node": "???",
        "nnodes": "${oc.env:NODES,''}",
        "x": "${oc.env:HOME}",
        "logger": ["console", "wandb"],
        "y": 1,
    }
    assert {key: read.places[key].line for key in ("DATA", "trainer.nnodes", "trainer.y")} == {
        "DATA": 5,
        "trainer.nnodes": 15,
        "trainer.y": 18,
    }
    exported = {"CUDA_DEVICE_MAX_CONNECTIONS": "1", "OTHER": "2", "ALLOC": "a", "HOME": "/home/me"}
    assert {key: value for key, value in read.environ.items() if key not in ("LENGTH", "GPUS")} == exported


CHOICES = """
DEVICE=${DEVICE:-$(python3 -c 'import torch_npu' && echo npu || echo gpu)}
BACKEND=vllm
case "${DEVICE}" in
    gpu)
        CARDS=8 ;;
    npu|ascend)
        CARDS=16
        export ONLY_THERE=1
        ;;
    *)
        exit 1
        ;;
esac
case $BACKEND in
    vllm) SHARE=0.5 ;;
    *) SHARE=0.9 ;;
esac
COMMON=(
    data.a=1   # the first
    +data.b="['x','y']"
)
NEVER=(data.never=1)
if [ "$BACKEND" = "sglang" ]; then
    COMMON+=(data.c=1)
    WORD=sglang
elif [[ -z "$NOT_SET" && $BACKEND == vllm ]]; then
    COMMON+=(data.d=1)
    WORD=vllm
else
    WORD=neither
fi
if nvidia-smi; then COMMON+=(data.e=1); MAYBE=1; CARDS=8; else MAYBE=2; fi
[ "$BACKEND" = "sglang" ] && WORD=other
START=(uv run --no-sync python3)
"${START[@]}" -m verl.trainer.main_ppo model_engine=megatron "${COMMON[@]}" \\
    data.share=$SHARE \\
    data.word=$WORD data.maybe=$MAYBE \\
    trainer.n_gpus_per_node=$CARDS "$@" 2>&1 | tee log
"""


def test_arrays_and_conditions_of_a_launch_script(config):
    read = config("sh", CHOICES)
    assert read.tree["data"] == {
        "a": 1,
        "b": ["x", "y"],
        "d": 1,
        "e": "???",  # behind a condition that only the machine of the run can tell
        "share": 0.5,
        "word": "vllm",
        "maybe": "???",
    }
    assert (read.tree["trainer"], read.tree["model_engine"]) == ({"n_gpus_per_node": 8}, "megatron")
    assert read.program == "verl.trainer.main_ppo"
    assert (read.signs["data.b"], read.signs["data.a"]) == ("+", "")
    assert "ONLY_THERE" not in read.environ
    lines = CHOICES.strip().splitlines()
    assert [lines[read.places[key].line - 1].split()[0] for key in ("data.a", "data.share")] == [
        "data.a=1",
        "data.share=$SHARE",
    ]


def test_an_override_replaces_a_list(config):
    read = config("yaml", "data:\n  files:\n    - a\n    - b\n", "data.files=[c]", "data.x=1", "data.x.y=2")
    assert list(read.leaves("data")) == [("data.files.0", "c"), ("data.x.y", 2)]
    assert str(read.place("data.files.0")) == "data.files=[c]"
