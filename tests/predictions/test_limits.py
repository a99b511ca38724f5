"""Limits of reading: memory, the size of labels, and names that could control a terminal."""

import re
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from dualfocal import _memory
from dualfocal.predictions import PredictionsError, load_predictions, rewrite_predictions, save_predictions
from dualfocal.tables import Table

LOGITS = np.random.default_rng(0).normal(size=(50_000, 4))
TARGET = np.arange(len(LOGITS)) % 4
SUFFIXES = [".npz", ".safetensors", ".csv", ".parquet"]


def file_of(folder: Path, suffix: str) -> Path:
    path = folder / f"file{suffix}"
    save_predictions(path, torch.tensor(LOGITS), input="logits", target=torch.tensor(TARGET))
    return path


# Memory


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_file_is_refused_beyond_the_limit_and_read_within_it(tmp_path, refusal, suffix):
    path = file_of(tmp_path, suffix)
    message = refusal(path, max_memory="1MB")
    needed = re.match(r"needs (?:more than )?([0-9.]+) MB of memory, but the limit is 1.0 MB: .*--max-memory", message)
    assert LOGITS.nbytes / 1e6 <= float(needed[1]) <= 8 * LOGITS.nbytes / 1e6 or suffix == ".csv"  # which stops early
    assert len(load_predictions(path, max_memory=20_000_000).values) == len(LOGITS)


def test_the_suggested_limit_is_enough(tmp_path, refusal):
    path = file_of(tmp_path, ".npz")
    size = re.search(r"--max-memory (\w+)", refusal(path, max_memory=1000))[1]
    assert torch.equal(load_predictions(path, max_memory=size).values, torch.tensor(LOGITS))


def test_the_default_is_half_of_the_free_memory(tmp_path, refusal, monkeypatch):
    path = file_of(tmp_path, ".npz")
    monkeypatch.setattr("dualfocal._memory.free_memory", lambda: 3_000_000)
    assert "needs 2.0 MB of memory, but the limit is 1.5 MB (half of the free memory)" in refusal(path)


@pytest.mark.parametrize("size", ["much", "", "-1GB", "0", "8 XB", "1e9", -5])
def test_sizes_that_are_no_size(tmp_path, refusal, size):
    message = refusal(file_of(tmp_path, ".npz"), max_memory=size)
    assert message.startswith("--max-memory must be a positive number of bytes, or a size such as")
    assert message.endswith(f"got {size!r}")


def test_only_arrays_that_are_read_count(npz):
    path = npz(logits=LOGITS[:5], target=TARGET[:5], features=np.zeros(10**6))
    assert len(load_predictions(path, max_memory=1000).values) == 5


def test_running_out_of_memory_is_one_line(tmp_path, refusal, monkeypatch):
    path = file_of(tmp_path, ".npz")

    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("dualfocal.predictions._formats.arrays.NpzFile.get", fail)
    assert refusal(path) == "array 'logits' cannot be read: there is not enough memory"
    monkeypatch.undo()
    monkeypatch.setattr(torch, "from_numpy", fail)
    assert refusal(path) == "cannot be read: there is not enough memory"


def test_a_long_group_is_counted_for_every_row(text_file, refusal):
    rows = "".join(f"0.5,0.5,{k % 2},{'x' * 10_000 if k == 0 else 'y'}\n" for k in range(3_000))
    path = text_file("p0,p1,label,group\n" + rows)
    assert "needs 120.0 MB of memory" in refusal(path, group="group", max_memory="10MB")
    assert len(load_predictions(path, max_memory="10MB").values) == 3_000


def test_carried_texts_are_counted_as_they_are_written(tmp_path):
    texts = pa.DictionaryArray.from_arrays(np.zeros(4, "i4"), pa.array(["x" * 10**6]))
    columns = {"logit_0": [0.0] * 4, "logit_1": [2.0] * 4, "label": [0, 1, 0, 1], "text": texts}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet", store_schema=False)
    data = load_predictions(tmp_path / "a.parquet", max_memory="1MB")
    with pytest.raises(PredictionsError, match=r"needs 4\.0 MB of memory, but the limit is 3\.0 MB"):
        rewrite_predictions(tmp_path / "b.parquet", data, data.values, max_memory="3MB")
    rewrite_predictions(tmp_path / "b.parquet", data, data.values)
    assert pq.read_table(tmp_path / "b.parquet").equals(pq.read_table(tmp_path / "a.parquet"))


def test_memory_of_containers(tmp_path, monkeypatch):
    monkeypatch.setattr(_memory, "_free_of_machine", lambda: 10**9)
    monkeypatch.setattr(_memory, "_free_of_control_groups", lambda: [])
    assert _memory.free_memory() == 10**9
    for limit, used, cached in _memory.CONTROL_GROUPS:
        group = tmp_path / limit
        group.mkdir()
        (group / limit).write_text("500\n")
        (group / used).write_text("300\n")
        (group / "memory.stat").write_text(f"anon 1\n{cached} 40\n")
        assert _memory._free_of(group) == 240
        monkeypatch.setattr(_memory, "_free_of_control_groups", lambda group=group: [_memory._free_of(group)])
        assert _memory.free_memory() == 240
        (group / limit).write_text("max\n")
        assert _memory.free_memory() == 10**9


def test_an_archive_with_a_name_twice_is_refused(tmp_path, refusal):
    with zipfile.ZipFile(tmp_path / "file.npz", "w") as archive:
        archive.writestr("logits.npy", b"")
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr("logits.npy", b"")
    assert refusal(tmp_path / "file.npz") == "has more than one array 'logits'"


# Labels


@pytest.mark.parametrize("label", [2**63, 2**64 - 100, 2**64 - 1])
def test_unsigned_labels_do_not_wrap(npz, tmp_path, refusal, label):
    target = np.array([0, label, 1], np.uint64)
    message = refusal(npz(logits=LOGITS[:3], target=target), labels=True)
    assert message == f"label {label} in row 1 must be below 2**63"
    with pytest.raises(PredictionsError, match=f"labels must be below .*, got {label}"):
        save_predictions(tmp_path / "a.npz", torch.tensor(LOGITS[:3]), input="logits", target=torch.tensor(target))
    target[1] = 2**63 - 1
    assert load_predictions(npz(logits=LOGITS[:3], target=target)).target.tolist() == [0, 2**63 - 1, 1]


# Names

NAMES = ("\x1b[2Jcat", "d\u202eog", "e\nmu")


def test_names_are_exact_in_data_and_escaped_in_text(npz):
    data = load_predictions(npz(logits=LOGITS[:3, :3], target=np.array(NAMES), class_names=np.array(NAMES)))
    assert data.class_names == NAMES
    assert data.target.tolist() == [0, 1, 2]
    assert data.taken.endswith(r"by name (0 = \x1b[2Jcat, 1 = d\u202eog, 2 = e\nmu)")


def test_tables_escape_names():
    table = Table(["name", "N"], [[NAMES[0], "1"], ["e\nmu", "20"]])
    assert table.text() == "name         N\n\\x1b[2Jcat   1\ne\\nmu       20"
    assert NAMES[0] in table.csv()  # data


def test_long_names_are_cut_in_messages(text_file, refusal):
    message = refusal(text_file(f"logit_{'a' * 10**5},logit_b,label\n1,2,x\n"))
    assert len(message) < 500
    assert re.search(r"label 'x' in line 2 is none of the classes \(a+\.\.\.a+, b\)", message)
