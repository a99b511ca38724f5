"""Files read in chunks give what loading gives, or an error that names the row of the file."""

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from dualfocal import evaluate
from dualfocal.metrics import CalibrationSums
from dualfocal.predictions import (
    PredictionsError,
    TooLargeError,
    load_predictions,
    save_predictions,
    stream_predictions,
    sum_predictions,
)

N, C = 203, 3
RANDOM = np.random.default_rng(0)
LOGITS = 2 * RANDOM.normal(size=(N, C))
PROBS = torch.tensor(LOGITS).softmax(1).numpy()
TARGET = RANDOM.integers(0, C, N)
NAMES = np.array(["cat", "dog", "emu"])
SIZES = [7, 64, 1000]


def check_same(path: Path, *, num_rows: int | None = None, **options: object) -> None:
    """Check that chunks hold exactly what loading gives, and that the numbers of the evaluation are the same."""
    data = load_predictions(path, **options)
    for size in SIZES if num_rows is None else [num_rows]:
        chunks = list(stream_predictions(path, num_rows=size, **options))
        assert torch.equal(torch.cat([chunk.values for chunk in chunks]), data.values)
        assert torch.equal(torch.cat([chunk.target for chunk in chunks]), data.target)
        assert {(chunk.input, chunk.class_names, chunk.values.dtype) for chunk in chunks} == {
            (data.input, data.class_names, data.values.dtype)
        }
        if len(data.values) == N:
            assert [chunk.first_row for chunk in chunks] == list(range(0, N, size))


def errors(path: Path, num_rows: int = 50, **options: object) -> str:
    with pytest.raises(PredictionsError) as refused:
        stream_predictions(path, num_rows=num_rows, **options).sums()
    message = str(refused.value)
    assert message.startswith(f"{path}: ")
    assert len(message.splitlines()) == 1
    return message.removeprefix(f"{path}: ")


def table(folder: Path, name: str, **columns: object) -> Path:
    path = folder / name
    if name.endswith(".parquet"):
        pq.write_table(pa.table(columns), path, row_group_size=30)
        return path
    rows = zip(*columns.values(), strict=True)
    text = "\n".join([",".join(columns), *(",".join(map(str, row)) for row in rows)]) + "\n"
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


def by_class(prefix: str, values: np.ndarray) -> dict[str, np.ndarray]:
    return {f"{prefix}_{name}": values[:, k] for k, name in enumerate(NAMES)}


# The same as loading


