import json

import pytest
from made_wheels import make_wheel, open_releases

from pytest_rlregress.commands.moved.answer import Moved, as_json, as_text
from pytest_rlregress.commands.moved.facts import Facts
from pytest_rlregress.commands.moved.index import NotRead
from pytest_rlregress.commands.moved.reading import Reader
from pytest_rlregress.commands.moved.trl import read_trl
from pytest_rlregress.commands.preflight.command import read
from pytest_rlregress.util.coverage import Result

ARGUMENTS = "class TrainingArguments:\n    report_to: str = {report!r}\n    output_dir: str = None\n"
SCRIPT = "dataclass_types = (ScriptArguments, GRPOConfig)\n"
CONFIG = "class ScriptArguments:\n    dataset_name: str = None\n\nclass GRPOConfig(TrainingArguments):\n{fields}"
WARNING = "    def __post_init__(self):\n        warnings.warn('`old` is deprecated. Use `brand_new` instead.')\n"
RELEASES = {
    "9001.0": "    length: int = 256\n    loss: str = 'nll'\n    old: int = 1\n    vllm_mode: str = 'server'\n"
    "    use_vllm: bool = False\n",
    "9001.1": "    length: int = 256\n    loss: str = 'chunked'\n    old: int = None\n    brand_new: int = 1\n"
    f"    vllm_mode: str = 'server'\n    use_vllm: bool = False\n{WARNING}",
    "9001.2": "    length: int = 512\n    loss: str = 'nll'\n    brand_new: int = 1\n    vllm_mode: str = 'colocate'\n"
    "    use_vllm: bool = False\n",
}


@pytest.fixture
def links(tmp_path):
    for version, fields in RELEASES.items():
        files = {"trl/trainer/grpo_config.py": CONFIG.format(fields=fields), "trl/scripts/grpo.py": SCRIPT}
        needed = "transformers==9005.0" if version == "9001.0" else "transformers==9005.1"
        make_wheel(tmp_path / "links", "trl", version, files, requires=[needed])
    for version, report in (("9005.0", "all"), ("9005.1", "none")):
        files = {"transformers/training_args.py": ARGUMENTS.format(report=report)}
        make_wheel(tmp_path / "links", "transformers", version, files)
    return tmp_path / "links"


def ask(tmp_path, links, *words, ends=("9001.0", "9001.2")):
    run = read([], {}, ["trl", "grpo", *words], asks=False)
    reader = Reader(open_releases(tmp_path, links=[links]), Facts(tmp_path / "facts"))
    return Moved("trl", ends, run.title, read_trl(run, "trl", ends, reader))


def tell(moved):
    return {one.key: (one.change, one.before, one.after, one.release, one.package) for one in moved.findings}


def test_finds_what_moved_and_whose_move_it_is(tmp_path, links):
    found = tell(ask(tmp_path, links))
    assert found == {
        "length": ("moved", 256, 512, "9001.2", "trl"),
        "report_to": ("moved", "all", "none", "9001.1", "transformers"),
    }


def test_a_default_that_moved_there_and_back_is_told_with_verbose(tmp_path, links):
    moved = ask(tmp_path, links)
    assert "loss: nll: moved and back: nll → chunked (9001.1) → nll (9001.2)" in as_text(moved, verbose=True)
    assert "loss" not in as_text(moved, verbose=False)


def test_names_the_new_key_by_a_message_of_a_release_between(tmp_path, links):
    moved = ask(tmp_path, links, "--old", "2", "--length", "8", "--report_to", "none")
    (found,) = moved.findings
    assert (found.key, found.change, found.release, found.instead, found.sure) == (
        "old",
        "gone",
        "9001.2",
        "brand_new",
        True,
    )
    assert "old: gone since 9001.2; now brand_new" in as_text(moved, verbose=False)


def test_what_is_off_does_not_concern_the_run(tmp_path, links):
    assert "vllm_mode" in tell(ask(tmp_path, links, "--use_vllm"))
    assert "vllm_mode" not in tell(ask(tmp_path, links))


def test_options_of_the_launcher_are_no_keys(tmp_path, links):
    assert "num_processes" not in tell(ask(tmp_path, links, "--num_processes", "4"))
    assert "misspelt" in tell(ask(tmp_path, links, "--misspelt", "4"))


def test_reads_the_file_of_config(tmp_path, links):
    (tmp_path / "grpo.yaml").write_text("output_dir: x\nlength: 8\nold: 2\nreport_to: none\n")
    moved = ask(tmp_path, links, "--config", str(tmp_path / "grpo.yaml"))
    assert [(one.key, one.place) for one in moved.findings] == [("old", f"{tmp_path}/grpo.yaml:3")]


def test_goes_back_too(tmp_path, links):
    moved = ask(tmp_path, links, ends=("9001.2", "9001.0"))
    assert "length: 512 → 256 up to 9001.1" in as_text(moved, verbose=False)


def test_nothing_unread_is_green(tmp_path, links):
    (links / "trl-9001.1-py3-none-any.whl").write_bytes(b"cut off")
    given = ("--length", "8", "--report_to", "none")
    moved = ask(tmp_path, links, *given)
    assert moved.result is Result.PARTIAL
    assert "moved in what was read" in moved.sentence
    assert "Not read: trl 9001.1, which is between the ends" in as_text(moved, verbose=False)


def test_an_end_that_cannot_be_read_is_no_answer(tmp_path, links):
    (links / "trl-9001.0-py3-none-any.whl").write_bytes(b"cut off")
    with pytest.raises(NotRead, match=r"trl-9001\.0"):
        ask(tmp_path, links)


def test_json_says_the_same(tmp_path, links):
    found = json.loads(json.dumps(as_json(ask(tmp_path, links))))
    assert (found["from"], found["to"], found["result"]) == ("9001.0", "9001.2", "findings")
    assert {one["key"] for one in found["findings"] if one["concerns"]} == {"length", "report_to"}


def test_at_most_twenty_lines(tmp_path, links):
    for version, value in (("9001.0", 1), ("9001.2", 2)):
        fields = "".join(f"    field_{at}: int = {value}\n" for at in range(40))
        files = {"trl/trainer/grpo_config.py": CONFIG.format(fields=fields), "trl/scripts/grpo.py": SCRIPT}
        make_wheel(links, "trl", version, files, requires=["transformers==9005.1"])
    text = as_text(ask(tmp_path, links, "--old", "1"), verbose=False)
    assert len(text.splitlines()) <= 20
    assert "and 28 more: -v" in text or "more: -v" in text
