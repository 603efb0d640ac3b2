import pytest
from made_wheels import make_wheel, open_releases

from pytest_rlregress.commands.moved.binding import Broken
from pytest_rlregress.commands.moved.engine_defaults import list_passed, read_defaults
from pytest_rlregress.commands.moved.engines import find_reach
from pytest_rlregress.commands.moved.wheels import PYTHON, TRAINER
from pytest_rlregress.commands.preflight.config import read_override

ARGS = """
class EngineArgs:
    model: str = ModelConfig.model
    seed: int = get_field(ModelConfig, "seed")
    max_num_seqs: int = 256
    computed: int = compute()
"""
CONFIG = "class ModelConfig:\n    model: str = 'tiny'\n    seed: int = Field(default=0, ge=0)\n"
ENVIRONMENT = "if TYPE_CHECKING:\n    VLLM_PORT: int = 8000\n    VLLM_HOST: str = ''\n"


def test_reads_engine_defaults_through_their_configuration(tmp_path):
    files = {"vllm/engine/arg_utils.py": ARGS, "vllm/config/model.py": CONFIG, "vllm/envs.py": ENVIRONMENT}
    make_wheel(tmp_path, "vllm", "1.0", files)
    found = read_defaults(open_releases(tmp_path, links=[tmp_path]).read("vllm", "1.0", PYTHON))
    assert found == {
        "EngineArgs.model": "tiny",
        "EngineArgs.seed": 0,
        "EngineArgs.max_num_seqs": 256,
        "EngineArgs.computed": "???",
        "envs.VLLM_PORT": 8000,
        "envs.VLLM_HOST": "",
    }


def test_lists_what_a_trainer_passes(tmp_path):
    source = (
        'import vllm\nllm = LLM(model="x", seed=1)\nargs = {"max_num_seqs": 2}\nargs["dtype"] = 3\nother(unrelated=1)\n'
    )
    make_wheel(tmp_path, "trl", "1.0", {"trl/a.py": source})
    trainer = open_releases(tmp_path, links=[tmp_path]).read("trl", "1.0", TRAINER)
    assert list_passed(trainer, ["trl/a.py"]) == {"model", "seed", "max_num_seqs", "dtype"}


SERVER = "verl/workers/rollout/vllm_rollout/vllm_async_server.py"


@pytest.mark.parametrize(
    ("path", "function", "override", "reached"),
    [
        (SERVER, "abort_all_requests", "trainer.v1.trainer_mode=sync", False),
        (SERVER, "abort_all_requests", "trainer.v1.trainer_mode=separate_async", True),
        (SERVER, "abort_all_requests", "actor_rollout_ref.rollout.checkpoint_engine.backend=nccl", True),
        (SERVER, "generate", "trainer.v1.trainer_mode=sync", True),
        ("verl/utils/vllm/vllm_fp8_utils.py", "patch", "actor_rollout_ref.rollout.quantization=fp8", True),
        ("verl/utils/vllm/vllm_fp8_utils.py", "patch", "trainer.nnodes=1", False),
        ("verl/utils/qat/patch.py", "", "trainer.nnodes=1", False),
    ],
)
def test_knows_which_settings_reach_a_place(path, function, override, reached):
    run = read_override(override)
    one = Broken(path, 1, "unknown-argument", "x", function)
    assert find_reach(one, run)[1] is reached
    assert find_reach(one, None)[1]
