"""The formats of predictions, and files that options name: each gives the same tensors."""

import gzip
import json
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pytest
import torch

from dualfocal.predictions import Predictions, load_predictions, rewrite_predictions

PROBS = np.array([[0.5, 0.25, 0.25], [0.125, 0.75, 0.125], [0.0, 0.25, 0.75], [1.0, 0.0, 0.0]])
CODES = np.array([0, 1, 2, 0])
ANIMALS = np.array(["cat", "dog", "emu"])


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def assert_read(data: Predictions, class_names: tuple[str, ...] | None = None, kind: str = "probs") -> None:
    assert data.input == kind
    assert data.values.double().tolist() == PROBS.tolist()
    assert data.target.tolist() == CODES.tolist()
    assert data.class_names == class_names


def json_lines(rows: list[dict[str, object]], path: str = "file.jsonl") -> Path:
    content = "".join(json.dumps(row) + "\n" for row in rows).encode()
    Path(path).write_bytes(gzip.compress(content) if path.endswith(".gz") else content)
    return Path(path)


# Arrays


def test_npy_files_beside_each_other(refusal):
    for dtype in (np.float16, np.float32, ">f8"):
        np.save("probs.npy", PROBS.astype(dtype))
        np.save("y.npy", CODES.astype(np.uint8))
        assert_read(load_predictions("probs.npy", target="y.npy"))
        assert_read(load_predictions("y.npy", probs="probs.npy"))
        assert_read(load_predictions("probs.npy", logits="probs", target="y.npy"), kind="logits")
    np.save("groups.npy", np.array([3, 1, 3, 1]))
    assert load_predictions("probs.npy", target="y.npy", group="groups.npy").groups.tolist() == [3, 1, 3, 1]


def test_labels_of_another_length_or_file_are_refused(refusal):
    np.save("probs.npy", PROBS)
    np.save("short.npy", CODES[:3])
    np.savez("two.npz", a=CODES, b=CODES)
    assert "each row needs one label, got 'probs'" in refusal(Path("probs.npy"), target="short.npy")
    assert "has no array 'none.npy', and there is no such file" in refusal(Path("probs.npy"), target="none.npy")
    with pytest.raises(ValueError, match=r"two\.npz: a file for --target must hold one array"):
        load_predictions("probs.npy", target="two.npz")
    np.savez("two.npz", a=CODES, label=CODES)
    assert_read(load_predictions("probs.npy", target="two.npz"))
    assert re.search("no labels with a usual name.*--target labels.npy", refusal(Path("probs.npy")))


def test_a_table_with_labels_in_another_file_keeps_its_columns():
    Path("a.csv").write_text("id,p0,p1\nx,0.5,0.5\ny,0.25,0.75\n")
    np.save("y.npy", CODES[:2])
    data = load_predictions("a.csv", target="y.npy")
    assert data.target.tolist() == [0, 1]
    rewrite_predictions("b.csv", data, data.values.flip(1))
    assert Path("b.csv").read_text() == "id,p0,p1\nx,0.5,0.5\ny,0.75,0.25\n"
    Path("labels.csv").write_text("id,label\nx,0\ny,1\n")
    np.save("p.npy", PROBS[:2])
    data = load_predictions("labels.csv", probs="p.npy")
    rewrite_predictions("c.csv", data, data.values)
    assert load_predictions("c.csv").values.tolist() == PROBS[:2].tolist()


def test_arrays_without_names_go_by_shape_and_an_option_gives_the_kind(refusal):
    np.savez("file.npz", PROBS, CODES)
    message = refusal(Path("file.npz"))
    assert "for example: --probs arr_0, or --logits arr_0 if" in message
    assert "--target" not in message
    assert_read(load_predictions("file.npz", probs="arr_0"))
    np.savez("file.npz", CODES, PROBS)
    assert_read(load_predictions("file.npz", probs="arr_1"))
    for other in (CODES[:3], CODES / 2, CODES[:, None], PROBS):  # of another length, or as well values
        np.savez("file.npz", PROBS, other)
        assert "no labels with a usual name" in refusal(Path("file.npz"), probs="arr_0")
    np.savez("file.npz", PROBS, CODES, CODES)
    assert "no labels with a usual name" in refusal(Path("file.npz"), probs="arr_0")


