import pytest
from made_wheels import make_wheel, open_releases

from pytest_rlregress.commands.moved.renames import (
    find_message,
    find_new_name,
    find_same_name,
    find_translations,
    list_messages,
    translate,
)
from pytest_rlregress.commands.moved.wheels import TRAINER

MIGRATION = """
def migrate_legacy_reward(config):
    if config.reward_model.num_workers is not None:
        config.reward.num_workers = config.reward_model.num_workers
    config.reward.custom_reward_function = config.custom_reward_function
    for key in ["enable", "nnodes"]:
        config.reward.reward_model[key] = config.reward_model[key]
    legacy_rollout = config.reward_model.rollout
    for key in legacy_rollout.keys():
        config.reward.reward_model.rollout[key] = legacy_rollout[key]

def other(config):
    config.a.b = config.c.d
"""
WARNS = '''
class Config:
    """
    Args:
        clip (`float`, *optional*, defaults to `1.0`):
            Clips. Deprecated, use `clip_grad` instead.
        kept (`int`):
            Nothing goes.
    """
    def __post_init__(self):
        warnings.warn("The `old_name` argument is deprecated. Please use `new_name` instead.", FutureWarning)
        warnings.warn(f"`gone` is deprecated and will be removed in {version}.")
'''


def read(tmp_path, text):
    make_wheel(tmp_path, "thing", "1.0", {"thing/config.py": text})
    return open_releases(tmp_path, links=[tmp_path]).read("thing", "1.0", TRAINER)


def test_reads_translations_from_code(tmp_path):
    found = find_translations(read(tmp_path, MIGRATION))
    assert translate("reward_model.num_workers", found) == "reward.num_workers"
    assert translate("reward_model.enable", found) == "reward.reward_model.enable"
    assert translate("reward_model.rollout.name", found) == "reward.reward_model.rollout.name"
    assert translate("custom_reward_function.path", found) == "reward.custom_reward_function.path"
    assert translate("c.d", found) == ""


@pytest.mark.parametrize(
    ("name", "new"), [("old_name", "new_name"), ("clip", "clip_grad"), ("gone", ""), ("kept", ""), ("never", "")]
)
def test_reads_new_names_from_messages(tmp_path, name, new):
    message, found = find_message(name, [list_messages(read(tmp_path, WARNS)), []])
    assert found == new
    assert bool(message) is (name not in ("kept", "never"))


@pytest.mark.parametrize(
    ("message", "new"),
    [
        ("`warmup_style` is deprecated, use `lr_scheduler_type` instead.", "lr_scheduler_type"),
        ("Please use --new_name.", "new_name"),
        ("Use the trainer instead.", ""),
        ("It is renamed to `a.b_c`.", "a.b_c"),
    ],
)
def test_finds_the_new_name_in_a_message(message, new):
    assert find_new_name(message, "warmup_style") == new


def test_prefers_a_new_key_of_the_same_section():
    known = {"critic.fsdp.offload", "actor.fsdp_config.offload", "critic.model.offload"}
    old = {"critic.model.fsdp_config.offload", "actor.fsdp_config.offload", "critic.model.offload"}
    assert find_same_name("critic.model.fsdp_config.offload", known, old) == "critic.fsdp.offload"
    assert find_same_name("reward.offload", known - {"critic.fsdp.offload"}, old) == ""
