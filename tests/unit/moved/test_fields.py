import pytest
from made_wheels import make_wheel, open_releases

from pytest_rlregress.commands.moved.fields import find_class, find_defaults, find_refused_values
from pytest_rlregress.commands.moved.wheels import ARGUMENTS, TRAINER
from pytest_rlregress.stack.class_sources import UNKNOWN, find_fields

ARGUMENTS_SOURCE = """
@dataclass
class TrainingArguments:
    learning_rate: float = 5e-5
    report_to: str = None
    logging_steps: int = field(default=500, metadata={"help": "x"})
    kept: list = field(default_factory=list)

    def __post_init__(self):
        if self.report_to is None:
            self.report_to = "all"
"""
CONFIG = '''
DEFAULT = 0.9

@dataclass
class _BaseConfig(TrainingArguments):
    logging_steps: int = 10

    def __post_init__(self):
        self.bf16 = not (self.fp16) if self.bf16 is None else self.bf16
        super().__post_init__()

@dataclass
class GRPOConfig(_BaseConfig):
    """
    Args:
        loss_type (`str`, *optional*, defaults to `"dapo"`):
            What is minimised.
        steps (`int`, *optional*, defaults to `4`):
            Steps.
    """

    _private: ClassVar[int] = 1
    bf16: bool = None
    fp16: bool = False
    temperature: float = DEFAULT
    loss_type: str = None
    steps: int = compute()
    computed: int = compute()
    level: Literal["token", "sequence"] = "token"
    scale: str = "group"
    pad: str = "auto"
    mode: str = "server"

    def __post_init__(self):
        super().__post_init__()
        self.scale = {True: "group", False: "none"}.get(self.scale, self.scale)
        if self.pad == "auto":
            self.pad = 128 if self.device.type == "rare" else None
        if self.mode not in ["server", "colocate"]:
            raise ValueError(f"Unknown mode: {self.mode}")
        if self.loss_type == "old":
            raise ValueError("loss_type 'old' has been removed. Use 'dapo'.")
'''


@pytest.fixture
def source(tmp_path):
    make_wheel(tmp_path, "trl", "1.0", {"trl/trainer/grpo_config.py": CONFIG})
    make_wheel(tmp_path, "transformers", "5.0", {"transformers/training_args.py": ARGUMENTS_SOURCE})
    releases = open_releases(tmp_path, links=[tmp_path])
    both = [releases.read("trl", "1.0", TRAINER), releases.read("transformers", "5.0", ARGUMENTS)]
    return find_class("GRPOConfig", both)


def find(source, **given):
    return find_defaults(source, find_fields(source), given)


def test_reads_defaults_through_inheritance(source):
    values = find(source)
    assert (values["learning_rate"], values["logging_steps"], values["temperature"]) == (5e-5, 10, 0.9)
    assert values["kept"] == []
    assert "_private" not in values


def test_says_whose_a_default_is(source):
    fields = find_fields(source)
    assert fields["learning_rate"].package == "transformers"
    assert fields["logging_steps"].package == "trl"


def test_takes_the_documented_default_where_the_source_computes_it(source):
    values = find(source)
    assert (values["loss_type"], values["steps"], values["computed"]) == ("dapo", 4, UNKNOWN)


def test_follows_post_init(source):
    assert find(source)["bf16"] is True
    assert find(source, fp16=True)["bf16"] is False
    assert find(source)["report_to"] == "all"
    assert find(source, scale=False)["scale"] is False  # what the run sets stays as it is written


def test_does_not_know_what_depends_on_hardware(source):
    assert find(source)["pad"] == UNKNOWN


def test_finds_the_texts_that_a_field_takes(source):
    assert find_fields(source)["level"].allowed == ("token", "sequence")
    found = {name: (bad, good) for name, bad, good, _ in find_refused_values(source)}
    assert found == {"mode": ((), ("server", "colocate")), "loss_type": (("old",), ())}
