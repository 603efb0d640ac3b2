"""Files and overrides that are broken or mean: an error that names them, or what can be read of them."""

from __future__ import annotations

import contextlib
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_rlregress.commands.preflight import preflight_command
from pytest_rlregress.commands.preflight.command import read
from pytest_rlregress.commands.preflight.config import ConfigError

BASE = "data: {train_batch_size: 256}\nactor_rollout_ref: {model: {path: Qwen/Qwen2.5-7B}}\n"
LAUGH = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 9)
)
ODD = {
    "null key": "extra: {null: 1}",
    "date key": "extra: {2026-01-01: 1}",
    "list key": "extra: {[a]: 1}",
    "laughs": LAUGH,
    "holds itself": "a: &a [*a]",
    "table that holds itself": "a: &a {b: *a}",
    "deep": "a: " + "[" * 5000,
    "tag": "a: !!python/object/apply:os.system [true]",
    "control": "a: \x1b[31m",
    "two documents": "---\na: 1",
}


@pytest.fixture
def check(tmp_path):
    """Read a text as a configuration, and put it to every rule."""

    def check(content, suffix="yaml", *overrides):
        file = tmp_path / f"run.{suffix}"
        file.write_text(content, encoding="utf-8", errors="replace")
        run = read([str(file), *overrides], {})
        return preflight_command.check(run)

    return check


@pytest.mark.parametrize("text", ODD.values(), ids=ODD)
def test_odd_file_is_named(check, text):
    with pytest.raises(ConfigError, match=r"run\.yaml"):
        check(f"{BASE}{text}\n")


@pytest.mark.parametrize("key", ["1", "1.5", "true", "on"])
def test_key_that_is_a_number_or_a_truth_value_is_a_name(check, key):
    check(f"{BASE}extra: {{{key}: 1}}\n")


@pytest.mark.parametrize("value", ["${oc.env:HOME/ckpt", "${", "${a.${b}", "${oc.env:HOME}", "${nowhere}"])
def test_reference_is_followed_or_named(check, value):
    pytest.importorskip("omegaconf")
    with contextlib.suppress(ConfigError):
        check(f"{BASE}trainer: {{default_local_dir: '{value}'}}\n")
    if value in ("${oc.env:HOME/ckpt", "${"):
        with pytest.raises(ConfigError, match=r"run\.yaml:3: trainer\.default_local_dir: .* isn't a value"):
            check(f"{BASE}trainer: {{default_local_dir: '{value}'}}\n")


def test_pipe_is_no_configuration(tmp_path):
    os.mkfifo(tmp_path / "run.yaml")
    with pytest.raises(ConfigError, match="not a regular file"):
        read([str(tmp_path / "run.yaml")], {})


def test_long_toml_is_read_at_once(check):
    check("[model]\nname = 'a/b'\n" + "".join(f"[t{i}]\na = 1\n" for i in range(20_000)), "toml")


VALUES = st.recursive(
    st.sampled_from(["8", "-1", "0", "null", "true", ".inf", ".nan", "1e400", "''", "a", "${x}", "???", "2026-01-01"]),
    lambda inside: (
        st.lists(inside, max_size=3).map(lambda some: f"[{', '.join(some)}]")
        | st.dictionaries(st.sampled_from(["a", "b", "1"]), inside, max_size=2).map(
            lambda table: f"{{{', '.join(f'{key}: {value}' for key, value in table.items())}}}"
        )
    ),
    max_leaves=4,
)
KEYS = st.sampled_from(
    [
        *(
            "data",
            "actor_rollout_ref",
            "trainer",
            "algorithm",
            "critic",
            "data.train_batch_size",
            "data.max_prompt_length",
        ),
        *(
            "actor_rollout_ref.model.path",
            "actor_rollout_ref.rollout.n",
            "actor_rollout_ref.rollout.name",
            "trainer.n_gpus_per_node",
        ),
        *("actor_rollout_ref.actor.ppo_mini_batch_size", "actor_rollout_ref.rollout.tensor_model_parallel_size"),
        *(
            "actor_rollout_ref.rollout.gpu_memory_utilization",
            "algorithm.adv_estimator",
            "actor_rollout_ref.actor.strategy",
        ),
        *(
            "model_name_or_path",
            "num_generations",
            "use_vllm",
            "per_device_train_batch_size",
            "env",
            "loss_type",
            "report_to",
        ),
        *(
            "actor_rollout_ref.actor.ppo_max_token_len_per_gpu",
            "trainer.logger",
            "actor_rollout_ref.rollout.engine_kwargs",
        ),
    ]
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(KEYS, VALUES), max_size=6))
def test_any_value_of_a_known_key_is_checked_or_refused(check, given):
    with contextlib.suppress(ConfigError):
        check(BASE, "yaml", *(f"{key}={value}" for key, value in given))


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(KEYS.filter(lambda key: "." not in key), VALUES), max_size=6))
def test_any_value_in_a_file_is_checked_or_refused(check, given):
    with contextlib.suppress(ConfigError):
        check("".join(f"{key}: {value}\n" for key, value in given))


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(), st.sampled_from(["yaml", "toml", "yml", "py", "txt"]))
def test_any_text_is_a_configuration_or_refused(check, content, suffix):
    with contextlib.suppress(ConfigError):
        check(content, suffix)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(alphabet=st.characters(exclude_characters="\0")))
def test_any_word_is_an_override_or_refused(check, word):
    with contextlib.suppress(ConfigError):
        check(BASE, "yaml", word)
