"""CIFAR-10 and CIFAR-100: every layout gives the same images, and no file is trusted."""

import dataclasses
import os
import pickle

import numpy as np
import pytest
import torch
from official import (
    CIFAR10_NAMES,
    CIFAR100_NAMES,
    cifar_dict,
    cifar_files,
    overwrite,
    python3_pickle,
    saying,
    some_images,
    write_folder,
    write_tar,
)

from dualfocal_lab.data import DataNotFoundError, load_data
from dualfocal_lab.data.sources import OFFICIAL

NUM_CLASSES = {"cifar10": 10, "cifar100": 100}
NAMES = {"cifar10": CIFAR10_NAMES, "cifar100": CIFAR100_NAMES}
ARCHIVES = {
    ("cifar10", "binary"): "cifar-10-binary.tar.gz",
    ("cifar10", "python"): "cifar-10-python.tar.gz",
    ("cifar100", "binary"): "cifar-100-binary.tar.gz",
    ("cifar100", "python"): "cifar-100-python.tar.gz",
}
BIN, PY = "cifar-10-batches-bin", "cifar-10-batches-py"
NUM, NUM_TRAIN = 120, 100


def write(root, name="cifar10", version="binary", *, archive=False, images=None, labels=None):
    """Write a folder or an archive, and return its path."""
    if images is None:
        images, labels = some_images(NUM, NUM_CLASSES[name])
    files = cifar_files(name, images, labels, version)
    if archive:
        return write_tar(root / ARCHIVES[name, version.split()[0]], files)
    return write_folder(root, files) / next(iter(files)).split("/")[0]


def load(root, name="cifar10", **options):
    return load_data(name, root, **{"val_size": 20} | options)


# Reading


@pytest.mark.parametrize("archive", [False, True], ids=["folder", "archive"])
@pytest.mark.parametrize("version", ["binary", "python 2", "python 3"])
@pytest.mark.parametrize("name", NUM_CLASSES)
def test_every_layout_gives_the_images_labels_and_names_that_were_written(name, version, archive, tmp_path):
    images, labels = some_images(NUM, NUM_CLASSES[name])
    write(tmp_path, name, version, archive=archive)
    data = load(tmp_path, name)
    assert torch.equal(data.inputs, torch.from_numpy(images))
    assert data.target.tolist() == labels.tolist()
    assert data.class_names == NAMES[name]
    assert data.splits["test"].tolist() == list(range(NUM_TRAIN, NUM))
    assert sorted([*data.splits["train"], *data.splits["val"]]) == list(range(NUM_TRAIN))


def test_a_record_is_a_label_then_red_green_and_blue_planes_row_by_row(tmp_path):
    record = bytearray(1 + 3 * 1024)
    record[0] = 6
    record[1 + 32 * 5 + 7], record[1 + 1024 + 32 * 31 + 2], record[1 + 2048] = 11, 22, 33
    batches = {f"{BIN}/{file}.bin": bytes(record) for file in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]}
    data = load(write_folder(tmp_path, batches), val_size=1)
    expected = torch.zeros(3, 32, 32, dtype=torch.uint8)
    expected[0, 5, 7], expected[1, 31, 2], expected[2, 0, 0] = 11, 22, 33
    assert all(torch.equal(image, expected) for image in data.inputs)
    assert data.target.tolist() == [6] * 6


@pytest.mark.parametrize("version", ["binary", "python 2"])
def test_without_a_file_of_names_classes_are_numbered(version, tmp_path):
    folder = write(tmp_path, version=version)
    next(folder.glob("batches.meta*")).unlink()
    assert load(tmp_path).class_names == tuple("0123456789")


def test_layouts_are_looked_for_as_documented_folders_first_and_binary_first(tmp_path):
    order = [("binary", False), ("python 2", False), ("binary", True), ("python 2", True)]
    paths = []
    for value, (version, archive) in enumerate(order):
        images = np.full((12, 3, 32, 32), value, dtype=np.uint8)
        paths.append(write(tmp_path, version=version, archive=archive, images=images, labels=np.arange(12) % 10))
    for value, path in enumerate(paths):
        assert load(tmp_path, val_size=2).inputs.unique().tolist() == [value]
        path.rename(tmp_path / f"set aside {value}")
    with pytest.raises(DataNotFoundError, match=saying("cifar10", BIN, PY, tmp_path, "dualfocal data fetch cifar10")):
        load(tmp_path)


# The cache


