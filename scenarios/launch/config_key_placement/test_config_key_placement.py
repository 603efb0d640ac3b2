import tomllib
from copy import deepcopy
from importlib import import_module
from itertools import combinations
from pathlib import Path

import pytest

from pytest_rlregress.failures.act import act
from pytest_rlregress.util.nested import walk

WORKS = (Path(__file__).parent / "h100_shared.toml").read_text()

# By the key that is refused: what stood there instead of what.
WRONG = {
    "seq_len": ("max_steps = 1000", "max_steps = 1000\nseq_len = 1024"),
    "orchestrator.sampling.top_p": ("max_tokens = 2000", "max_tokens = 2000\ntop_p = 0.95"),
    "orchestrator.buffer.type": ("online_difficulty_filtering = true", 'type = "online-difficulty"'),
    "trainer.model.ac": ("ac = { freq = 1 }", 'ac = "selective"'),
    "trainer.fsdp_cpu_offload": ("[trainer.model]", "[trainer]\nfsdp_cpu_offload = true\n\n[trainer.model]"),
    "orchestrator.env": ("[[orchestrator.env]]", "[orchestrator.env]"),
}
# What stands there with the key in its place, where that is not what works already.
RIGHT = {
    "seq_len": ("rollouts_per_example = 2\nseq_len = 2048", "rollouts_per_example = 2\nseq_len = 1024"),
    "trainer.fsdp_cpu_offload": ("[trainer.model]", "[trainer.model]\nfsdp_cpu_offload = true"),
}
# Where else the two were looked for: the header of the table and the line.
OTHER_TABLES = [
    *((table, "seq_len = 2048") for table in ("model", "orchestrator.sampling", "inference", "inference.model")),
    *((table, "fsdp_cpu_offload = true") for table in ("model", "orchestrator", "inference")),
]
# What the check must leave alone: an environment's own arguments, sampling for evaluation.
FREE = """
[orchestrator.env.args]
seq_len = 5
type = "math"
top_p = 0.5

[orchestrator.eval.sampling]
top_p = 0.95
"""


def written(*keys):
    text = WORKS
    for key in keys:
        text = text.replace(*WRONG[key], 1)
    return text


def refused(text):
    """The keys at which the schema refuses a file."""
    from pydantic import ValidationError

    try:
        load(text)
    except ValidationError as error:
        return {".".join(map(str, one["loc"])) for one in error.errors()}
    return set()


def load(text):
    from pytest_rlregress.scenarios.launch.config_key_placement import prime_rl

    return prime_rl.RLConfig.model_validate(tomllib.loads(text))


@pytest.mark.reproduces("config-key-placement")
@pytest.mark.parametrize("key", WRONG)
def test_key_in_the_wrong_place(key):
    with act():
        load(written(key))


@pytest.mark.reproduces("config-key-placement", fidelity="real")
@pytest.mark.needs("prime-rl")
@pytest.mark.parametrize("key", WRONG)
def test_prime_rl_itself(key):
    installed = None
    for module in ("prime_rl.configs.rl", "prime_rl.rl_config", "prime_rl.rl"):  # newest first
        try:
            installed = import_module(module)
            break
        except ModuleNotFoundError:
            continue
    assert installed, "RLConfig is in none of the modules it was in"
    config = tomllib.loads(written(key))
    with act():
        installed.RLConfig.model_validate(config)


@pytest.mark.guards("config-key-placement")
@pytest.mark.parametrize("text", [WORKS, WORKS.replace("[inference]", FREE + "\n[inference]")], ids=["h100", "free"])
def test_what_works_is_left_alone(subject, text):
    assert refused(text) == set()
    with act():
        assert subject(tomllib.loads(text)) == []


@pytest.mark.guards("config-key-placement")
@pytest.mark.parametrize("number", range(1, len(WRONG) + 1))
def test_every_wrong_place_is_named(subject, number):
    with act():
        for keys in combinations(WRONG, number):
            text = written(*keys)
            found = [one.key for one in subject(tomllib.loads(text))]
            assert sorted(found) == sorted(keys)
            assert found == [key for key, _ in walk(tomllib.loads(text)) if key in keys]
            assert refused(text) <= set(found)


@pytest.mark.guards("config-key-placement")
@pytest.mark.parametrize(("table", "line"), OTHER_TABLES)
def test_key_in_any_other_table_is_named(subject, table, line):
    key = line.partition(" ")[0]
    for there in (line, f"{key} = 2026-01-01"):  # a date, of which JSON has none
        text = WORKS.replace(f"[{table}]", f"[{table}]\n{there}")
        [advice] = subject(tomllib.loads(text))
        assert advice.key == f"{table}.{key}"
        assert advice.why
        assert refused(text) <= {advice.key}


@pytest.mark.guards("config-key-placement")
@pytest.mark.parametrize("key", WRONG)
def test_what_to_write_instead_works(subject, key):
    config = tomllib.loads(written(key))
    before = deepcopy(config)
    with act():
        [advice] = subject(config)
    assert config == before
    *tables, name = advice.key.split(".")
    place = config
    for table in tables:
        place = place[table]
    del place[name]
    merge(config, tomllib.loads(advice.instead))
    from pytest_rlregress.scenarios.launch.config_key_placement import prime_rl

    right = prime_rl.RLConfig.model_validate(config)
    assert right == load(WORKS.replace(*RIGHT.get(key, ("", ""))))


def merge(config, more):
    for key, value in more.items():
        if isinstance(value, dict):
            merge(config.setdefault(key, {}), value)
        else:
            config[key] = value
