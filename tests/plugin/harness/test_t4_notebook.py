"""The notebook for a T4: nbformat 4 as written, its commands and options exist, and its words name what is there.

No machine here has that card. That the notebook runs isn't tested.
"""

from __future__ import annotations

import json
import re
import shlex

import pytest
from documents import DOCS
from installed import CHECKOUT, UV, call

from pytest_rlregress import hardware
from pytest_rlregress.cli import parse

NOTEBOOK = json.loads((DOCS / "nightly" / "t4.ipynb").read_text(encoding="utf-8"))
CELLS = NOTEBOOK["cells"]
LINES = [line.strip() for cell in CELLS if cell["cell_type"] == "code" for line in "".join(cell["source"]).splitlines()]
#: What each kind of cell has, no less and no more; in 4.5 each cell has an id.
KEYS = {
    "markdown": {"cell_type", "id", "metadata", "source"},
    "code": {"cell_type", "id", "metadata", "source", "outputs", "execution_count"},
}


def commands(program):
    """The words of each command of a program, which may be one of an environment's."""
    pattern = rf"^!(?:for .* do )?(?:\w+/bin/)?{program} (.*?)(?:; done)?$"
    return [shlex.split(found[1]) for line in LINES if (found := re.match(pattern, line))]


def test_is_a_notebook_of_format_4_without_outputs():
    assert NOTEBOOK.keys() == {"cells", "metadata", "nbformat", "nbformat_minor"}
    assert (NOTEBOOK["nbformat"], NOTEBOOK["nbformat_minor"]) == (4, 5)
    assert {*NOTEBOOK["metadata"]["kernelspec"]} >= {"name", "display_name"}
    assert NOTEBOOK["metadata"]["language_info"]["name"] == "python"
    ids = [cell["id"] for cell in CELLS]
    assert len({*ids}) == len(ids)
    for cell in CELLS:
        assert cell.keys() == KEYS[cell["cell_type"]]
        assert re.fullmatch(r"[\w-]{1,64}", cell["id"], re.ASCII)
        assert isinstance(cell["metadata"], dict)
        assert all(isinstance(line, str) for line in cell["source"])
        assert all(line.endswith("\n") for line in cell["source"][:-1])
        assert (cell.get("outputs", []), cell.get("execution_count")) == ([], None)


def test_each_line_is_a_command_or_a_variable():
    assert LINES
    assert all(re.match(r"!(git|pip|uv|tar|nvidia-smi|for|control/bin/|canary/bin/)|%env \w+=", line) for line in LINES)


def test_runs_control_and_canary_alike(pytester):
    found = commands("pytest")
    assert [words[2] for words in found] == ["--rl-record-dir=records/control", "--rl-record-dir=records/canary"]
    for words in found:
        config = pytester.parseconfig("-p", "no:cacheprovider", *words)
        assert (config.option.rlregress_hw, config.option.rlregress_quick) == ("t4", "true")
        assert config.option.rlregress_hw in hardware.load_profiles([])


def test_rlregress_accepts_each_command(capsys):
    found = commands("rlregress")
    assert [words[1] for words in found] == ["--compare", "--check"]
    for words in found:
        assert parse(words).command == "report"


@pytest.mark.process
def test_uv_has_each_option():
    found = commands("uv")
    assert len(found) == 8
    for words in found:
        named = [word for word in words if word.startswith("--")]
        command = words[: 2 if words[0] == "pip" else 1]
        text = call(UV, *command, "--help")
        assert [option for option in named if not re.search(rf"{option}\b", text)] == []


def test_installs_the_lock_and_names_files_that_are_there():
    locks = {words[words.index("--requirements") + 1] for words in commands("uv") if "--requirements" in words}
    assert locks == {"harness/requirements/gpu.txt"}
    assert (CHECKOUT / "requirements" / "gpu.txt").exists()
    text = "".join(line for cell in CELLS if cell["cell_type"] == "markdown" for line in cell["source"])
    for file, _, anchor in re.findall(r"\]\(([^)#]+)(#([\w-]+))?\)", text):
        page = (DOCS / "nightly" / file).read_text(encoding="utf-8")
        titles = [
            re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in re.findall(r"^#+ (.*)", page, re.M)
        ]
        assert anchor in titles