@pytest.mark.parametrize("suffix", [".safetensors", ".csv", ".parquet"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_chunks_are_the_rows_of_the_file(tmp_path, suffix, dtype):
    for kind, values in (("logits", LOGITS), ("probs", PROBS)):
        path = tmp_path / f"{kind}{suffix}"
        save_predictions(path, torch.tensor(values, dtype=dtype), input=kind, target=torch.tensor(TARGET))
        check_same(path)


def check_numbers(actual: CalibrationSums, expected: CalibrationSums) -> None:
    assert repr(actual) == repr(expected)
    streamed, whole = (sums.evaluate(inference=False) for sums in (actual, expected))
    for name in ("error", "nll", "brier", "ece", "mce", "classwise_ece", "adaptive_ece", "aurc"):
        assert getattr(streamed, name) == pytest.approx(getattr(whole, name), abs=1e-12)


@pytest.mark.parametrize("num_rows", SIZES)
def test_the_numbers_do_not_depend_on_the_chunks(tmp_path, num_rows):
    path = tmp_path / "file.safetensors"
    save_predictions(path, torch.tensor(PROBS).float(), input="probs", target=torch.tensor(TARGET))
    data = load_predictions(path)
    exact = evaluate(data.values, data.target, input="probs", inference=False)
    sums = stream_predictions(path, num_rows=num_rows).sums()
    check_numbers(sums, CalibrationSums.from_predictions(data.values, data.target, input="probs"))
    check_numbers(sums, sum_predictions(path))
    for name in ("error", "nll", "brier", "ece", "mce", "classwise_ece"):
        assert getattr(sums.evaluate(inference=False), name) == pytest.approx(getattr(exact, name), abs=1e-9)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize("clusters", [np.arange(N) // 4, NAMES[np.arange(N) % 3], np.arange(N) / 1])
def test_clusters_can_lie_in_several_chunks(tmp_path, suffix, clusters):
    path = table(tmp_path, f"a{suffix}", **by_class("prob", PROBS), label=TARGET, patient=clusters)
    expected = CalibrationSums.from_predictions(PROBS, TARGET, input="probs", clusters=clusters)
    stream = stream_predictions(path, num_rows=50, cluster="patient")
    check_numbers(stream.sums(), expected)
    check_numbers(stream.sums(), sum_predictions(path, cluster="patient"))
    assert stream.taken.endswith(", clusters from 'patient'")
    intervals = [sums.evaluate().inference.debiased_ece for sums in (stream.sums(), expected)]
    assert intervals[0] == pytest.approx(intervals[1], abs=1e-9)


def test_clusters_must_not_change_their_meaning(tmp_path):
    path = table(tmp_path, "a.csv", **by_class("prob", PROBS), label=TARGET, patient=[*range(150), *["x"] * 53])
    with pytest.raises(PredictionsError, match="the clusters from row 150 on are texts, but those before are numbers"):
        stream_predictions(path, num_rows=50, cluster="patient").sums()


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["<f4", ">f8"])
def test_arrays_and_labels_of_several_files(tmp_path, order, dtype):
    np.save(tmp_path / "logits.npy", np.asarray(LOGITS.astype(dtype), order=order))
    np.save(tmp_path / "labels.npy", TARGET.astype(np.uint8))
    check_same(tmp_path / "logits.npy", target=str(tmp_path / "labels.npy"))
    labels = table(tmp_path, "labels.csv", label=TARGET)
    check_same(tmp_path / "logits.npy", target=str(labels))


def test_labels_that_are_texts_numbers_from_one_and_one_hot(tmp_path):
    for name in ("a.csv", "a.csv.gz", "a.parquet"):
        check_same(table(tmp_path, name, **by_class("prob", PROBS), label=NAMES[TARGET]))
        numbered = {f"prob_{k + 1}": PROBS[:, k] for k in range(C)}
        check_same(table(tmp_path, name, **numbered, label=TARGET + 1))
        check_same(table(tmp_path, name, **by_class("prob", PROBS), label=TARGET))  # positions
        check_same(table(tmp_path, name, **dict(zip(NAMES, PROBS.T, strict=True)), label=NAMES[TARGET]), num_rows=50)
    np.save(tmp_path / "logits.npy", LOGITS)
    np.save(tmp_path / "labels.npy", np.eye(C)[TARGET])
    check_same(tmp_path / "logits.npy", target=str(tmp_path / "labels.npy"))
    np.save(tmp_path / "labels.npy", NAMES[TARGET])
    check_same(tmp_path / "logits.npy", target=str(tmp_path / "labels.npy"), class_names="cat,dog,emu")


def test_lists_percent_and_binary_scores(tmp_path):
    check_same(table(tmp_path, "lists.parquet", logits=list(LOGITS), label=TARGET))
    path = table(tmp_path, "percent.parquet", **by_class("prob", (100 * np.eye(C, dtype=int))[TARGET]), label=TARGET)
    check_same(path, percent=True)
    path = table(tmp_path, "score.csv", score=PROBS[:, 1], outcome=np.where(TARGET == 1, "ill", "well"))
    check_same(path, probs="score", target="outcome", positive="ill")
    for binary in ("top_label", "positive"):
        sums = sum_predictions(path, probs="score", target="outcome", positive="ill", binary=binary)
        expected = CalibrationSums.from_predictions(PROBS[:, 1], TARGET == 1, input="probs", binary=binary)
        check_numbers(sums, expected)


def test_chunks_without_a_usable_row(tmp_path):
    """Ignored labels say nothing on how labels are written, and dropped rows are counted."""
    labels = [-100] * 60 + list(NAMES[TARGET[60:]])
    path = table(tmp_path, "ignored.csv", **by_class("prob", PROBS), label=labels)
    check_same(path)
    assert stream_predictions(path, num_rows=20).sums().num_samples == N - 60
    labels[100:150] = [""] * 50
    path = table(tmp_path, "missing.csv", **by_class("prob", PROBS), label=labels)
    check_same(path, drop_missing=True)
    stream = stream_predictions(path, num_rows=25, drop_missing=True)
    assert stream.sums().num_samples == N - 110
    assert stream.taken.endswith("50 of 203 rows had missing values and were dropped")
    assert [row for chunk in stream for row in map(chunk.row_of_file, range(len(chunk.values)))][98:102] == [
        98,
        99,
        150,
        151,
    ]


def test_text_with_quotes_empty_lines_and_other_line_ends(tmp_path):
    for end in ("\n", "\r\n", "\r"):
        texts = ['a, ""b""', "ü", ""]
        rows = [f'{LOGITS[k, 0]:.3f},{LOGITS[k, 1]:.3f},"{texts[k % 3]}",{TARGET[k] % 2}' for k in range(N)]
        rows[50:50] = ["", ""]
        path = tmp_path / "file.csv"
        path.write_bytes(("\ufeff" + end.join(["logit_0,logit_1,text,label", *rows])).encode())
        check_same(path)
    rows = [f'{LOGITS[k, 0]:.3f},{LOGITS[k, 1]:.3f},"two\nlines",{TARGET[k] % 2}' for k in range(N)]
    path.write_text("\n".join(["logit_0,logit_1,text,label", *rows]))
    check_same(path)


def test_progress_goes_to_the_end(tmp_path):
    for name in ("a.csv", "a.csv.gz", "a.parquet"):
        fractions: list[float] = []
        stream_predictions(table(tmp_path, name, **by_class("prob", PROBS), label=TARGET), num_rows=50).sums(
            progress=fractions.append
        )
        assert fractions == sorted(fractions)
        assert len(fractions) == 5
        assert fractions[-1] == 1


# Errors


def test_labels_must_not_change_their_meaning(tmp_path):
    labels = [*map(str, TARGET[:120]), *NAMES[TARGET[120:]]]
    message = errors(table(tmp_path, "a.csv", **by_class("prob", PROBS), label=labels), num_rows=60)
    assert "the label in line 122 is the name of a class, but labels before are a number" in message
    labels = ["True"] * 100 + ["1"] * 103
    path = table(tmp_path, "b.csv", score=PROBS[:, 1], label=labels)
    with pytest.raises(PredictionsError, match="line 102 is a number, but labels before are true or false"):
        list(stream_predictions(path, probs="score", num_rows=50))
    labels = ["well"] * 150 + ["ill", "dead"] + ["well"] * 51
    path = table(tmp_path, "c.csv", score=PROBS[:, 1], label=labels)
    with pytest.raises(PredictionsError, match="--positive must name one of two labels"):
        list(stream_predictions(path, probs="score", positive="ill", num_rows=50))
    path = table(tmp_path, "d.csv", score=PROBS[:, 1], label=["well"] * N)
    with pytest.raises(PredictionsError, match="'ill' for well"):
        list(stream_predictions(path, probs="score", positive="ill", num_rows=50))


def broken(row: int, value: float) -> np.ndarray:
    values = PROBS.copy()
    values[row, 1] = value
    return values


def test_errors_name_the_row_of_the_file(tmp_path):
    def parquet(values: np.ndarray, label: object = TARGET) -> Path:
        return table(tmp_path, "a.parquet", **by_class("prob", values), label=label)

    assert "row 151 sums to" in errors(parquet(broken(151, 0.9999)))
    assert "row 152 holds NaN" in errors(parquet(broken(152, np.nan)))
    ignored = np.where(np.arange(N) % 3 == 0, -100, TARGET)
    assert "row 151 sums to" in errors(parquet(broken(151, 0.9999), ignored))
    assert "target 7 is out of range" in (message := errors(parquet(PROBS, np.where(np.arange(N) == 120, 7, TARGET))))
    assert "in rows 100 to 149" in message
    missing = [None if row == 130 else int(label) for row, label in enumerate(TARGET)]
    assert "column 'label' is empty in row 130; 1 of 50 rows from row 100 on" in errors(parquet(PROBS, missing))
    lists = [*LOGITS[:100], LOGITS[0, :2], *LOGITS[101:]]
    path = table(tmp_path, "lists.parquet", logits=lists, label=TARGET)
    assert "got 3 in row 99 and 2 in row 100" in errors(path, num_rows=33)
    path = table(tmp_path, "a.csv", **by_class("prob", PROBS), label=[*TARGET[:150], "1.5", *TARGET[151:]])
    assert "label 1.5 in line 152 is not a whole number" in errors(path)
    text = path.read_text().replace("1.5\n", "1\n").splitlines()
    text[170] = "x" + text[170]
    path.write_text("\n".join(text))
    assert "in line 171" in errors(path)
    text[170] = "1,2"
    path.write_text("\n".join(text))
    assert "line 171 has 2 fields, but the header has 4" in errors(path)
    np.save(tmp_path / "logits.npy", LOGITS)
    np.save(tmp_path / "labels.npy", 1 - np.eye(C)[TARGET])
    message = errors(tmp_path / "logits.npy", target=str(tmp_path / "labels.npy"))
    assert "must be one-hot" in message


def test_files_of_different_lengths(tmp_path):
    np.save(tmp_path / "logits.npy", LOGITS)
    for count in (N - 1, 100):
        np.save(tmp_path / "labels.npy", TARGET[:count])
        message = errors(tmp_path / "logits.npy", target=str(tmp_path / "labels.npy"))
        assert f"labels.npy has {count} rows" in message
    path = tmp_path / "file.safetensors"
    save_predictions(path, torch.tensor(LOGITS), input="logits", target=torch.tensor(TARGET))
    from safetensors.torch import load_file, save_file

    save_file({**load_file(path), "target": torch.zeros(5, dtype=torch.int64)}, path)
    assert "'logits' (203 x 3, float64) and 'target' (5, int64)" in errors(path)


def test_probabilities_named_logits_are_refused_at_once(tmp_path):
    path = table(tmp_path, "a.csv", **by_class("logit", PROBS), label=TARGET)
    assert "must hold logits, but all rows lie in [0, 1]" in errors(path)
    check_same(path, logits="logit")


def test_rows_that_do_not_fit_and_files_without_rows(tmp_path):
    path = table(tmp_path, "a.csv", **by_class("prob", PROBS), label=TARGET)
    with pytest.raises(TooLargeError, match="the limit is 200 bytes"):
        stream_predictions(path, max_memory=200)
    long = tmp_path / "long.csv"
    long.write_text("prob_a,prob_b,label\n0.5,0.5,0\n0.5,0." + "5" * 5_000_000 + ",1\n")
    with pytest.raises(TooLargeError, match="the limit is 4"):
        stream_predictions(long, max_memory=4_000_000).sums()
    assert errors(table(tmp_path, "b.csv", **by_class("prob", PROBS[:0]), label=[])) == "has no rows"
    assert errors(table(tmp_path, "b.parquet", **by_class("prob", PROBS[:0]), label=TARGET[:0])) == "has no rows"


def test_a_text_that_unpacks_to_too_much_is_refused(tmp_path):
    path = tmp_path / "bomb.csv.gz"
    path.write_bytes(gzip.compress(b"prob_a,prob_b,label\n") + gzip.compress(b"0,1,0\n" * 200_000) * 20)
    assert "unpacks to more than 200 times its size" in errors(path, num_rows=10**5)


@pytest.mark.parametrize(
    ("suffix", "write"),
    [
        (".npz", lambda path: np.savez(path, logits=LOGITS, target=TARGET)),
        (".pt", lambda path: torch.save({"logits": torch.tensor(LOGITS), "target": torch.tensor(TARGET)}, path)),
        (".jsonl", lambda path: path.write_text('{"logits": [0.5, 1.5], "label": 0}\n' * N)),
        (".feather", lambda path: pa.feather.write_feather(pa.table({"logits": list(LOGITS), "label": TARGET}), path)),
    ],
)
def test_other_formats_say_how_to_convert_them(tmp_path, suffix: str, write: Callable[[Path], object]):
    import pyarrow.feather  # noqa: F401

    path = tmp_path / f"file{suffix}"
    write(path)
    with pytest.raises(TooLargeError, match=r"reads \.npy, .* in one pass, so ") as error:
        load_predictions(path, max_memory=2000)
    assert not error.value.streamable
    assert "cannot be read in one pass: " in errors(path)
