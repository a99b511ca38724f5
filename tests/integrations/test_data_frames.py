"""Data frames of pandas and polars, as arguments and as files."""

from pathlib import Path

import numpy as np
import pytest

from dualfocal import TemperatureScaling, compare, evaluate
from dualfocal.calibrators import MultilabelTemperature
from dualfocal.predictions import load_predictions

pandas = pytest.importorskip("pandas")
polars = pytest.importorskip("polars")

RNG = np.random.default_rng(0)
LOGITS = 2 * RNG.normal(size=(60, 3))
TARGET = RNG.integers(0, 3, 60)
NAMES = np.array(["emu", "cat", "dog"])
COLUMNS = {str(name): LOGITS[:, k] for k, name in enumerate(NAMES)}


@pytest.mark.parametrize("library", [pandas, polars])
def test_frames_and_series(library):
    frame = library.DataFrame(COLUMNS)
    expected = evaluate(LOGITS, TARGET).to_dict()
    for labels in (library.Series(TARGET), library.Series(NAMES[TARGET].tolist())):
        assert evaluate(frame, labels).to_dict() == expected
        assert compare(frame, frame, labels).differences["nll"].difference == 0
        assert float(TemperatureScaling().fit(frame, labels).temperature) == float(
            TemperatureScaling().fit(LOGITS, TARGET).temperature
        )


@pytest.mark.parametrize("library", [pandas, polars])
def test_columns_of_two_frames_are_matched_by_name(library):
    frame = library.DataFrame(COLUMNS)
    moved = frame[["dog", "emu", "cat"]]
    assert compare(frame, moved, TARGET).b == evaluate(frame, TARGET)
    several = library.DataFrame({name: (column > 0).astype(int) for name, column in COLUMNS.items()})
    expected = evaluate(frame, several, task="multilabel").to_dict()
    swapped = several[["dog", "emu", "cat"]]
    assert evaluate(frame, swapped, task="multilabel").to_dict() == expected
    assert evaluate(LOGITS, swapped, task="multilabel", class_names=NAMES).to_dict() == expected
    fits = [MultilabelTemperature().fit(frame, labels).temperature for labels in (several, swapped)]
    assert fits[0].tolist() == fits[1].tolist()
    columns = {"columns" if library is pandas else "mapping": {"emu": "x"}}
    other, others = frame.rename(**columns), several.rename(**columns)
    with pytest.raises(ValueError, match="b has the columns x, cat, dog, not emu, cat, dog as a"):
        compare(frame, other, TARGET)
    with pytest.raises(ValueError, match="target has the columns x, cat, dog, not emu, cat, dog as the predictions"):
        evaluate(frame, others, task="multilabel")


def test_columns_without_names_are_matched_by_position():
    numbered = pandas.DataFrame(LOGITS)
    assert compare(pandas.DataFrame(COLUMNS), numbered, TARGET).differences["nll"].difference == 0


@pytest.mark.parametrize(
    ("values", "labels", "message"),
    [
        (pandas.Series(list(LOGITS)), TARGET, r"np\.stack\(column\)"),
        (polars.DataFrame({"logits": list(LOGITS)}), TARGET, r"np\.stack\(column\)"),
        (LOGITS, pandas.Series(TARGET).astype("Int64").mask(np.arange(60) == 3), "missing|plain numbers"),
    ],
)
def test_columns_that_cannot_be_read(values, labels, message):
    with pytest.raises(ValueError, match=message):
        evaluate(values, labels)


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".feather", ".arrow", ".jsonl"])
def test_files_that_they_write(tmp_path, suffix):
    columns = {f"logit_{name}": column for name, column in COLUMNS.items()} | {"label": NAMES[TARGET].tolist()}
    one, two = pandas.DataFrame(columns), polars.DataFrame(columns)
    writers = {
        ".csv": (lambda path: one.to_csv(path, index=False), two.write_csv),
        ".parquet": (one.to_parquet, two.write_parquet),
        ".feather": (one.to_feather, two.write_ipc),
        ".arrow": (one.to_feather, two.write_ipc_stream),
        ".jsonl": (lambda path: one.to_json(path, orient="records", lines=True, double_precision=15), two.write_ndjson),
    }
    for write in writers[suffix]:
        path = Path(tmp_path, f"file{suffix}")
        write(path)
        data = load_predictions(path)
        np.testing.assert_allclose(data.values, LOGITS, rtol=1e-12, atol=1e-14)
        assert data.target.tolist() == TARGET.tolist()
        assert data.class_names == tuple(NAMES)
