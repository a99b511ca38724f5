"""Tiny-ImageNet: the order of its images, the official validation images as test part, and damaged images."""

import io
from dataclasses import replace

import numpy as np
import pytest
import torch
from official import TINY, encoded, saying, tiny_imagenet_files, write_folder, write_zip
from PIL import Image

from dualfocal_lab.data import DataNotFoundError, load_data
from dualfocal_lab.data.sources import OFFICIAL

TRAIN = {"n02": [11, 2, 10, 9, 0, 1, 3, 4], "n01": [0, 10, 9, 100, 11, 1, 2, 3]}
VAL = {0: "n02", 1: "n01", 2: "n01", 9: "n02", 10: "n01"}
IN_ORDER = [
    *(f"train/n01/images/n01_{number}.JPEG" for number in (0, 1, 2, 3, 9, 10, 11, 100)),
    *(f"train/n02/images/n02_{number}.JPEG" for number in (0, 1, 2, 3, 4, 9, 10, 11)),
]
LABELS = [0] * 8 + [1] * 8
JUNK = b"\0\5\x16\7\0\2\0\0Mac OS X        "


def files(**options):
    return tiny_imagenet_files(train=TRAIN, val=VAL, **options)


def write(root, files, *, archive=True):
    return write_zip(root / f"{TINY}.zip", files) if archive else write_folder(root, files) / TINY


def load(root, **options):
    return load_data("tiny_imagenet", root, **{"val_size": 4} | options)


def pixels(content):
    with Image.open(io.BytesIO(content)) as image:
        return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)


@pytest.mark.parametrize("sorted_val", [False, True], ids=["val as published", "val sorted into folders"])
@pytest.mark.parametrize("archive", [True, False], ids=["zip", "folder"])
def test_images_are_in_the_order_of_classes_and_numbers_with_the_official_val_last(archive, sorted_val, tmp_path):
    contents = files(sorted_val=sorted_val)
    write(tmp_path, contents, archive=archive)
    data = load(tmp_path)
    names = IN_ORDER + [f"val/{label if sorted_val else 'images'}/val_{number}.JPEG" for number, label in VAL.items()]
    assert torch.equal(data.inputs, torch.stack([pixels(contents[f"{TINY}/{name}"]) for name in names]))
    assert data.target.tolist() == [*LABELS, 1, 0, 0, 1, 0]
    assert data.class_names == ("n01", "n02")
    assert data.splits["test"].tolist() == [16, 17, 18, 19, 20]


def test_sorted_val_folders_may_have_a_folder_images(tmp_path):
    plain, contents = files(sorted_val=True), {}
    for name, content in plain.items():
        *above, file = name.split("/")
        contents["/".join([*above, "images", file] if above[1:2] == ["val"] else [*above, file])] = content
    write(tmp_path, contents)
    write(tmp_path / "plain", plain, archive=False)
    data, expected = load(tmp_path), load(tmp_path / "plain")
    assert torch.equal(data.inputs, expected.inputs)
    assert torch.equal(data.target, expected.target)


def test_the_last_images_of_each_class_are_for_validation(tmp_path):
    write(tmp_path, files())
    data = load(tmp_path, val_size=4)
    assert data.splits["val"].tolist() == [6, 7, 14, 15]  # numbers 11 and 100, 10 and 11
    assert data.splits["train"].tolist() == [0, 1, 2, 3, 4, 5, 8, 9, 10, 11, 12, 13]
    both = load(tmp_path, val_size=4, val2_size=6)
    assert both.splits["val"].tolist() == [6, 7, 14, 15]
    assert both.splits["val2"].tolist() == [3, 4, 5, 11, 12, 13]
    with pytest.raises(ValueError, match="multiples of 2"):
        load(tmp_path, val_size=5)


def test_missing_images_are_reported(tmp_path, monkeypatch):
    write(tmp_path, files())
    assert load(tmp_path).notes == ("tiny_imagenet has 16 + 5 images instead of 100,000 + 10,000",)
    monkeypatch.setitem(OFFICIAL, "tiny_imagenet", replace(OFFICIAL["tiny_imagenet"], num_train=16, num_test=5))
    assert load(tmp_path).notes == ()


def test_normalisation_is_that_of_imagenet_and_training_images_are_cropped_and_mirrored(tmp_path):
    write(tmp_path, files())
    data = load(tmp_path)
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in [(0.485, 0.456, 0.406), (0.229, 0.224, 0.225)])
    torch.testing.assert_close(data.encoder(data.inputs), (data.inputs / 255 - mean) / std)
    assert (data.augment.padding, data.augment.flip) == (4, True)


def test_a_grey_image_has_the_same_three_channels(tmp_path):
    grey = encoded(np.random.default_rng(1).integers(0, 256, (64, 64), dtype=np.uint8), ".jpeg")
    write(tmp_path, files() | {f"{TINY}/train/n01/images/n01_9.JPEG": grey})
    image = load(tmp_path).inputs[4]
    assert torch.equal(image, pixels(grey))
    assert torch.equal(image[0], image[1])
    assert torch.equal(image[0], image[2])
    assert image[0].unique().numel() > 100


