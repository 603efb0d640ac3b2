"""``rlregress preflight``: the documented working configurations are clean, and each wrong edit of one is found."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from commands import TOY, command_of
from installed import TESTS
from packaging.specifiers import SpecifierSet
from packaging.version import Version
from patience import PATIENCE

from pytest_rlregress import remedies
from pytest_rlregress.cli import main
from pytest_rlregress.commands.preflight import preflight_command
from pytest_rlregress.commands.preflight.config import PlannedRun
from pytest_rlregress.commands.preflight.rules import OWN, RULES
from pytest_rlregress.failures import catalogue
from pytest_rlregress.hardware import Gpu, Machine
from pytest_rlregress.remedies.advice import Advice

CONFIGS = TESTS / "configs"
WORKING = {
    "prime-rl-h100-7b-lora.toml": "h100",
    "prime-rl-2xa6000-7b-lora.toml": "a6000",
    "prime-rl-2xa6000-20b-offload.toml": "a6000",
    "verl-h200-gspo-3b.yaml": "h200",
    "verl-rtx-pro-6000-sdpa.yaml": "rtx-pro-6000-blackwell",
    "verl-rtx-pro-6000-megatron.yaml": "rtx-pro-6000-blackwell",
}
V5, TWO_CARDS, OFFLOAD, GSPO, SDPA, MEGATRON = WORKING


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "DATA", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def old_engine(monkeypatch):
    """A run whose vLLM is older than what a rule asks for."""
    monkeypatch.setattr(PlannedRun, "is_release", lambda run, package, specifier: package != "vllm")


@pytest.fixture
def everything_installed(monkeypatch):
    monkeypatch.setattr(remedies, "missing_symbol", lambda setting: None)
    monkeypatch.setattr(remedies, "missing_kernels", lambda capability: None)
    monkeypatch.setattr(remedies, "module_not_found", lambda *asked: None)
    monkeypatch.setattr(remedies, "stale_ray_address", lambda environ: None)


@pytest.mark.parametrize(("name", "hw"), WORKING.items())
@pytest.mark.parametrize("installed", [(), ("--installed",)])
def test_a_documented_working_configuration_is_clean(preflight, everything_installed, name, hw, installed):
    code, report = preflight(CONFIGS / name, f"--hw={hw}", *installed)
    assert report["findings"] == []
    assert code == 0
    assert {"gpu-memory-utilization", "windows-path-in-wsl"} <= set(report["checked"])
    assert ("trainer-engine-oom" in report["checked"]) == (name not in (OFFLOAD, MEGATRON))  # of which FSDP is known


FULL = "\n# Every layer: saves about 20 GB.\n[trainer.model.ac]"
WRONG_EDITS = [  # file, what it says, what somebody writes instead, failure, what to write
    (V5, "max_steps = 1000", "seq_len = 2048", "config-key-placement", "[orchestrator]\nseq_len = 2048"),
    (V5, f"{FULL}\nfreq = 1", 'ac = "selective"', "config-key-placement", "ac = { freq = 1 }"),
    (V5, "online_difficulty_filtering = true", 'type = "online"', "config-key-placement", "filtering = true"),
    (V5, "max_tokens = 2000", "max_tokens = 2000\ntop_p = 0.9", "config-key-placement", "no top_p in"),
    (V5, "[[orchestrator.env]]", "[orchestrator.env]", "config-key-placement", "[[orchestrator.env]]"),
    (
        V5,
        'name = "Qwen/Qwen2.5-7B-Instruct"',
        'name = "Qwen/Qwen2.5-7B-Instruct"\nfsdp_cpu_offload = true',
        "config-key-placement",
        "[trainer.model]\nfsdp_cpu_offload = true",
    ),
    (V5, "max_tokens = 2000", "max_tokens = 4000", "max-tokens-overflow", "max_tokens = 2048"),
    (V5, "utilization = 0.50", "utilization = 0.9", "gpu-memory-utilization", "gpu_memory_utilization = 0.5"),
    (
        V5,
        "seq_len = 2048",
        "seq_len = 2048\nfsdp_cpu_offload = true",
        "fsdp-cpu-offload-lora",
        "fsdp_cpu_offload = false",
    ),
    (OFFLOAD, "fsdp_cpu_offload = true", "fsdp_cpu_offload = false", "trainer-engine-oom", "fsdp_cpu_offload = true"),
    (V5, "Qwen/Qwen2.5-7B-Instruct", "C:/Users/me/Qwen2.5-7B", "windows-path-in-wsl", "/mnt/c/Users/me/Qwen2.5-7B"),
    (
        GSPO,
        "max_response_length: 1024",
        "max_response_length: 1025",
        "max-tokens-overflow",
        "max_response_length: 1024",
    ),
    (GSPO, "gpu_memory_utilization: 0.4", "gpu_memory_utilization: 0.99", "gpu-memory-utilization", "utilization: 0.7"),
    (GSPO, "per_node: 1", "per_node: ${oc.env:ARNOLD_WORKER_GPU}", "empty-env-in-config", "ARNOLD_WORKER_GPU"),
    (GSPO, "/data/aime-2024/data/", "D:\\data\\", "windows-path-in-wsl", "/mnt/d/data/aime-2024.parquet"),
]


def edited(tmp_path, name, right, wrong):
    """A copy with one edit, and the line of the edit's last line in it."""
    text = (CONFIGS / name).read_text(encoding="utf-8")
    assert right in text
    before, _, after = text.partition(right)
    copy = tmp_path / name
    copy.write_text(f"{before}{wrong}{after}", encoding="utf-8")
    return copy, f"{before}{wrong}".count("\n") + 1


