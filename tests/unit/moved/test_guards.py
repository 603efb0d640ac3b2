import pytest

from pytest_rlregress.commands.moved.guards import decide_guards


def decide(condition, version="0.12.0", before=""):
    decided = decide_guards(f"{before}if {condition}:\n    pass\n", "vllm", version)
    return decided.removeprefix(before).splitlines()[0]


@pytest.mark.parametrize(
    ("condition", "decided"),
    [
        ('version.parse(vllm.__version__) >= version.parse("0.12.0")', "True"),
        ('Version(vllm.__version__) < Version("0.11")', "False"),
        ('is_vllm_available(min_version="0.13.0")', "False"),
        ("is_vllm_available()", "True"),
        ('not is_vllm_available(min_version="0.13.0")', "True"),
        ('use_lora and is_vllm_available(min_version="0.13.0")', "False"),
        ('use_lora or is_vllm_available(min_version="0.12.0")', "True"),
        ('use_lora and is_vllm_available(min_version="0.12.0")', None),
        ('version.parse(ray.__version__) >= version.parse("2.0")', None),
    ],
)
def test_decides_conditions_on_the_version_alone(condition, decided):
    assert decide(condition) == f"if {decided or condition}:"


def test_decides_names_that_such_conditions_were_given():
    before = '_NEW = version.parse(vllm.__version__) >= version.parse("0.12.0")\n'
    assert decide("_NEW", before=before) == "if True:"
    assert decide("not _NEW", "0.11.0", before) == "if True:"


def test_keeps_the_lines_of_a_file():
    source = 'x = 1\nif (\n    version.parse(vllm.__version__)\n    >= version.parse("0.12")\n):\n    y = 2\n'
    decided = decide_guards(source, "vllm", "0.11.0")
    assert decided.splitlines()[-1] == "    y = 2"
    assert len(decided.splitlines()) == len(source.splitlines())
    names = {}
    exec(decided, names)
    assert "y" not in names


def test_leaves_what_it_cannot_parse():
    assert decide_guards("if (:\n", "vllm", "1.0") == "if (:\n"