def test_progress_ends_at_1_and_is_not_called_when_the_cache_is_read(tmp_path):
    contents = files() | tiny_imagenet_files(train={"n01": range(200, 320)}, val={})
    contents[f"{TINY}/val/val_annotations.txt"] = files()[f"{TINY}/val/val_annotations.txt"]
    write(tmp_path, contents)
    shares = []
    first = load(tmp_path, progress=shares.append)
    assert shares == [100 / 141, 1.0]
    again = load(tmp_path, progress=shares.append)
    assert len(shares) == 2
    assert torch.equal(again.inputs, first.inputs)


def test_the_zip_and_the_folder_are_read_anew_when_changed(tmp_path):
    folder = write(tmp_path, files(), archive=False)
    before = load(tmp_path)
    (folder / "train/n01/images/n01_9.JPEG").unlink()
    after = load(tmp_path)
    assert torch.equal(after.inputs, torch.cat([before.inputs[:4], before.inputs[5:]]))


BLACK = encoded(np.zeros((64, 64, 3), np.uint8), ".jpeg")


@pytest.mark.parametrize("archive", [True, False], ids=["zip", "folder"])
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (encoded(np.zeros((64, 63, 3), np.uint8), ".jpeg"), "has 64 x 63 pixels, but must have 64 x 64"),
        (encoded(np.zeros((65, 64), np.uint8), ".jpeg"), "has 65 x 64 pixels, but must have 64 x 64"),
        (b"", "cannot be read"),
        (b"no image at all", "cannot be read"),
        (BLACK[:-100], "cannot be read"),
    ],
    ids=["63 wide", "65 high", "empty", "text", "cut off"],
)
def test_a_damaged_image_is_named_and_not_cached(content, words, archive, tmp_path):
    for name in ("train/n02/images/n02_3.JPEG", "val/images/val_9.JPEG"):
        write(tmp_path, files() | {f"{TINY}/{name}": content}, archive=archive)
        with pytest.raises(ValueError, match=saying(f"{TINY}/{name}", words)):
            load(tmp_path)
    assert not list(tmp_path.glob("decoded/*"))


def test_incomplete_or_repeated_data_are_refused(tmp_path):
    with pytest.raises(DataNotFoundError, match=saying(TINY, tmp_path, "dualfocal data fetch tiny_imagenet")):
        load(tmp_path)
    contents, table = files(), f"{TINY}/val/val_annotations.txt"
    contents[table] = b"".join(line for line in contents[table].splitlines(keepends=True) if b"val_9" not in line)
    path = write(tmp_path, contents)
    with pytest.raises(ValueError, match=saying(path, "val_annotations.txt", "val_9.JPEG")):
        load(tmp_path)
    del contents[table]
    path = write(tmp_path, contents)
    with pytest.raises(ValueError, match=saying(path, "val_annotations.txt", "val_")):
        load(tmp_path)
    path = write(tmp_path, tiny_imagenet_files(train=TRAIN, val=VAL | {11: "n77"}))
    with pytest.raises(ValueError, match=saying(path, "val has classes that train does not have: n77")):
        load(tmp_path)
    path = write(tmp_path, files() | files(sorted_val=True))  # sorted by copying: they must not be read twice
    with pytest.raises(ValueError, match=saying(path, "several images with the same number", "val_9.JPEG")):
        load(tmp_path)
    for part in ("train", "val"):
        rest = {name: content for name, content in files().items() if not name.startswith(f"{TINY}/{part}")}
        path = write(tmp_path, rest)
        with pytest.raises(ValueError, match=saying(path, "train/CLASS/images/*.JPEG", "val/images/*.JPEG")):
            load(tmp_path)
    path = write(tmp_path, files())
    path.write_bytes(path.read_bytes()[:20_000])
    with pytest.raises(ValueError, match=saying(path, "damaged")):
        load(tmp_path)


@pytest.mark.parametrize("archive", [True, False], ids=["zip", "folder"])
def test_files_that_macos_leaves_behind_change_nothing(archive, tmp_path):
    junk = [
        "__MACOSX/._tiny-imagenet-200",
        f"__MACOSX/{TINY}/train/n01/images/._n01_0.JPEG",
        f"__MACOSX/{TINY}/val/images/._val_0.JPEG",
        f"{TINY}/.DS_Store",
        f"{TINY}/train/.DS_Store",
        f"{TINY}/train/n01/images/.DS_Store",
        f"{TINY}/val/._val_annotations.txt",
        f"{TINY}/train/n01/images/._n01_0.JPEG",
        f"{TINY}/val/images/._val_0.JPEG",
    ]
    write(tmp_path / "clean", files(), archive=False)
    write(tmp_path, files() | dict.fromkeys(junk, JUNK), archive=archive)
    data, clean = load(tmp_path), load(tmp_path / "clean")
    assert torch.equal(data.inputs, clean.inputs)
    assert torch.equal(data.target, clean.target)
    assert data.class_names == clean.class_names