@pytest.mark.parametrize(("name", "right", "wrong", "failure", "instead"), WRONG_EDITS)
def test_a_wrong_edit_is_found_where_it_was_made(preflight, tmp_path, name, right, wrong, failure, instead):
    file, line = edited(tmp_path, name, right, wrong)
    code, report = preflight(file, f"--hw={WORKING[name]}")
    (finding, *others) = report["findings"]
    assert (finding["failure"], finding["file"]) == (failure, str(file))
    assert instead in finding["instead"]
    assert finding["why"]
    assert {one["failure"] for one in others} <= {failure}
    assert code == 1
    assert finding["line"] == line


WRONG_WORDS = [  # of the toy run's command: a word, what somebody writes instead, failure, what to write
    (
        "train_files=/mnt/c/Users",
        "train_files=C:/Users",
        "windows-path-in-wsl",
        "/mnt/c/Users/me/data/gsm8k/train.parquet",
    ),
    ("length=4096", "length=8192", "max-tokens-overflow", "data.max_response_length=4096"),
    ("gpu_memory_util", "gpu_mem_util", "unknown-key", "actor_rollout_ref.rollout.gpu_memory_utilization=0.5"),
    ("mini_batch_size=4", "mini_batch_size=32", "batch-sizes", "actor_rollout_ref.actor.ppo_mini_batch_size=16"),
]


def test_a_sound_command_is_clean(preflight, everything_installed):
    for command in (["--", *command_of(TOY)], ["--", "env", "A=1", *command_of(TOY)]):
        code, report = preflight("--hw=rtx-5070-ti", *command)
        assert (code, report["findings"], report["files"]) == (0, [], [])
        assert report["program"] == "verl.trainer.main_ppo"
        assert {"gpu-memory-utilization", "trainer-engine-oom", "batch-sizes"} <= {*report["checked"]}


@pytest.mark.parametrize(("right", "wrong", "failure", "instead"), WRONG_WORDS)
def test_names_a_wrong_argument_of_a_command(preflight, right, wrong, failure, instead):
    words = [word.replace(right, wrong) for word in command_of(TOY)]
    code, report = preflight("--hw=rtx-5070-ti", "--", *words)
    (finding,) = report["findings"]
    assert (code, finding["failure"], finding["instead"]) == (1, failure, instead)
    assert wrong in finding["argument"]


def test_override_fixes_a_command(preflight):
    wrong = ["--", *command_of(TOY), "data.max_response_length=8192"]
    assert preflight("--hw=rtx-5070-ti", *wrong)[0] == 1
    assert preflight("data.max_response_length=4096", "--hw=rtx-5070-ti", *wrong)[0] == 0


