"""Files of batches that say more than they hold, or are anything else: refused in a sentence, at no cost."""

from __future__ import annotations

import contextlib
import io
import json
import os
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from pytest_rlregress.audit import BatchError, files  # noqa: E402


def text_bytes(text):
    return b"X" + struct.pack("<I", len(text)) + text.encode()


def proto_with(uid):
    """A DataProto's pickle whose column uid is this."""
    archive = io.BytesIO()
    ones = {name: torch.ones(4, width) for name, width in (("attention_mask", 6), ("response_mask", 3))}
    torch.save({"input_ids": torch.ones(4, 6, dtype=torch.long), **ones}, archive)
    data = b"B" + struct.pack("<I", len(archive.getvalue())) + archive.getvalue()
    return b"\x80\x04cverl.protocol\nDataProto\n)\x81" + data + b"}" + text_bytes("uid") + uid + b"s}\x87b."


def array_of(code, count, data=b""):
    """numpy's array of so many texts of a dtype, with this content."""
    dtype = b"cnumpy\ndtype\n" + text_bytes(code) + b"\x89\x88\x87R(K\x03" + text_bytes("<") + b"NNN"
    dtype += b"J\xff\xff\xff\xff" * 2 + b"K\x00tb"
    shape = b"\x8a\x09" + count.to_bytes(9, "little") + b"\x85"
    make = b"cnumpy._core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85C\x01b\x87R(K\x01"
    return make + shape + dtype + b"\x89C" + bytes([len(data)]) + data + b"tb"


def save(parts):
    archive = io.BytesIO()
    torch.save(parts, archive)
    return archive.getvalue()


def expanded(rows):
    one = torch.ones(1, dtype=torch.long)
    masks = {"attention_mask": 6, "response_mask": 3}
    return save(
        {"input_ids": one.as_strided((rows, 6), (0, 0))}
        | {n: one.as_strided((rows, w), (0, 0)) for n, w in masks.items()}
    )


def nested(depth):
    found = ["x"]
    for _ in range(depth):
        found = [found, found]
    return found


BIG = {
    "texts": lambda: proto_with(array_of("U1", 10**10)),
    "empty texts": lambda: proto_with(array_of("U0", 10**10)),
    "numbers": lambda: proto_with(array_of("i8", 10**10)),
    "negative": lambda: proto_with(array_of("i8", 2**71 - 1)),
    "laughs": lambda: proto_with(b"](" + text_bytes("x") + b"2\x86" * 28 + b"222e"),
    "laughs of torch": lambda: save({"input_ids": torch.ones(4, 6), "uid": nested(60)}),
    "bytes": lambda: b"\x80\x04\x96" + struct.pack("<Q", 6 * 2**30) + b"x.",
    "rows": lambda: expanded(2**33),
    "meta": lambda: save(
        {"input_ids": torch.ones(4, 6, device="meta"), "response_mask": torch.ones(4, 3, device="meta")}
    ),
    "sparse": lambda: save({"input_ids": torch.ones(4, 6).to_sparse(), "response_mask": torch.ones(4, 3)}),
}


@pytest.mark.parametrize("make", BIG.values(), ids=BIG)
def test_file_that_says_more_than_it_holds_is_refused(tmp_path, make):
    path = tmp_path / "batch.pkl"
    path.write_bytes(make())
    with pytest.raises(BatchError, match=r"cut off, malformed or no batch: .+\. A batch"):
        files.open_batch(path)


def test_reads_a_column_that_was_expanded(tmp_path):
    path = tmp_path / "batch.pt"
    path.write_bytes(expanded(64))
    assert len(files.open_batch(path).columns["input_ids"]) == 64


@pytest.mark.parametrize("sign", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c"])
def test_reads_texts_with_every_sign_that_ends_a_line_elsewhere(tmp_path, sign):
    rows = [{"input": "hi", "output": f"a{sign}b", "score": float(i % 2)} for i in range(8)]
    path = tmp_path / "1.jsonl"
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    assert files.open_batch(path).columns["output"] == [f"a{sign}b"] * 8


def test_pipe_is_no_batch(tmp_path):
    os.mkfifo(tmp_path / "batch.pt")
    with pytest.raises(BatchError, match="not a regular file"):
        files.open_batch(tmp_path / "batch.pt")


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_a_batch_or_refused(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "any"
    for begin in (b"", b"\x80\x04", b'{"', b"PK\x03\x04", b"PAR1", b"\x08\0\0\0\0\0\0\0{"):
        path.write_bytes(begin + data)
        with contextlib.suppress(BatchError):
            files.open_batch(path)