def test_files_of_torch():
    probs, target = torch.tensor(PROBS), torch.tensor(CODES)
    for dtype in (torch.bfloat16, torch.float32, torch.float64):
        torch.save({"probs": probs.to(dtype), "target": target, "epoch": 3}, "file.pt")
        data = load_predictions("file.pt")
        assert_read(data)
        assert data.values.dtype == dtype
    torch.save((probs.t().contiguous().t(), target), "file.pth")
    assert_read(load_predictions("file.pth", probs="arr_0"))
    torch.save(torch.nn.Parameter(probs), "probs.pt")
    torch.save(target, "y.pt")
    data = load_predictions("probs.pt", target="y.pt")
    assert_read(data)
    assert not data.values.requires_grad
    torch.save({"probs": probs, "labels": ANIMALS[CODES].tolist(), "class_names": ANIMALS.tolist()}, "file.pt")
    assert_read(load_predictions("file.pt"), ("cat", "dog", "emu"))


# JSON


def test_json_lines():
    lists = [{"probs": row.tolist(), "label": int(k)} for row, k in zip(PROBS, CODES, strict=True)]
    for path in ("a.jsonl", "a.JSONL.gz"):
        assert_read(load_predictions(json_lines(lists, path)))
    by_name = [
        {"label": ANIMALS[k].item(), "probs": dict(zip(ANIMALS.tolist(), row.tolist(), strict=True))}
        for row, k in zip(PROBS, CODES, strict=True)
    ]
    by_name[1]["probs"] = dict(reversed(by_name[1]["probs"].items()))  # the order of keys has no meaning
    assert_read(load_predictions(json_lines(by_name)), ("cat", "dog", "emu"))
    assert_read(load_predictions(json_lines(by_name), probs="probs"), ("cat", "dog", "emu"))
    keys = [
        {f"prob_{text}": value for text, value in zip(ANIMALS, row, strict=True)} | {"y": int(k)}
        for row, k in zip(PROBS.tolist(), CODES, strict=True)
    ]
    assert_read(load_predictions(json_lines(keys)), ("cat", "dog", "emu"))
    whole = [{"logits": [1, 0, -2], "label": True, "site": "a"}, {"logits": [3, 4, 0.5], "label": False, "site": 7}]
    data = load_predictions(json_lines(whole), group="site")
    assert (data.values.tolist(), data.target.tolist()) == ([[1, 0, -2], [3, 4, 0.5]], [1, 0])
    assert data.groups.tolist() == ["a", "7"]


def test_json_lines_become_a_table():
    rows = [{"id": 7, "note": "a,b", "probs": row.tolist(), "y": int(k)} for row, k in zip(PROBS, CODES, strict=True)]
    data = load_predictions(json_lines(rows))
    rewrite_predictions("b.csv", data, data.values.flip(0))
    again = load_predictions("b.csv", group="note")
    assert again.values.tolist() == PROBS[::-1].tolist()
    assert (again.target.tolist(), again.groups.tolist()) == (CODES.tolist(), ["a,b"] * 4)


# Arrow


@pytest.mark.parametrize("form", ["uncompressed", "lz4", "zstd", "stream"])
def test_arrow(form):
    def write(**columns: object) -> str:
        table = pa.table(columns)
        if form == "stream":
            with pa.OSFile("file.arrow", "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
                writer.write_table(table, max_chunksize=3)
            return "file.arrow"
        pyarrow.feather.write_feather(table, "file.feather", compression=form, chunksize=3)
        return "file.feather"

    labels = [pa.array(ANIMALS[CODES]), pa.array(ANIMALS[CODES]).dictionary_encode(), pa.array(CODES)]
    for label in labels:
        names = {f"prob_{text}": PROBS[:, k].astype(np.float32) for k, text in enumerate(ANIMALS)}
        assert_read(load_predictions(write(**names, label=label)), ("cat", "dog", "emu"))
    for kind in (pa.list_(pa.float64()), pa.large_list(pa.float64()), pa.list_(pa.float64(), 3)):
        data = load_predictions(write(probs=pa.array(PROBS.tolist(), kind), label=labels[0]), class_names="cat,dog,emu")
        assert_read(data, ("cat", "dog", "emu"))
    data = load_predictions(write(probs=list(PROBS), label=labels[0], note=["a", None, "b", "c"]), class_names=ANIMALS)
    rewrite_predictions("b.parquet", data, data.values)
    assert pyarrow.parquet.read_table("b.parquet")["note"].to_pylist() == ["a", None, "b", "c"]


def test_only_memory_for_what_is_unpacked(refusal):
    column = np.zeros(10**6)
    table = pa.table({"logit_0": column, "logit_1": column, "label": column.astype(np.int8)})
    pyarrow.feather.write_feather(table, "file.feather", compression="zstd")
    assert Path("file.feather").stat().st_size < 100_000
    assert "needs 17.0 MB of memory, but the limit is 10.0 MB" in refusal(Path("file.feather"), max_memory="10MB")
    assert len(load_predictions("file.feather", max_memory="100MB").values) == 10**6
