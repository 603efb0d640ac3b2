from dataclasses import replace
from itertools import count

import pytest

from pytest_rlregress.failures.act import act
from pytest_rlregress.failures.silent import silent
from pytest_rlregress.scenarios.weight_sync.policies import generated_off, scored_off, tolerance

pytestmark = pytest.mark.isolated(group="weight_sync lora")
PEFT = pytest.mark.needs("peft", "transformers")
IN_PLACE = pytest.mark.needs("vllm.lora.request:LoRARequest(load_inplace)")
UNUSED = count(1)  # the engine outlives a test, and what it knows of an id


@pytest.fixture
def policies(adapted):
    """Two versions of a policy, each the model with another adapter."""
    return adapted(1), adapted(2)


def saved(policy, folder):
    policy.save_pretrained(folder)
    return str(folder)


def check_serves(engine, policy, request):
    off = max(measure(replace(engine, lora=request), policy) for measure in (scored_off, generated_off))
    if not off <= tolerance(policy):
        silent(f"{off:.2g} nats a token from the adapter that was asked for")


@PEFT
@pytest.mark.reproduces("lora-same-id-stale")
@pytest.mark.parametrize("folder", ["another", "rewritten"])
def test_same_id(vllm_lora, policies, tmp_path, folder):
    from vllm.lora.request import LoRARequest

    number = next(UNUSED)
    with act():
        first = saved(policies[0], tmp_path / "0")
        check_serves(vllm_lora, policies[0], LoRARequest(f"policy {number}", number, first))
        second = saved(policies[1], tmp_path / ("0" if folder == "rewritten" else "1"))
        check_serves(vllm_lora, policies[1], LoRARequest(f"policy {number}", number, second))


@PEFT
@pytest.mark.reproduces("lora-same-id-stale")
@pytest.mark.parametrize("way", ["new-id", pytest.param("in-place", marks=IN_PLACE)])
def test_cached_prompt(vllm_lora, policies, tmp_path, way):
    """The adapter's bytes are the new ones; of a prompt the cache has the old one's keys, by name and path."""
    from vllm.lora.request import LoRARequest

    number = next(UNUSED)
    name, later = f"policy {number}", next(UNUSED)
    check_serves(vllm_lora, policies[0], LoRARequest(name, number, saved(policies[0], tmp_path)))
    saved(policies[1], tmp_path)
    with act():
        if way == "in-place":
            request = LoRARequest(name, number, str(tmp_path), load_inplace=True)
        else:
            request = LoRARequest(name, later, str(tmp_path))
        assert scored_off(replace(vllm_lora, lora=request), policies[1]) <= tolerance(policies[1]), "old adapter"
        check_serves(vllm_lora, policies[1], LoRARequest(name, request.lora_int_id, str(tmp_path)))


@PEFT
@pytest.mark.guards("lora-same-id-stale")
def test_each_version_is_served(vllm_lora, subject, policies, tmp_path):
    name = f"policy {next(UNUSED)}"
    folders = [saved(policy, tmp_path / str(number)) for number, policy in enumerate(policies)]
    with act():
        for version in (0, 1, 0, 1):
            check_serves(vllm_lora, policies[version], subject(name, version, folders[version]))


@PEFT
@pytest.mark.guards("lora-same-id-stale")
def test_one_folder_for_all_versions(vllm_lora, subject, policies, tmp_path):
    name = f"policy {next(UNUSED)}"
    with act():
        for version in range(4):
            policy = policies[version % 2]
            check_serves(vllm_lora, policy, subject(name, version, saved(policy, tmp_path)))


@pytest.mark.guards("lora-same-id-stale")
@pytest.mark.needs("vllm")
def test_an_id_and_a_name_for_each_version(subject, tmp_path):
    names, versions = ["policy", "policy1", "policy 1", "reference"], [*range(300), 2**31, 2**40]
    made = {(name, version): subject(name, version, tmp_path) for name in names for version in versions}
    assert len({request.lora_int_id for request in made.values()}) == len(made)
    assert len({request.lora_name for request in made.values()}) == len(made)
    assert max(request.lora_int_id for request in made.values()) >= 2**62, "ids of less than 63 bits"
    for (name, version), request in made.items():
        again = subject(name, version, str(tmp_path))
        assert (request.lora_int_id, request.lora_name) == (again.lora_int_id, again.lora_name)
        assert 0 < request.lora_int_id < 2**63
        assert request.lora_path == str(tmp_path)
