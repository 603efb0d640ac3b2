"""Files that an audit reads: what each writer wrote comes back, and nothing in a pickle is executed."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import sys
import zipfile

import audited
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from pytest_rlregress.audit import BatchError, formats, pickles, tables  # noqa: E402
from pytest_rlregress.audit.batch import Ragged  # noqa: E402


def read(path, *wanted):
    """The columns of a file, and the table."""
    table = formats.open_table(path)
    wanted = wanted or tuple(table.rows)
    pieces = list(table.pieces({name: name for name in wanted}))
    return {name: joined([piece[name] for piece in pieces]) for name in wanted}, table


def joined(parts):
    if isinstance(parts[0], list):
        return [one for part in parts for one in part]
    if isinstance(parts[0], Ragged):
        return Ragged(torch.cat([part.values for part in parts]), torch.cat([part.lengths for part in parts]))
    return torch.cat(parts)


def check_equal(found, batch):
    for name, value in batch.items():
        assert found[name].dtype == value.dtype
        assert torch.equal(found[name], value), name


@pytest.fixture
def batch():
    good, _ = audited.made()
    return good | {"half": torch.rand(8, 3).bfloat16(), "flags": torch.rand(8, 5) > 0.5}


@pytest.mark.needs("numpy", "verl")
@pytest.mark.parametrize("method", ["", "numpy"])
def test_verls_own_file(batch, tmp_path, monkeypatch, method):
    import numpy as np
    import verl

    monkeypatch.setenv("VERL_DATAPROTO_SERIALIZATION_METHOD", method)
    columns = {
        "uid": np.array([f"p{row // 4}" for row in range(8)], dtype=object),
        "source": np.array(["gsm8k"] * 8),
        "turns": np.arange(8),
        "score": np.array([{"score": np.float64(0.5), "right": np.bool_(True)}] * 8, dtype=object),
    }
    proto = verl.DataProto.from_dict(
        tensors=batch, non_tensors=columns, meta_info={"temperature": 0.7, "eos_token_id": [2]}
    )
    proto.save_to_disk(tmp_path / "batch.pkl")
    found, table = read(tmp_path / "batch.pkl")
    check_equal(found, batch)
    assert found["uid"] == list(columns["uid"])
    assert found["source"] == ["gsm8k"] * 8
    assert torch.equal(found["turns"], torch.arange(8))
    assert found["score"][0] == {"score": 0.5, "right": True}
    assert table.meta == {"temperature": 0.7, "eos_token_id": [2]}
    assert table.form == "verl's DataProto"


@pytest.mark.parametrize("consolidated", [False, True])
def test_a_tensordict(batch, tmp_path, consolidated):
    tensordict = pytest.importorskip("tensordict")
    written = tensordict.TensorDict(batch, batch_size=8)
    if consolidated:
        written = written.consolidate()
    else:
        written["uid"] = tensordict.NonTensorStack(*map(str, range(8)))
    torch.save(written, tmp_path / "batch.pt")
    found, _ = read(tmp_path / "batch.pt")
    check_equal(found, batch)
    assert consolidated or found["uid"] == [*"01234567"]


def test_a_dict_of_tensors(batch, tmp_path):
    written = batch | {
        "uid": [*"aaaabbbb"],
        "temperature": 0.5,
        "steps": torch.tensor(3),
        "own": torch.nn.Parameter(torch.ones(8)),
    }
    torch.save(written, tmp_path / "batch.pt")
    found, table = read(tmp_path / "batch.pt")
    check_equal(found, batch | {"own": torch.ones(8)})
    assert found["uid"] == [*"aaaabbbb"]
    assert table.meta == {"temperature": 0.5}


def test_safetensors(batch, tmp_path):
    pytest.importorskip("safetensors.torch").save_file(batch, tmp_path / "batch.safetensors", metadata={"step": "3"})
    found, table = read(tmp_path / "batch.safetensors")
    check_equal(found, batch)
    assert table.form == "safetensors"


def test_parquet(batch, tmp_path, monkeypatch):
    pa, _ = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    lists = audited.as_lists(batch)
    text = [f"prompt {row // 4}" for row in range(8)]
    pa.parquet.write_table(pa.table(lists | {"prompt": text}), tmp_path / "b.parquet", row_group_size=3)
    monkeypatch.delattr(pa, "compute", raising=False)  # as where nothing else has imported it
    monkeypatch.delitem(sys.modules, "pyarrow.compute", raising=False)
    found, table = read(tmp_path / "b.parquet")
    assert table.ragged
    assert found["prompt"] == text
    assert found["reward"].tolist() == lists["reward"]
    padded, mask = found["completion_ids"].padded(24)
    assert torch.equal(padded, batch["responses"])
    assert torch.equal(mask.long(), batch["response_mask"])
    prompts, mask = found["prompt_ids"].padded(5, left=True)
    assert torch.equal(prompts, batch["prompts"])
    assert torch.equal(mask.long(), batch["attention_mask"][:, :5])


def test_a_file_is_read_in_pieces(batch, tmp_path, monkeypatch):
    torch.save(batch, tmp_path / "batch.pt")
    monkeypatch.setattr(tables, "PIECE_BYTES", 3 * 24 * 8)
    table = formats.open_table(tmp_path / "batch.pt")
    pieces = list(table.pieces({"ids": "responses"}))
    assert [len(piece["ids"]) for piece in pieces] == [3, 3, 2]
    assert torch.equal(torch.cat([piece["ids"] for piece in pieces]), batch["responses"])


DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
]


@settings(max_examples=80, deadline=None)
@given(
    shape=st.lists(st.integers(0, 5), min_size=1, max_size=3),
    dtype=st.sampled_from([*DTYPES, torch.uint8, torch.bool, torch.uint16]),
    view=st.sampled_from(["whole", "transposed", "sliced", "expanded", "shared"]),
)
def test_tensors_of_any_kind_are_those_that_torch_loads(tmp_path_factory, shape, dtype, view):
    value = (torch.rand(shape) * 9).to(dtype)
    value = {
        "whole": value,
        "transposed": value.transpose(0, -1),
        "sliced": value[1:],
        "expanded": value[:1].expand(3 if len(value) else 0, *shape[1:]),
        "shared": value,
    }[view]
    file = tmp_path_factory.getbasetemp() / "any.pt"
    torch.save({"a": value, "b": value if view == "shared" else 1}, file)
    wanted = torch.load(file, weights_only=True)["a"]
    found = formats.read_archive(file)["a"]
    assert found.dtype == wanted.dtype
    assert found.shape == wanted.shape
    assert found.tolist() == wanted.tolist()


# What a harmless batch looks like and what it asks for, below: each of these would leave a file behind.
class Calls:
    def __init__(self, function, *arguments):
        self.what = function, arguments

    def __reduce__(self):
        return self.what


def touch(path):
    return [
        Calls(os.system, f"touch {path}"),
        Calls(eval, f"open({str(path)!r}, 'w')"),
        Calls(exec, f"open({str(path)!r}, 'w')"),
        Calls(getattr, Calls(__import__, "os"), "getcwd"),
        Calls(os.mkdir, str(path)),
        Calls(pickle.loads, pickle.dumps(Calls(os.mkdir, str(path)))),
        Calls(torch.load, str(path)),
        Calls(torch.hub.load, str(path), "x"),
    ]


@pytest.mark.parametrize("number", range(8))
@pytest.mark.parametrize("wrapped", ["pickle", "old pickle", "column", "inner archive", "torch.save", "meta"])
def test_a_malicious_pickle_is_refused_and_does_nothing(batch, tmp_path, number, wrapped):
    mark, path = tmp_path / "executed", tmp_path / "batch.pkl"
    bad = touch(mark)[number]
    archive = io.BytesIO()
    if wrapped == "pickle":
        path.write_bytes(pickle.dumps(bad))
    elif wrapped == "old pickle":
        path.write_bytes(pickle.dumps({"ids": bad}, protocol=2))
    elif wrapped == "torch.save":
        torch.save(batch | {"note": bad}, path)
    else:
        torch.save(batch | ({"note": bad} if wrapped == "inner archive" else {}), archive)
        columns, meta = ({"uid": [bad]} if wrapped == "column" else {}), ({"note": bad} if wrapped == "meta" else {})
        path.write_bytes(proto_bytes(archive.getvalue(), columns, meta))
    with pytest.raises(BatchError, match=r"asks for [\w.]+, which a batch of tensors does not need: nothing of it was"):
        formats.open_table(path)
    assert not mark.exists()


def proto_bytes(batch, columns, meta):
    """A DataProto's pickle, without verl."""
    state = pickle.dumps((batch, columns, meta), protocol=4)[2:-1]
    return b"\x80\x04cverl.protocol\nDataProto\n)\x81" + state + b"b."


