"""Hardware profiles as written: those that ship, and those of users with every mistake named."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_rlregress import hardware
from pytest_rlregress.hardware import HardwareError

PROFILES = hardware.load_profiles()


def test_ships_the_documented_profiles():
    assert set(PROFILES) == {
        *("cpu", "h20", "h100", "h200", "b200", "a100", "a6000", "l4", "rtx-5070-ti", "rtx-pro-6000-blackwell", "t4")
    }
    assert [profile.id for profile in PROFILES.values() if profile.is_cpu] == ["cpu"]


def test_profile_without_a_ray_accelerator_is_read(tmp_path):
    text = PROFILES["h100"].source.read_text()
    for name, lines in ("named", text), ("nameless", text.replace('ray_accelerator = "H100"', "")):
        (tmp_path / f"{name}.toml").write_text(lines)
    found = hardware.load_profiles([tmp_path])
    assert (found["named"].ray_accelerator, found["nameless"].ray_accelerator) == ("H100", None)
    assert found["cpu"].ray_accelerator is None


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
def test_budgets_are_sound(profile):
    noise, stale = (5e-7, 0.019) if profile.is_cpu else (0.0012, 0.019)
    # Clear of both by a factor of two at least, or the step could not tell a stale weight from rounding.
    assert 2 * noise < profile.step["logprob_tolerance"] < stale / 2
    assert profile.step["prompts"] * profile.step["samples_per_prompt"] >= 16  # learning was seen with 16
    if not profile.is_cpu:
        # The whole engine: room for its CUDA context, no million Python objects for the cache.
        assert 4 <= profile.memory_gib * profile.step["gpu_memory_utilization"] <= 12
    assert profile.step["learn_steps"] == 40


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "title",
            "tilte",
            r"mine.toml: key 'tilte': unknown; allowed: title, nvml_names, features, step, capability, memory_gib",
        ),
        ("prompts =", "prompt =", r"mine.toml: step: key 'prompt': unknown; allowed: prompt_length, "),
        ('"H100"', '"H 100"', r"'ray_accelerator': 'H 100' is not allowed; allowed: a name of Ray's, like \"H100\""),
        ("learn_steps = 40", "", r"step: key 'learn_steps': missing; allowed: a whole number of at least 1"),
        (
            "learn_steps = 40",
            "learn_steps = true",
            r"step: key 'learn_steps': True is not allowed; allowed: a whole number",
        ),
        ('"9.0"', "9.0", r"'capability': 9.0 is not allowed; allowed: a text such as \"9.0\""),
        ('"bf16"', '"bf61"', r"'features': \['bf61', 'fp8'\] is not allowed; allowed: a list from bf16, fp8, fp4"),
        ("HBM3", "HBM[3", r"regular expressions; 'NVIDIA H100 80GB HBM\[3' isn't one: unterminated"),
        ("samples_per_prompt = 2", "samples_per_prompt = 1", r"at least 2 \(a group\)"),
        (
            "max_model_len = 512",
            "max_model_len = 255",
            r"'max_model_len': 255 is not allowed; allowed: prompt_length .* 256, or more",
        ),
        (
            'dtype = "bfloat16"',
            'dtype = "fp16"',
            r"step: key 'dtype': 'fp16' is not allowed; allowed: float32, bfloat16, float16",
        ),
        ("[step]", "[step", r"not readable as TOML: .*line"),
    ],
)
def test_rejects_malformed_profiles(tmp_path, old, new, message):
    text = PROFILES["h100"].source.read_text()
    assert old in text
    file = tmp_path / "mine.toml"
    file.write_text(text.replace(old, new, 1))
    with pytest.raises(HardwareError, match=message) as refused:
        hardware.load_profiles([tmp_path])
    assert str(refused.value).startswith(f"{file}: ")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("h100.toml", None, r"h100.toml: the id 'h100'.* is already that of .*hardware_markers/h100.toml"),
        ("auto.toml", None, r"auto.toml: the file's name is the profile's id"),
        ("My Card.toml", None, r"Allowed: small letters, digits and hyphens"),
        ("latin.toml", b"title = '\xe9'", r"latin.toml: not readable as TOML: .*utf-8"),
        ("readme.md", b"", r"rlregress_hardware: .* isn't a folder with hardware profiles"),
    ],
)
def test_rejects_unusable_profile_files(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(PROFILES["h100"].source.read_bytes() if content is None else content)
    with pytest.raises(HardwareError, match=message):
        hardware.load_profiles([tmp_path])


def test_rejects_a_missing_folder():
    with pytest.raises(HardwareError, match=r"/nowhere isn.t a folder"):
        hardware.load_profiles([Path("/nowhere")])