def test_files_are_read_again_only_if_they_have_changed(tmp_path):
    folder = write(tmp_path)
    before = load(tmp_path).inputs
    file = folder / "data_batch_2.bin"
    overwrite(file, bytes(file.stat().st_size), seconds_later=0)  # size and time are the same
    assert torch.equal(load(tmp_path).inputs, before)
    overwrite(file, cifar_files("cifar10", *some_images(NUM))[f"{BIN}/data_batch_2.bin"], seconds_later=0)
    images, labels = some_images(NUM, seed=1)
    files = cifar_files("cifar10", images, labels)
    overwrite(folder / "data_batch_3.bin", files[f"{BIN}/data_batch_3.bin"], seconds_later=1)
    after = load(tmp_path).inputs
    assert torch.equal(after[40:60], torch.from_numpy(images[40:60]))
    assert torch.equal(after[:40], before[:40])
    assert torch.equal(after[60:], before[60:])

    (tmp_path / "second").mkdir()
    path = write(tmp_path / "second", archive=True)
    load(tmp_path / "second")
    overwrite(path, write_tar(tmp_path / "other.tar.gz", files).read_bytes(), seconds_later=1)
    assert torch.equal(load(tmp_path / "second").inputs, torch.from_numpy(images))
    (folder / "data_batch_2.bin").unlink()  # although the cache has it
    with pytest.raises(ValueError, match=saying(folder, "data_batch_2.bin")):
        load(tmp_path)


# Splits and normalisation


def published_order(count, seed=1):
    """The order in which the published code drew samples."""
    order = list(range(count))
    np.random.RandomState(seed).shuffle(order)
    return order


@pytest.mark.parametrize("name", NUM_CLASSES)
def test_the_first_of_the_shuffled_training_images_are_for_validation(name, tmp_path):
    write(tmp_path, name)
    order = published_order(NUM_TRAIN)
    splits = load(tmp_path, name, val_size=20).splits
    assert (splits["val"].tolist(), splits["train"].tolist()) == (order[:20], order[20:])
    splits = load(tmp_path, name, val_size=0.2, split_seed=2).splits
    assert splits["val"].tolist() == published_order(NUM_TRAIN, seed=2)[:20]
    splits = load(tmp_path, name, val_size=20, val2_size=15).splits  # a second part leaves the first unchanged
    assert [splits[part].tolist() for part in ("val", "val2", "train")] == [order[:20], order[20:35], order[35:]]
    splits = load(tmp_path, name, val_size=0).splits
    assert set(splits) == {"train", "test"}
    assert sorted(splits["train"].tolist()) == list(range(NUM_TRAIN))


def test_by_default_5000_images_are_for_validation_drawn_with_seed_1(tmp_path):
    write(tmp_path, images=np.zeros((6_006, 3, 32, 32), np.uint8), labels=np.zeros(6_006, np.int64))
    splits = load_data("cifar10", tmp_path).splits
    assert {part: len(index) for part, index in splits.items()} == {"train": 5, "val": 5_000, "test": 1_001}
    assert splits["val"].tolist() == published_order(5_005)[:5_000]


def normalized(images, mean, std):
    mean, std = (np.array(numbers).reshape(3, 1, 1) for numbers in (mean, std))
    return torch.from_numpy((images / 255 - mean) / std).float()


CIFAR = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@pytest.mark.parametrize("name", NUM_CLASSES)
def test_all_parts_are_normalised_alike_with_the_constants_of_cifar(name, tmp_path):
    images, _ = some_images(NUM, NUM_CLASSES[name])
    write(tmp_path, name)
    data = load(tmp_path, name)
    for part in data.splits:
        torch.testing.assert_close(data.encoder_of(part)(data.inputs), normalized(images, *CIFAR))
    assert (data.augment.padding, data.augment.flip) == (4, True)


@pytest.mark.parametrize("name", NUM_CLASSES)
def test_missing_images_are_reported(name, tmp_path, monkeypatch):
    """A file that is cut at the end of an image can be read: only the number of images shows it."""
    write(tmp_path, name)
    note = f"{name} has {NUM_TRAIN} + {NUM - NUM_TRAIN} images instead of 50,000 + 10,000"
    assert load(tmp_path, name).notes == (note,)
    numbers = {"num_train": NUM_TRAIN, "num_test": NUM - NUM_TRAIN}
    monkeypatch.setitem(OFFICIAL, name, dataclasses.replace(OFFICIAL[name], **numbers))
    assert load(tmp_path, name).notes == ()


def test_the_published_mismatch_changes_the_test_images_of_cifar100_only_with_a_note(tmp_path):
    images, _ = some_images(NUM, 100)
    write(tmp_path, "cifar100")
    plain, data = load(tmp_path, "cifar100"), load(tmp_path, "cifar100", published_test_mismatch=True)
    torch.testing.assert_close(data.encoder_of("test")(data.inputs), normalized(images, *IMAGENET))
    for part in ("train", "val"):
        torch.testing.assert_close(data.encoder_of(part)(data.inputs), normalized(images, *CIFAR))
        assert torch.equal(data.splits[part], plain.splits[part])
    assert torch.equal(data.inputs, plain.inputs)
    assert len(set(data.notes) - set(plain.notes)) == 1
    with pytest.raises(ValueError, match="published_test_mismatch"):
        load(tmp_path, "cifar10", published_test_mismatch=True)


# Damaged and hostile files