def test_the_malicious_pickles_would_have_been_executed(tmp_path):
    mark = tmp_path / "executed"
    pickle.loads(pickle.dumps(touch(mark)[4]))
    assert mark.exists()


def test_a_name_of_the_table_does_not_bring_its_attributes():
    """A dotted name reaches through what was found first, which the table doesn't have."""
    data = b"\x80\x04\x8c\x0everl.protocol\x8c\x14DataProto.__class__\x93."
    with pytest.raises(pickles.PickleError):
        pickles.read(memoryview(data))
    data = b"\x80\x04\x8c\x0dverl.protocol\x8c\x12DataProto.__init__\x93."
    with pytest.raises(pickles.RefusedName, match=r"verl.protocol.DataProto.__init__"):
        pickles.read(memoryview(data))


def test_opcodes_that_reach_outside_are_refused():
    for data, told in [
        (b"(ios\nsystem\n.", "os.system"),
        (b"\x80\x02(cos\nsystem\no.", "os.system"),
        (b"\x80\x02\x82\x01.", "unregistered extension code 1"),
        (b"Pid\n.", "outside of the file"),
        (b"\x80\x02cnumpy.core.numeric\n_frombuffer\n}X\x01\x00\x00\x00aI1\nsb.", "gives a state to a function"),
        (b"\x80\x02cnumpy\ndtype\n}X\x01\x00\x00\x00aI1\nsb.", "gives a state to a type"),
        (b"\x80\x02r\xff\xff\xff\xff.", "malformed"),  # a memo of that many entries
        (b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7f.", "cut off"),
    ]:
        with pytest.raises(pickles.PickleError, match=told):
            pickles.read(memoryview(data))


PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
SETS = st.sets(st.text()) | st.frozensets(st.text())


def nested(inner):
    return st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner) | SETS


