"""Custom data sets in ``.npz`` files."""

import gc
import io
import os
import warnings

import numpy as np
import pytest
import torch
from official import saying, some_images

from dualfocal_lab.data import arrays, load_data

IMAGES, LABELS = some_images(40, 4, side=5)
FEATURES = np.random.default_rng(2).normal(size=(40, 7))


@pytest.fixture
def file(tmp_path):
    return tmp_path / "mine.npz"


def save(file, **arrays):
    np.savez_compressed(file, **arrays)
    return file


def load(file, **options):
    return load_data(str(file), **options)


def parts(x, y):
    cuts = {"train": slice(24), "val": slice(24, 30), "test": slice(30, None)}
    return {f"{name}_{part}": array[cut] for part, cut in cuts.items() for name, array in (("x", x), ("y", y))}


# Splits


def test_arrays_of_parts_are_the_split(file):
    data = load(save(file, **parts(IMAGES, LABELS)), layout="NCHW")
    assert torch.equal(data.inputs, torch.from_numpy(IMAGES))
    assert data.target.tolist() == LABELS.tolist()
    assert {part: indices.tolist() for part, indices in data.splits.items()} == {
        "train": list(range(24)),
        "val": list(range(24, 30)),
        "test": list(range(30, 40)),
    }
    assert (data.name, data.class_names) == ("mine", ("0", "1", "2", "3"))


def test_missing_parts_are_drawn(file):
    splits = load(save(file, x=FEATURES, y=LABELS), val_size=5).splits
    assert {part: len(indices) for part, indices in splits.items()} == {"train": 27, "val": 5, "test": 8}
    assert sorted(torch.cat(list(splits.values())).tolist()) == list(range(40))
    with pytest.raises(ValueError, match="val2_size"):  # a second validation part without a first
        load(file, val_size=0, val2_size=5)
    arrays = parts(FEATURES, LABELS)
    del arrays["x_val"], arrays["y_val"]
    splits = load(save(file, **arrays), val_size=5).splits
    assert splits["test"].tolist() == list(range(24, 34))
    assert sorted([*splits["train"].tolist(), *splits["val"].tolist()]) == list(range(24))
    assert len(splits["val"]) == 5


# Inputs and labels


def test_nhwc_and_nchw_give_the_same_images(file, tmp_path):
    first = load(save(file, x=IMAGES, y=LABELS), layout="NCHW")
    last = load(save(tmp_path / "last.npz", x=IMAGES.transpose(0, 2, 3, 1), y=LABELS), layout="NHWC")
    assert torch.equal(first.inputs, torch.from_numpy(IMAGES))
    assert torch.equal(last.inputs, first.inputs)
    torch.testing.assert_close(last.encoder(last.inputs), first.encoder(first.inputs))


@pytest.mark.parametrize("x", [IMAGES, IMAGES / 255.0], ids=["bytes", "floats"])
def test_the_layout_of_four_dimensions_is_not_guessed(x, file):
    with pytest.raises(ValueError, match=saying(file, "x is (40, 3, 5, 5)", "layout", "NHWC, NCHW")):
        load(save(file, x=x, y=LABELS))
    with pytest.raises(ValueError, match=saying("layout must be one of 'NHWC', 'NCHW', 'NHW', got 'CHWN'")):
        load(file, layout="CHWN")


def test_bytes_are_images_normalised_by_the_training_part_and_grey_ones_get_a_channel(file):
    data = load(save(file, x=IMAGES[:, 0], y=LABELS))
    assert torch.equal(data.inputs, torch.from_numpy(IMAGES[:, :1]))
    train = IMAGES[data.splits["train"].numpy(), 0] / 255
    expected = torch.from_numpy((IMAGES[:, :1] / 255 - train.mean()) / train.std()).float()
    torch.testing.assert_close(data.encoder(data.inputs), expected)


def test_other_numbers_become_float32_and_are_not_normalised(file):
    for dtype in (np.float64, np.float32, np.float16, np.int32, np.bool_):
        x = (10 * FEATURES).astype(dtype)
        data = load(save(file, x=x, y=LABELS))
        assert data.inputs.dtype == torch.float32
        assert torch.equal(data.inputs, torch.from_numpy(x.astype(np.float32))), dtype
        assert torch.equal(data.encoder(data.inputs), data.inputs), dtype


def test_class_names_of_the_file_are_used_also_where_a_class_has_no_samples(file):
    names = np.array(["ant", "bee", "cat", "dog", "eel"])
    for stored in (names, names.astype(bytes)):
        assert load(save(file, x=FEATURES, y=LABELS[:, None], class_names=stored)).class_names == tuple(names)
    with pytest.raises(ValueError, match="labels must be from 0 to 1, got 0 to 3"):
        load(save(file, x=FEATURES, y=LABELS, class_names=names[:2]))


