"""SVHN's ``.mat`` files: 10 stands for 0, and pixels come as height, width, channel, image."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.io
import torch
from official import saying, some_images

from dualfocal_lab.data import DataNotFoundError, load_data
from dualfocal_lab.data.sources import OFFICIAL

NUM_TRAIN, NUM_TEST = 30, 12


def write(root, *, train=True, test=True, compressed=True):
    """Write the files; return all images and labels in the order in which they should be read."""
    images, labels = some_images(NUM_TRAIN + NUM_TEST)
    if train:
        save(root / "train_32x32.mat", images[:NUM_TRAIN], labels[:NUM_TRAIN], compressed)
    if test:
        save(root / "test_32x32.mat", images[NUM_TRAIN:], labels[NUM_TRAIN:], compressed)
    return torch.from_numpy(images), torch.from_numpy(labels)


def save(path, images, labels, compressed=True):
    y = np.where(labels == 0, 10, labels).astype(np.uint8)[:, None]
    scipy.io.savemat(path, {"X": np.moveaxis(images, [2, 3, 1, 0], [0, 1, 2, 3]), "y": y}, do_compression=compressed)


def load(root, **options):
    return load_data("svhn", root, **{"val_size": 5} | options)


@pytest.mark.parametrize("compressed", [False, True])
def test_training_images_come_before_test_images(compressed, tmp_path):
    images, labels = write(tmp_path, compressed=compressed)
    for _ in range(2):  # the caches of all and of only the test images are kept apart
        data = load(tmp_path)
        assert torch.equal(data.inputs, images)
        assert torch.equal(data.target, labels)
        assert data.splits["test"].tolist() == list(range(NUM_TRAIN, NUM_TRAIN + NUM_TEST))
        assert torch.equal(load(tmp_path, only_test=True).inputs, images[NUM_TRAIN:])
    assert len(list(tmp_path.glob("decoded/*"))) == 2


def test_pixels_and_digits_lie_where_they_should(tmp_path):
    pixels = np.zeros((32, 32, 3, 10), np.uint8)  # row, column, colour, image
    pixels[3, 20, 0, 0], pixels[30, 1, 1, 1], pixels[9, 8, 2, 1] = 50, 60, 70
    y = np.array([[10], [1], [2], [3], [4], [5], [6], [7], [8], [9]], np.uint8)  # 10 stands for the digit 0
    scipy.io.savemat(tmp_path / "test_32x32.mat", {"X": pixels, "y": y})
    data = load(tmp_path, only_test=True)
    expected = torch.zeros(10, 3, 32, 32, dtype=torch.uint8)
    expected[0, 0, 3, 20], expected[1, 1, 30, 1], expected[1, 2, 9, 8] = 50, 60, 70
    assert torch.equal(data.inputs, expected)
    assert data.target.tolist() == list(range(10))
    assert data.class_names == tuple("0123456789")


def test_only_test_needs_and_reads_the_test_file_only(tmp_path):
    images, labels = write(tmp_path, train=False)
    data = load(tmp_path, only_test=True)
    assert set(data.splits) == {"test"}
    assert torch.equal(data.part("test")[0], images[NUM_TRAIN:])
    assert torch.equal(data.part("test")[1], labels[NUM_TRAIN:])
    with pytest.raises(DataNotFoundError, match=saying("svhn", "train_32x32.mat", tmp_path)):
        load(tmp_path)


def test_missing_images_are_reported(tmp_path, monkeypatch):
    write(tmp_path)
    assert load(tmp_path).notes == ("svhn has 30 + 12 images instead of 73,257 + 26,032",)
    assert load(tmp_path, only_test=True).notes == ()
    whole = replace(OFFICIAL["svhn"], num_train=NUM_TRAIN, num_test=NUM_TEST)
    monkeypatch.setitem(OFFICIAL, "svhn", whole)
    assert load(tmp_path).notes == ()


def test_split_normalisation_and_augmentation(tmp_path):
    images, _ = write(tmp_path)
    data = load(tmp_path, val_size=5, val2_size=4, split_seed=3)
    order = np.random.RandomState(3).permutation(NUM_TRAIN)
    assert data.splits["val"].tolist() == order[:5].tolist()
    assert data.splits["val2"].tolist() == order[5:9].tolist()
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in [(0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)])
    torch.testing.assert_close(data.encoder(data.inputs), (images / 255 - mean) / std)
    assert not data.augment.flip  # a mirrored 2 is no 2
    assert data.augment.padding == 4


BYTES, LABELS = np.zeros((32, 32, 3, 4), np.uint8), np.ones((4, 1), np.uint8)


def test_other_content_is_refused_and_not_cached(tmp_path):
    cases = [
        ({"X": np.moveaxis(BYTES, 3, 0), "y": LABELS}, "got (4, 32, 32, 3)"),
        ({"X": BYTES[:28], "y": LABELS}, "X must be uint8, 32 x 32 x 3 x N"),
        ({"X": BYTES, "y": LABELS[:3]}, "y N labels, got (32, 32, 3, 4) uint8 and (3, 1)"),
        ({"X": BYTES / 255, "y": LABELS}, "must be uint8"),
        ({"X": BYTES, "y": LABELS * 0}, "y must be from 1 to 10"),
        ({"X": BYTES, "y": LABELS * 11}, "y must be from 1 to 10"),
        ({"X": BYTES, "y": LABELS * 1.5}, "y must be from 1 to 10"),
        ({"X": BYTES}, "'y'"),
        ({"y": LABELS}, "'X'"),
    ]
    path = tmp_path / "test_32x32.mat"
    for content, words in cases:
        scipy.io.savemat(path, content)
        with pytest.raises(ValueError, match=saying(path, words)):
            load(tmp_path, only_test=True)
    for damaged in (b"", b"no matrix", bytes(1_000), b"MATLAB 5.0 MAT-file".ljust(124) + b"\0\2IM"):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=saying(path, "damaged")):
            load(tmp_path, only_test=True)
    assert not list(tmp_path.glob("decoded/*"))


@pytest.mark.parametrize("compressed", [False, True])
def test_a_file_that_is_cut_off_is_refused(compressed, tmp_path):
    write(tmp_path, compressed=compressed)
    path = tmp_path / "train_32x32.mat"
    content = path.read_bytes()
    for share in (0.01, 0.5, 0.99):
        path.write_bytes(content[: int(share * len(content))])
        with pytest.raises(ValueError, match=saying(path, "damaged")):
            load(tmp_path)
