import copy
import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_rlregress.failures.act import act
from pytest_rlregress.failures.silent import silent
from pytest_rlregress.fixtures.drawn import EXAMPLES

pytestmark = pytest.mark.needs("datasets")

CALLS = [("move", {"x": 0, "y": 1}), ("turn", {"degrees": 90, "until": None})]
PROPERTIES = [{"x": {"type": "integer"}, "y": {"type": "integer"}}, {"degrees": {"enum": [90, 180], "default": None}}]


def conversation(name, arguments):
    call = {"type": "function", "function": {"name": name, "arguments": arguments}}
    answer = {"role": "assistant", "content": "", "tool_calls": [call]}
    return [{"role": "user", "content": f"{name}, please"}, answer]


def tool(name, properties):
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "description": name, "parameters": parameters}}


def rows():
    names = [name for name, _ in CALLS]
    tools = [tool(name, one) for name, one in zip(names, PROPERTIES, strict=True)]
    return [{"level": n, "messages": conversation(*call), "tools": [tools[n]]} for n, call in enumerate(CALLS)]


@pytest.fixture
def render(tiny_qwen):
    tokenizer = tiny_qwen.tokenizer()
    return lambda row: tokenizer.apply_chat_template(row["messages"], tools=row["tools"], tokenize=False)


@pytest.fixture(autouse=True)
def quiet(tmp_path, monkeypatch):
    """No progress bars, and nothing cached beyond the test."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    datasets.disable_progress_bars()
    datasets.disable_caching()


@pytest.mark.reproduces("dataset-null-fill")
@pytest.mark.parametrize("what", ["arguments", "tools"])
@pytest.mark.parametrize("source", ["from-list", "parquet"])
def test_rendered(render, tmp_path, source, what):
    from datasets import Dataset

    with act():
        data = Dataset.from_list(rows())
        if source == "parquet":
            data.to_parquet(tmp_path / "data.parquet")
            data = Dataset.from_parquet(str(tmp_path / "data.parquet"), cache_dir=str(tmp_path))
    pattern = {"arguments": r'"name": "move", "arguments": (.*?)\n', "tools": r'"properties": (.*?)\n'}[what]
    [written, read] = [re.search(pattern, render(row))[1] for row in (rows()[0], data[0])]
    if read != written:
        silent(f"{written} became {read} in the text")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=4,
)
ROWS = st.lists(
    st.fixed_dictionaries({"level": st.integers(0, 9), "messages": JSON}, optional={"tools": JSON}),
    min_size=1,
    max_size=4,
)


@pytest.mark.guards("dataset-null-fill")
@given(given_rows=ROWS)
@settings(EXAMPLES, max_examples=60)
def test_rows_come_as_they_were_given(subject, given_rows):
    before = copy.deepcopy(given_rows)
    data = subject(given_rows, ["messages", "tools"])
    assert given_rows == before, "changes the rows that it is given"
    columns = {column: None for row in before for column in row}
    wanted = [columns | row for row in before]
    assert list(data) == wanted
    assert [data[index] for index in range(len(data))] == wanted
    assert data[:2]["messages"] == [row["messages"] for row in before[:2]]
    assert data.select([len(before) - 1])[0] == wanted[-1]


@pytest.mark.guards("dataset-null-fill")
def test_rendered_as_given(subject, render):
    """Also by what is mapped over the data set."""
    with act():
        data = subject(rows(), ["messages", "tools"])
    wanted = [render(row) for row in rows()]
    assert [render(row) for row in data] == wanted
    mapped = data.map(lambda row: {"text": render(row)})
    assert [row["text"] for row in mapped] == wanted
    assert [{key: row[key] for key in rows()[0]} for row in mapped] == rows()
    assert [row["level"] for row in data.filter(lambda row: "enum" in json.dumps(row["tools"]))] == [1]


@pytest.mark.guards("dataset-null-fill")
def test_files_hold_json_text(subject, tmp_path):
    from datasets import Dataset

    with act():
        subject(rows(), ["messages", "tools"]).to_parquet(tmp_path / "data.parquet")
    for read, row in zip(
        Dataset.from_parquet(str(tmp_path / "data.parquet"), cache_dir=str(tmp_path)), rows(), strict=True
    ):
        assert {"level": read["level"], **{key: json.loads(read[key]) for key in ("messages", "tools")}} == row


@pytest.mark.guards("dataset-null-fill")
def test_rejects_values_that_json_cannot_hold(subject):
    with act(), pytest.raises(TypeError, match=r"row 1.*'tools'.*set"):
        subject([rows()[0], {**rows()[1], "tools": {"move"}}], ["messages", "tools"])