@settings(max_examples=150, deadline=None)
@given(value=st.recursive(PLAIN, nested), protocol=st.integers(2, 5))
def test_plain_data_is_what_pickle_makes_of_it(value, protocol):
    assert pickles.read(memoryview(pickle.dumps(value, protocol))) == value


@pytest.mark.parametrize("form", ["proto", "torch", "safetensors"])
def test_every_file_that_is_cut_off_says_so(batch, tmp_path, form):
    archive = io.BytesIO()
    torch.save(batch, archive)
    data = {"proto": proto_bytes(archive.getvalue(), {"uid": ["a"] * 8}, {}), "torch": archive.getvalue()}.get(form)
    if data is None:
        data = pytest.importorskip("safetensors.torch").save(batch)
    path = tmp_path / "cut"
    for end in [*range(1, 40), *range(40, len(data) - 1, len(data) // 40), len(data) - 1]:
        path.write_bytes(data[:end])
        with pytest.raises(BatchError, match=r"A batch is a DataProto that verl wrote|is a pickle that asks for"):
            formats.open_table(path)


@settings(max_examples=200, deadline=None)
@given(at=st.integers(0, 10**6), byte=st.integers(0, 255))
def test_a_byte_that_was_changed_is_an_error_or_other_data(at, byte):
    archive = io.BytesIO()
    torch.save({"ids": torch.arange(6).view(2, 3), "uid": ["a", "b"]}, archive)
    data = bytearray(proto_bytes(archive.getvalue(), {"uid": ["a"] * 8}, {}))
    data[at % len(data)] = byte
    with contextlib.suppress(pickles.PickleError):
        columns, meta = formats.read_proto(memoryview(data))
        assert isinstance(columns, dict)
        assert isinstance(meta, dict)


BAD = {
    "empty": (lambda path: path.touch(), ["it is empty"]),
    "folder": (lambda path: path.mkdir(), ["it is a folder", "one file"]),
    "missing": (lambda path: None, ["No such file"]),
    "text": (lambda path: path.write_text("step,reward\n1,0.5\n"), ["none of the formats", "safetensors, or parquet"]),
    "another zip": (lambda path: zipfile.ZipFile(path, "w").close(), ["none of the formats"]),
    "a zip of texts": (lambda path: zip_of(path, "notes.txt"), ["not torch.save's"]),
    "another pickle": (lambda path: path.write_bytes(pickle.dumps([1, 2])), ["a pickle of a list"]),
    "no tensors": (lambda path: torch.save({"step": 3}, path), ["it has no tensors"]),
    "a list": (lambda path: torch.save([torch.ones(2)], path), ["has a list where a dict of tensors should be"]),
    "an old archive": (
        lambda path: torch.save({"a": torch.ones(2)}, path, _use_new_zipfile_serialization=False),
        ["before torch 1.6"],
    ),
    "half of parquet": (lambda path: path.write_bytes(b"PAR1" + b"\0" * 50), ["cut off or malformed"]),
}  # fmt: skip


def zip_of(path, name):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(name, "x")


@pytest.mark.parametrize("kind", BAD)
def test_what_is_no_batch(tmp_path, kind):
    write, words = BAD[kind]
    write(tmp_path / "batch")
    with pytest.raises(BatchError) as error:
        formats.open_table(tmp_path / "batch")
    for word in words:
        assert word in str(error.value)


def test_tensors_do_not_reach_outside_of_the_file(tmp_path):
    """A size, a stride or an offset that a pickle lies about."""
    torch.save({"a": torch.arange(4, dtype=torch.uint8)}, tmp_path / "a.pt")
    data = (tmp_path / "a.pt").read_bytes()
    for size, lie in [(b"K\x04\x85", b"K\xff\x85"), (b"K\x01\x85", b"K\x09\x85")]:
        assert data.count(size) == 1
        (tmp_path / "a.pt").write_bytes(data.replace(size, lie))
        with pytest.raises(pickles.PickleError, match="storage"):
            formats.read_archive(tmp_path / "a.pt")


def test_a_row_group_that_is_too_large_is_refused_with_its_size(batch, tmp_path, monkeypatch):
    pa, _ = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pa.parquet.write_table(pa.table(audited.as_lists(batch)), tmp_path / "b.parquet")
    monkeypatch.setattr(tables, "_ROW_GROUP_BYTES", 100)
    with pytest.raises(BatchError, match=r"row group of [\d.]+ GiB.*at most.*row_group_size"):
        formats.open_table(tmp_path / "b.parquet")
