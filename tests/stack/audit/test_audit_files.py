"""Files that an audit reads: what each writer wrote comes back, and nothing in a pickle is executed."""

from __future__ import annotations

import io
import json
import math
import os
import pickle
import zipfile

import audited
import pytest

torch = pytest.importorskip("torch")

from pytest_rlregress.audit import BatchError, files, pickles  # noqa: E402


def read(path):
    """The columns of a file, and the table."""
    table = files.open_batch(path)
    (found,) = table.pieces({name: name for name in table.columns})
    return found, table


def check_equal(found, batch):
    for name, value in batch.items():
        assert found[name].dtype == value.dtype
        assert torch.equal(found[name], value), name


@pytest.fixture
def batch():
    good, _ = audited.made()
    return good | {"half": torch.rand(8, 3).bfloat16(), "flags": torch.rand(8, 5) > 0.5}


@pytest.mark.needs("numpy", "verl")
def test_reads_a_file_written_by_verl(batch, tmp_path, monkeypatch):
    import numpy as np
    import verl

    columns = {
        "uid": np.array([f"p{row // 4}" for row in range(8)], dtype=object),
        "source": np.array(["gsm8k"] * 8),
        "turns": np.arange(8),
        "score": np.array([np.float64(0.5)] * 8, dtype=object),
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
    assert found["score"] == [0.5] * 8
    assert table.meta == {"temperature": 0.7, "eos_token_id": [2]}
    assert table.form == "verl's DataProto"
    monkeypatch.setenv("VERL_DATAPROTO_SERIALIZATION_METHOD", "numpy")
    proto.save_to_disk(tmp_path / "batch.pkl")
    with pytest.raises(BatchError, match=r"asks for [\w.]+, .*or write the tensors alone: torch\.save"):
        files.open_batch(tmp_path / "batch.pkl")


@pytest.mark.parametrize("consolidated", [False, True])
def test_reads_a_tensordict(batch, tmp_path, consolidated):
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


def test_says_how_to_write_what_pickle_dumped(batch, tmp_path):
    """Reading a tensor out of a plain pickle would call torch."""
    (tmp_path / "batch.pkl").write_bytes(pickle.dumps(batch))
    with pytest.raises(BatchError, match=r"a plain pickle of tensors.* torch\.save\(batch, path\)") as error:
        files.open_batch(tmp_path / "batch.pkl")
    assert "does not need" not in str(error.value)


def test_reads_a_dict_of_tensors(batch, tmp_path):
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


def test_reads_safetensors(batch, tmp_path):
    pytest.importorskip("safetensors.torch").save_file(batch, tmp_path / "batch.safetensors", metadata={"step": "3"})
    found, table = read(tmp_path / "batch.safetensors")
    check_equal(found, batch)
    assert table.form == "safetensors"


def test_reads_the_completions_that_trainers_log(tmp_path):
    """verl's rollout_data_dir and TRL's log_completions."""
    rows = [{"input": f"prompt {row // 2}", "output": "1", "score": row / 2, "step": 3} for row in range(4)]
    (tmp_path / "3.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    found, table = read(tmp_path / "3.jsonl")
    assert table.form == "JSONL"
    assert found["input"] == ["prompt 0", "prompt 0", "prompt 1", "prompt 1"]
    assert [*found["score"]] == [0, 0.5, 1, 1.5]
    pa, _ = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = {"prompt": [[{"role": "user", "content": "a"}]] * 2, "accuracy": [1.0, None], "advantage": [1, -1]}
    pa.parquet.write_table(pa.table(columns), tmp_path / "completions_00001.parquet")
    found, table = read(tmp_path / "completions_00001.parquet")
    assert table.form == "parquet"
    assert found["prompt"] == columns["prompt"]
    assert [*found["advantage"]] == [1, -1]
    assert [value is None or math.isnan(value) for value in found["accuracy"]] == [False, True]


def test_a_file_is_read_in_pieces(batch, tmp_path, monkeypatch):
    torch.save(batch, tmp_path / "batch.pt")
    monkeypatch.setattr(files, "PIECE_BYTES", 3 * 24 * 8)
    table = files.open_batch(tmp_path / "batch.pt")
    pieces = list(table.pieces({"ids": "responses"}))
    assert [len(piece["ids"]) for piece in pieces] == [3, 3, 2]
    assert torch.equal(torch.cat([piece["ids"] for piece in pieces]), batch["responses"])


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
        files.open_batch(path)
    assert not mark.exists()


def proto_bytes(batch, columns, meta):
    """A DataProto's pickle, without verl."""
    state = pickle.dumps((batch, columns, meta), protocol=4)[2:-1]
    return b"\x80\x04cverl.protocol\nDataProto\n)\x81" + state + b"b."


def test_the_malicious_pickles_would_have_been_executed(tmp_path):
    mark = tmp_path / "executed"
    pickle.loads(pickle.dumps(touch(mark)[4]))
    assert mark.exists()


def read_pickle(data):
    return pickles.read_state(io.BytesIO(data), "verl.protocol.DataProto")


@pytest.mark.parametrize(
    ("data", "error"),
    [
        # A dotted name would reach through what was found first.
        (b"\x80\x04\x8c\x0dverl.protocol\x8c\x12DataProto.__init__\x93.", pickles.RefusedName),
        (b"(ios\nsystem\n.", pickles.RefusedName),
        (b"\x80\x02(cos\nsystem\no.", pickles.RefusedName),
        (b"\x80\x02\x82\x01.", ValueError),  # an extension that nobody registered
        (b"Pid\n.", ValueError),  # something outside of the file
        (b"\x80\x02cnumpy.core.numeric\n_frombuffer\n}X\x01\x00\x00\x00aI1\nsb.", TypeError),  # a class's state
        (b"\x80\x02r\xff\xff\xff\xff.", (IndexError, pickle.UnpicklingError)),  # a memo of that many entries
        (b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7f.", IndexError),  # a frame of that many bytes
    ],
)
def test_opcodes_that_reach_outside_are_refused(data, error):
    with pytest.raises(error):
        read_pickle(data)


@pytest.mark.parametrize("form", ["proto", "torch", "safetensors"])
def test_cut_off_files_are_reported(batch, tmp_path, form):
    archive = io.BytesIO()
    torch.save(batch, archive)
    data = {"proto": proto_bytes(archive.getvalue(), {"uid": ["a"] * 8}, {}), "torch": archive.getvalue()}.get(form)
    if data is None:
        data = pytest.importorskip("safetensors.torch").save(batch)
    path = tmp_path / "cut"
    for end in [*range(1, 40), *range(40, len(data) - 1, len(data) // 40), len(data) - 1]:
        path.write_bytes(data[:end])
        with pytest.raises(BatchError, match=r"A batch is a DataProto that verl wrote|is a pickle that asks for"):
            files.open_batch(path)


BAD = {
    "empty": (lambda path: path.touch(), ["it is empty"]),
    "folder": (lambda path: path.mkdir(), ["it is a folder", "one file"]),
    "missing": (lambda path: None, ["No such file"]),
    "text": (lambda path: path.write_text("step,reward\n1,0.5\n"), ["none of the formats", "safetensors"]),
    "another zip": (lambda path: zipfile.ZipFile(path, "w").close(), ["none of the formats"]),
    "a zip of texts": (lambda path: zip_of(path, "notes.txt"), ["no batch"]),
    "another pickle": (lambda path: path.write_bytes(pickle.dumps([1, 2])), ["a pickle of a list"]),
    "no tensors": (lambda path: torch.save({"step": 3}, path), ["it has no tensors"]),
    "a list": (lambda path: torch.save([torch.ones(2)], path), ["has a list where a dict of tensors should be"]),
    "an old archive": (
        lambda path: torch.save({"a": torch.ones(2)}, path, _use_new_zipfile_serialization=False),
        ["a pickle of a int"],
    ),
    "half of parquet": (lambda path: path.write_bytes(b"PAR1" + b"\0" * 50), ["cut off, malformed"]),
}  # fmt: skip


def zip_of(path, name):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(name, "x")


@pytest.mark.parametrize("kind", BAD)
def test_rejects_a_file_that_is_not_a_batch(tmp_path, kind):
    write, words = BAD[kind]
    write(tmp_path / "batch")
    with pytest.raises(BatchError) as error:
        files.open_batch(tmp_path / "batch")
    for word in words:
        assert word in str(error.value)


def test_rows_without_padding_are_refused_with_what_to_write(tmp_path):
    pa, _ = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pa.parquet.write_table(pa.table({"completion_ids": [[1, 2], [3]]}), tmp_path / "b.parquet")
    with pytest.raises(BatchError, match=r"completion_ids has a list for each row.*: pad it, and write the tensors"):
        files.open_batch(tmp_path / "b.parquet")