def test_reads_variables_set_in_the_command(preflight, old_engine):
    variable = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
    (finding,) = preflight("--hw=rtx-5070-ti", "--", "env", variable, *command_of(TOY))[1]["findings"]
    assert (finding["failure"], finding["argument"]) == ("expandable-segments", variable)
    assert finding["instead"] == "unset PYTORCH_CUDA_ALLOC_CONF"


@pytest.mark.process
def test_a_shell_hands_over_a_scripts_command(tmp_path, monkeypatch):
    """As the documents have it: the script runs, with preflight in the place of the interpreter."""
    monkeypatch.setenv("PATH", os.defpath)
    script = tmp_path / "run.sh"
    script.write_text(
        "N=8\nWORDS=(data.train_batch_size=$((N * 2)) trainer.nnodes=${NODES:-1})\n"
        "if [ $N -gt 4 ]; then WORDS+=(data.max_response_length=99999); fi\n"
        'python3 -m verl.trainer.main_ppo actor_rollout_ref.rollout.max_model_len=4096 \\\n  "${WORDS[@]}" "$@"\n',
        encoding="utf-8",
    )
    rlregress = f"{sys.executable} -m pytest_rlregress.cli"
    replaced = (
        f'python3() {{ {rlregress} preflight --hw=h100 --json -- python3 "$@"; }}; export -f python3; bash run.sh x.y=1'
    )
    done = subprocess.run(["bash", "-c", replaced], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 1, done.stderr
    found = {one["failure"]: one["argument"] for one in json.loads(done.stdout)["findings"]}
    assert found["max-tokens-overflow"] == "data.max_response_length=99999"
    assert found["batch-sizes"] == "verl.trainer.main_ppo"  # a mini batch that is left out is larger than 16


NOT_INSTALLED = [  # file, what it says, what somebody writes instead, failure, what to write
    (V5, "[trainer.model]\n", '[trainer.model]\nattn = "flash_attention_2"\n', "flash-attention-missing", '"sdpa"'),
    (SDPA, "implementation: sdpa", "implementation: flash_attention_2", "flash-attention-missing", ": sdpa"),
    (MEGATRON, "strategy: megatron", "strategy: megatron", "mbridge-missing", "strategy: fsdp"),
    (MEGATRON, "use_mbridge: false", "use_mbridge: true", "mbridge-missing", "pip install megatron-bridge"),
    (MEGATRON, "fusion: false", "fusion: true", "apex-missing", "gradient_accumulation_fusion: false"),
    (MEGATRON, "name: vllm", "name: vllm", "vllm-missing", 'pip install "verl[vllm]"'),
]


@pytest.mark.process
@pytest.mark.parametrize(("name", "right", "wrong", "failure", "instead"), NOT_INSTALLED)
def test_missing_package_is_found_only_if_it_matters(
    preflight, tmp_path, monkeypatch, name, right, wrong, failure, instead
):
    file, line = edited(tmp_path, name, right, wrong)
    monkeypatch.setattr(remedies, "missing_symbol", lambda setting: f"{setting} is not there")
    _, report = preflight(file, f"--hw={WORKING[name]}", "--installed")
    here = line - wrong.endswith("\n")
    (finding,) = [one for one in report["findings"] if (one["failure"], one["line"]) == (failure, here)]
    assert instead in finding["instead"]
    _, report = preflight(file, f"--hw={WORKING[name]}")
    assert failure not in {one["failure"] for one in report["findings"]}
    (doubt,) = [one for one in report["not_checked"] if one["failure"] == failure]
    assert "--installed" in doubt["why"]


def test_checks_packages_and_memory_on_the_machine_of_the_run(preflight, monkeypatch):
    card = Gpu(0, "NVIDIA H100 NVL", (9, 0), 94 * 2**30, "GPU-0")
    monkeypatch.setattr(preflight_command, "discover", lambda: Machine(gpus=(card,)))
    monkeypatch.setattr(remedies, "missing_symbol", lambda setting: f"{setting} is not there")
    monkeypatch.setattr(remedies, "missing_kernels", lambda capability: None)
    for hw in ("--hw=auto", "--hw=h100"):
        _, report = preflight(CONFIGS / V5, hw)
        assert [one["failure"] for one in report["findings"]] == ["flash-attention-missing", "vllm-missing"]
        assert {one["failure"] for one in report["not_checked"]} == {"unknown-key"}  # of prime-rl some keys are known
    _, report = preflight(CONFIGS / V5, "--hw=h200")
    assert {one["failure"] for one in report["not_checked"]} == {
        "flash-attention-missing",
        "vllm-missing",
        "no-kernel-for-card",
        "unknown-key",
    }
    _, report = preflight(CONFIGS / V5, "trainer.model.seq_len=8192")  # too long for the 79 GiB of other H100s
    assert "trainer-engine-oom" not in {one["failure"] for one in report["findings"]}


def test_reads_installed_packages_from_the_environment(preflight, tmp_path):
    file, line = edited(tmp_path, SDPA, "implementation: sdpa", "implementation: flash_attention_2")
    if remedies.missing_symbol("flash-attn") is None:
        pytest.skip("flash-attn is installed")
    other_engine = "actor_rollout_ref.rollout.name=hf"  # asking for vllm would import it
    code, report = preflight(file, other_engine, "--hw=rtx-pro-6000-blackwell", "--installed")
    (finding,) = [one for one in report["findings"] if one["failure"] == "flash-attention-missing"]
    assert (code, finding["line"]) == (1, line)


def test_does_not_blame_mbridge_for_a_missing_megatron(preflight, tmp_path, monkeypatch):
    file, _ = edited(tmp_path, MEGATRON, "use_mbridge: false", "use_mbridge: true")
    monkeypatch.setattr(remedies, "missing_symbol", lambda setting: "no megatron" if "m" in setting[:1] else None)
    _, report = preflight(file, f"--hw={WORKING[MEGATRON]}", "--installed")
    assert [one["failure"] for one in report["findings"]] == ["mbridge-missing"]


def test_finds_undeclared_dependencies_at_their_setting(preflight, tmp_path, monkeypatch, everything_installed):
    file, line = edited(tmp_path, MEGATRON, "  nnodes: 1", "  logger: [console, swanlab]\n  nnodes: 1")
    asked = []

    def undeclared(config):
        asked.append(config["trainer"]["logger"])
        return [Advice("trainer.logger", "swanlab is not there", "pip install swanlab")]

    monkeypatch.setattr(remedies, "undeclared_dependencies", undeclared)
    _, report = preflight(file, f"--hw={WORKING[MEGATRON]}", "--installed")
    (finding,) = report["findings"]
    assert (finding["failure"], finding["line"]) == ("undeclared-trainer-dependency", line - 1)
    assert finding["instead"] == "pip install swanlab"
    _, report = preflight(file, f"--hw={WORKING[MEGATRON]}")
    assert report["findings"] == []
    assert "undeclared-trainer-dependency" in {one["failure"] for one in report["not_checked"]}
    assert asked == [["console", "swanlab"]]


def test_an_override_is_found_by_its_argument(preflight):
    _, report = preflight(CONFIGS / GSPO, "data.max_response_length=2048", "+data.x=1", "~algorithm.x", "--hw=h200")
    (finding,) = report["findings"]
    assert finding["argument"] == "data.max_response_length=2048"
    assert finding["file"] is None
    assert finding["instead"] == "data.max_response_length=1024"


@pytest.mark.parametrize("at", [1, 2, 3])
def test_override_may_stand_between_options(preflight, at):
    words = [CONFIGS / GSPO, "--hw=h200", "--prompt-tokens=512"]
    words.insert(at, "data.max_response_length=2048")
    _, report = preflight(*words)
    assert [one["argument"] for one in report["findings"]] == ["data.max_response_length=2048"]


def test_rejects_an_unknown_option(preflight, capsys):
    with pytest.raises(SystemExit) as stopped:
        preflight(CONFIGS / GSPO, "--hw=h200", "--data.max_response_length=2048")
    assert stopped.value.code == 2
    assert "unrecognized arguments: --data.max_response_length=2048" in capsys.readouterr().err


def test_override_fixes_a_file(preflight, tmp_path):
    file, _ = edited(tmp_path, GSPO, "max_response_length: 1024", "max_response_length: 4096")
    assert preflight(file, "data.max_response_length=1024", "--hw=h200")[0] == 0


def test_later_file_overrides_an_earlier_one(preflight, tmp_path):
    above = tmp_path / "above.toml"
    above.write_text("\n[inference]\ngpu_memory_utilization = 0.95\n", encoding="utf-8")
    _, report = preflight(CONFIGS / V5, above, "--hw=h100")
    assert {(one["file"], one["line"]) for one in report["findings"]} == {(str(above), 3)}


def test_reads_the_three_files_of_prime_rl(preflight, tmp_path):
    (tmp_path / "orch.toml").write_text("seq_len = 2048\n[sampling]\nmax_tokens = 4000\n", encoding="utf-8")
    (tmp_path / "infer.toml").write_text("[model]\nmax_model_len = 4096\n", encoding="utf-8")
    files = f"orchestrator={tmp_path / 'orch.toml'}", f"inference={tmp_path / 'infer.toml'}"
    _, report = preflight(*files, "--hw=h100")
    (finding,) = report["findings"]
    assert (finding["file"], finding["line"]) == (str(tmp_path / "orch.toml"), 3)


def test_asks_for_an_unknown_prompt_length(preflight, tmp_path):
    file, line = edited(tmp_path, V5, "max_tokens = 2000", "max_tokens = 4000")
    text = file.read_text(encoding="utf-8").replace("seq_len = 2048\n", "")
    file.write_text(text, encoding="utf-8")
    code, report = preflight(file, "--hw=h100")
    assert (code, report["result"], report["missing"]) == (3, "partial", ["--prompt-tokens"])
    (doubt,) = [one for one in report["not_checked"] if one["failure"] == "max-tokens-overflow"]
    assert "at most 96 tokens" in doubt["why"]
    code, report = preflight(file, "--hw=h100", "--prompt-tokens=1297")
    (finding,) = report["findings"]
    assert (code, finding["line"], finding["instead"]) == (1, line - 2, "max_tokens = 2799")


@pytest.mark.parametrize("name", ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"])
def test_finds_expandable_segments_in_the_environment(preflight, monkeypatch, old_engine, name):
    monkeypatch.setenv(name, "expandable_segments:True")
    _, report = preflight(CONFIGS / GSPO, "--hw=h200")
    (finding,) = report["findings"]
    assert (finding["failure"], finding["argument"]) == ("expandable-segments", "environment")
    assert preflight(CONFIGS / GSPO, "actor_rollout_ref.rollout.free_cache_engine=False", "--hw=h200")[0] == 0
    monkeypatch.setenv(name, "expandable_segments:False,max_split_size_mb:512")
    assert preflight(CONFIGS / GSPO, "--hw=h200")[0] == 0


@pytest.mark.parametrize(("is_newer", "code"), [(True, 0), (None, 3)])
def test_expandable_segments_are_a_finding_of_old_engines_only(preflight, monkeypatch, is_newer, code):
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    monkeypatch.setattr(PlannedRun, "is_release", lambda run, package, specifier: is_newer)
    found, report = preflight(CONFIGS / GSPO, "--hw=h200")
    assert (found, report["findings"]) == (code, [])
    assert ("--installed" in report["missing"]) == (is_newer is None)


@pytest.mark.parametrize(("release", "code"), [("0.25.1", 0), ("0.26.0", 1), ("1.9.2", 1), ("1.10.0", 0), (None, 3)])
def test_sleep_mode_of_trl_reloads_the_first_checkpoint(preflight, monkeypatch, release, code):
    known = (lambda specifier: Version(release) in SpecifierSet(specifier)) if release else lambda specifier: None
    monkeypatch.setattr(PlannedRun, "is_release", lambda run, package, specifier: known(specifier))
    yaml = CONFIGS / "trl-h100-grpo-1.5b.yaml"
    _, report = preflight(yaml, "--hw=h100", "vllm_enable_sleep_mode=true", "--prompt-tokens=64")
    named = [finding["failure"] for finding in report["findings"]]
    assert ("sleep-reloads-checkpoint" in named) == (code == 1)
    assert ("--installed" in report["missing"]) == (code == 3)
    _, report = preflight(yaml, "--hw=h100", "vllm_enable_sleep_mode=false", "--prompt-tokens=64")
    assert "sleep-reloads-checkpoint" not in [finding["failure"] for finding in report["findings"]]


def test_finds_expandable_segments_for_the_workers(preflight, old_engine):
    argument = "+ray_kwargs.ray_init.runtime_env.env_vars.PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
    _, report = preflight(CONFIGS / GSPO, argument, "--hw=h200")
    (finding,) = report["findings"]
    assert (finding["failure"], finding["argument"]) == ("expandable-segments", argument)


def test_finds_a_setting_from_an_empty_variable(preflight, tmp_path, monkeypatch):
    file, line = edited(tmp_path, GSPO, "per_node: 1", "per_node: ${oc.decode:${oc.env:ARNOLD_WORKER_GPU}}")
    monkeypatch.setenv("ARNOLD_WORKER_GPU", "")
    _, report = preflight(file, "--hw=h200")
    assert [one["line"] for one in report["findings"]] == [line]
    monkeypatch.setenv("ARNOLD_WORKER_GPU", "8")
    assert preflight(file, "--hw=h200")[0] == 0


def test_finds_a_dataset_root_without_files(preflight, tmp_path):
    (tmp_path / "set" / "data").mkdir(parents=True)
    (tmp_path / "set" / "data" / "only.parquet").touch()
    argument = f"data.train_files=[{tmp_path / 'set'}]"
    _, report = preflight(CONFIGS / GSPO, argument, "--hw=h200")
    (finding,) = report["findings"]
    assert (finding["failure"], finding["argument"]) == ("dataset-root-not-file", argument)
    assert finding["instead"] == str(tmp_path / "set" / "data" / "only.parquet")
    assert preflight(CONFIGS / GSPO, f"data.train_files={finding['instead']}", "--hw=h200")[0] == 0


def test_text_names_file_line_and_what_to_write(tmp_path, capsys):
    file, line = edited(tmp_path, V5, "max_tokens = 2000", "max_tokens = 4000")
    assert main(["preflight", str(file), "--hw=h100"]) == 1
    printed = capsys.readouterr().out
    assert f"{file}:{line}: orchestrator.sampling.max_tokens: max-tokens-overflow\n" in printed
    assert "\n    max_tokens = 2048\n" in printed
    assert "1 finding\n" in printed
    assert "not checked: vllm-missing" in printed or "not checked: flash-attention-missing" in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.toml"], "missing.toml: cannot be read"),
        ([str(CONFIGS / V5), "--hw=h10"], "Did you mean"),
        (["data.x=1"], "no file"),
        ([str(CONFIGS / V5), str(CONFIGS / GSPO)], "prime-rl's"),
        (["other.yaml"], "accelerate's configuration alone"),
        (["third.yaml"], "no configuration of verl"),
        ([str(CONFIGS / V5), "--hw=h100", "seq_len"], "neither a file nor an override"),
        (["broken.yaml"], "line 3"),
        (["twice.yaml"], "x is given twice"),
        (["broken.toml"], "line 1"),
        (["list.yaml"], "no table"),
        (["notes.txt"], "YAML"),
        (["run.sh"], "export -f python3"),
        (["--hw=h100", "--", "ls", "-l"], "ls -l: starts none of python"),
    ],
)
def test_rejects_bad_input(preflight, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    for name, text in {
        "other.yaml": "compute_environment: LOCAL_MACHINE\n",
        "third.yaml": "services: {}\n",
        "broken.yaml": "a: 1\nb: [\n",
        "twice.yaml": "data:\n  x: 1\n  x: 2\n",
        "broken.toml": "a = = 1\n",
        "list.yaml": "- 1\n",
        "notes.txt": "",
        "run.sh": "",
    }.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    code, error = preflight(*arguments)
    assert code == 2
    assert message in error


def test_every_rule_is_of_a_documented_failure():
    known = catalogue.load([catalogue.SHIPPED])
    documented = RULES.keys() - set(OWN)
    assert not documented - known.keys()
    assert [failure for failure in sorted(documented) if "`rlregress preflight" not in known[failure].remedy] == []