def test_augmentation_is_for_images(file):
    augment = load(save(file, x=IMAGES, y=LABELS), layout="NCHW", padding=1, flip=True).augment
    assert (augment.padding, augment.flip) == (1, True)
    with pytest.raises(ValueError, match=saying("padding and flip need images", file)):
        load(save(file, x=FEATURES, y=LABELS), flip=True)


# Refusals

CASES = {
    "a label too few": ({"y": LABELS[:39]}, "y must be 40 class numbers"),
    "label -1": ({"y": LABELS - 1}, "y must be class numbers from 0"),
    "huge labels": ({"y": np.full(40, 2**50)}, "y"),
    "labels are floats": ({"y": LABELS / 1.0}, "y must be 40 class numbers from 0, got float64"),
    "one-hot labels": ({"y": np.eye(4)[LABELS]}, "y must be 40 class numbers"),
    "labels are texts": ({"y": LABELS.astype(str)}, "y must be 40 class numbers"),
    "one dimension": ({"x": FEATURES[:, 0]}, "x must hold numbers, (N, ...)"),
    "no samples": ({"x": FEATURES[:0], "y": LABELS[:0]}, "x must hold numbers, (N, ...)"),
    "texts": ({"x": FEATURES.astype(str)}, "x must hold numbers"),
    "complex": ({"x": FEATURES * 1j}, "x must hold numbers"),
    "nan": ({"x": np.where(np.arange(7) == 3, np.nan, FEATURES)}, "x has values that are not finite"),
    "bytes in rows": ({"x": IMAGES.reshape(40, -1)}, "x is uint8, so it must"),
    "all parts beside x": (parts(FEATURES, LABELS), "or only x and y; got x, x_train"),
    "val beside x": ({"x_val": FEATURES[30:], "y_val": LABELS[30:]}, "or only x and y; got x, x_val"),
    "test beside x": ({"x_test": FEATURES[30:], "y_test": LABELS[30:]}, "or only x and y; got x, x_test"),
}
CASES = {case: ({"x": FEATURES, "y": LABELS} | arrays, words) for case, (arrays, words) in CASES.items()} | {
    "no labels": ({"x": FEATURES}, "y must be 40 class numbers from 0, got none"),
    "other names": ({"logits": FEATURES}, "must have arrays x_train and y_train"),
    "no training part": ({"x_test": FEATURES, "y_test": LABELS}, "must have arrays x_train"),
    "other features": (parts(FEATURES, LABELS) | {"x_test": FEATURES[30:, :5]}, "x_test must be like x_train"),
    "a label of val too few": (parts(FEATURES, LABELS) | {"y_val": LABELS[:5]}, "y_val must be 6 class numbers"),
}


@pytest.mark.parametrize("case", CASES)
def test_unsuitable_arrays_are_refused(case, file):
    arrays, words = CASES[case]
    with pytest.raises(ValueError, match=saying(file, words)):
        load(save(file, **arrays))


class Evil:
    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


@pytest.mark.parametrize("name", ["x", "y", "class_names"])
def test_pickled_objects_are_refused_and_run_nothing(name, file, tmp_path):
    marker = tmp_path / "it ran"
    evil = np.array([Evil(f"touch '{marker}'")], dtype=object)
    save(file, **{"x": FEATURES, "y": LABELS} | {name: evil})
    with pytest.raises(ValueError, match=saying(file, "cannot be read")):
        load(file)
    assert not marker.exists()


def test_a_damaged_file_is_refused_and_closed(file):
    content = save(file, x=FEATURES, y=LABELS).read_bytes()
    npy = io.BytesIO()
    np.save(npy, FEATURES)
    damaged = (b"", b"no arrays", content[:60] + b"\xff" * 20 + content[80:], npy.getvalue(), content[:1_000])
    gc.collect()  # files that earlier tests left open
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for bad in damaged:
            file.write_bytes(bad)
            message = ""
            try:
                load(file)
            except ValueError as error:
                message = str(error)
            assert message.startswith(f"{file}: cannot be read"), bad[:20]
        gc.collect()
    assert [str(warning.message) for warning in caught] == []


def test_a_missing_file_is_named_and_no_data_folder_is_made(file, tmp_path, monkeypatch):
    monkeypatch.setenv("DUALFOCAL_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match=saying(file, "there is no such file")):
        load(file)
    monkeypatch.chdir(tmp_path)
    save(file, x=FEATURES, y=LABELS)
    assert torch.equal(load("mine.npz").inputs, torch.from_numpy(FEATURES).float())
    assert {path.name for path in tmp_path.iterdir()} == {"mine.npz"}


def test_a_pipe_is_not_called_missing(file):
    os.mkfifo(file)
    with pytest.raises(ValueError, match="not a pipe"):
        arrays.load_npz(file)