@pytest.mark.parametrize(("name", "record"), [("cifar10", 3_073), ("cifar100", 3_074)])
def test_a_file_that_does_not_consist_of_records_is_refused(name, record, tmp_path):
    folder = write(tmp_path, name)
    file = folder / ("data_batch_4.bin" if name == "cifar10" else "train.bin")
    good = file.read_bytes()
    for content in (good[:-1], good + b"\0", b""):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=saying(folder, file.name, record, len(content))):
            load(tmp_path, name)


@pytest.mark.parametrize("archive", [False, True], ids=["folder", "archive"])
@pytest.mark.parametrize("version", ["binary", "python 2"])
def test_missing_batches_are_all_named(version, archive, tmp_path):
    files = cifar_files("cifar10", *some_images(NUM), version)
    top, suffix = next(iter(files)).split("/")[0], ".bin" if version == "binary" else ""
    missing = [f"data_batch_2{suffix}", f"test_batch{suffix}"]
    for file in missing:
        del files[f"{top}/{file}"]
    path = tmp_path / (ARCHIVES["cifar10", version.split()[0]] if archive else top)
    write_tar(path, files) if archive else write_folder(tmp_path, files)
    with pytest.raises(ValueError, match=saying(path, *missing)):
        load(tmp_path)


def test_a_label_out_of_range_in_a_binary_file_is_refused_and_not_cached(tmp_path):
    folder = write(tmp_path)
    file = folder / "data_batch_5.bin"
    content = bytearray(file.read_bytes())
    for label in (10, 255):
        content[3_073] = label
        file.write_bytes(content)
        with pytest.raises(ValueError, match=saying(folder, file.name, label)):
            load(tmp_path)
        assert not list(tmp_path.glob("decoded/*"))


def python_batch(**changes):
    """A batch with some entries changed; None: left out."""
    images, labels = some_images(20)
    entries = cifar_dict(images, labels, "data_batch_3", coarse=False) | changes
    return {key: value for key, value in entries.items() if value is not None}


def test_a_pickle_with_other_content_is_refused(tmp_path):
    zeros = np.zeros((20, 3072), np.uint8)
    cases = [
        (python_batch(labels=[*range(10), *range(1, 11)]), "from 0 to 9, got 0 to 10"),
        (python_batch(labels=[-1] + [0] * 19), "from 0 to 9, got -1"),
        (python_batch(labels=[0] * 19), "19 labels, got shape (20, 3072)"),
        (python_batch(labels=None, fine_labels=[0] * 20), "'labels'"),
        (python_batch(labels=["0"] * 20), "'labels', a list of integers"),
        (python_batch(data=zeros[:, 1:]), "3072 pixels"),
        (python_batch(data=zeros.reshape(20, 3, 32, 32)), "'data'"),
        (python_batch(data=zeros.astype(np.float32)), "dtype 'f4'"),
        (python_batch(data=None), "'data'"),
        ([python_batch()], "must hold a dictionary, but holds a list"),
    ]
    folder = write(tmp_path, version="python 3")
    for batch, words in cases:
        (folder / "data_batch_3").write_bytes(python3_pickle(batch))
        with pytest.raises(ValueError, match=saying(folder, "data_batch_3: ", words)):
            load(tmp_path)


class Evil:
    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


@pytest.mark.parametrize("archive", [False, True], ids=["folder", "archive"])
def test_a_pickle_that_would_run_a_command_is_refused_and_runs_nothing(archive, tmp_path):
    marker = tmp_path / "it ran"
    evil = python3_pickle({"labels": [0], "data": Evil(f"touch '{marker}'")})
    path = tmp_path / ("cifar-10-python.tar.gz" if archive else PY)
    for file in ("data_batch_1", "test_batch", "batches.meta"):
        files = cifar_files("cifar10", *some_images(NUM), "python 2") | {f"{PY}/{file}": evil}
        write_tar(path, files) if archive else write_folder(tmp_path, files)
        with pytest.raises(ValueError, match=saying(path, f"{file}: ", f"{os.name}.system")):
            load(tmp_path)
        assert not marker.exists(), file
    pickle.loads(evil)  # other readers would run it
    assert marker.exists()


def test_files_that_are_cut_off_are_refused_and_not_cached(tmp_path):
    folder = write(tmp_path, version="python 2")
    content = (folder / "data_batch_1").read_bytes()
    for length in (0, 1, 300, 50_000):
        (folder / "data_batch_1").write_bytes(content[:length])
        with pytest.raises(ValueError, match=saying(folder, "data_batch_1: ", "damaged")):
            load(tmp_path)
    for name in NUM_CLASSES:
        root = tmp_path / name
        root.mkdir()
        path = write(root, name, archive=True)
        path.write_bytes(path.read_bytes()[:200_000])
        with pytest.raises(ValueError, match=saying(path, "damaged")):
            load(root, name)
    assert not list(tmp_path.glob("**/decoded/*"))
