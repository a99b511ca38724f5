"""A data set says what is wrong with it when it is made, and is found by its name."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from dualfocal.data import DATASETS, CropFlip, DataSet, Embed, Normalize, load_data


def make(**changes) -> DataSet:
    fields = {
        "name": "toy",
        "class_names": ("cat", "dog", "cow"),
        "inputs": torch.arange(72, dtype=torch.uint8).view(6, 3, 2, 2),
        "target": torch.tensor([0, 1, 2, 0, 1, 2]),
        "splits": {"train": torch.tensor([5, 0, 1]), "val": torch.tensor([2]), "test": torch.tensor([4, 3])},
    }
    return DataSet(**(fields | changes))


# Checks


@pytest.mark.parametrize(
    ("target", "got"),
    [
        (torch.tensor([0, 1, 2]), "torch.int64 (3,)"),
        (torch.zeros(7, dtype=torch.int64), "torch.int64 (7,)"),
        (torch.zeros(6), "torch.float32 (6,)"),
        (torch.zeros(6, dtype=torch.int32), "torch.int32 (6,)"),
        (torch.zeros(6, 1, dtype=torch.int64), "torch.int64 (6, 1)"),
        (torch.tensor(0), "torch.int64 ()"),
    ],
)
def test_there_is_one_label_for_each_input(target, got) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 the whole message is compared
        make(target=target)
    assert str(caught.value) == f"toy: target must hold one int64 label for each of 6 inputs, got {got}"


@pytest.mark.parametrize(("label", "got"), [(3, "0 to 3"), (-1, "-1 to 2"), (-100, "-100 to 2")])
def test_labels_are_of_the_classes(label, got) -> None:
    with pytest.raises(ValueError, match=f"^toy: labels must be from 0 to 2, got {got}$"):
        make(target=torch.tensor([0, 1, 2, 0, label, 2]))


def test_classes_may_be_without_samples() -> None:
    data = make(target=torch.zeros(6, dtype=torch.int64))
    assert data.num_classes == 3


def test_parts_have_known_names() -> None:
    with pytest.raises(ValueError, match=r"^toy: splits .*train, val, val2, test, got dev, valid$"):
        make(splits={"valid": torch.tensor([0]), "train": torch.tensor([1]), "dev": torch.tensor([2])})


@pytest.mark.parametrize("place", [6, -1, 10**12])
def test_parts_are_of_places_that_are_there(place) -> None:
    with pytest.raises(ValueError, match=r"^toy: splits must hold indices from 0 to 5, each at most once$"):
        make(splits={"train": torch.tensor([0, 1]), "test": torch.tensor([place])})


@pytest.mark.parametrize("splits", [{"train": [0, 1], "test": [2, 1]}, {"train": [0, 1, 0]}])
def test_a_sample_is_in_one_part(splits) -> None:
    with pytest.raises(ValueError, match=r"^toy: splits must hold indices from 0 to 5, each at most once$"):
        make(splits={part: torch.tensor(index) for part, index in splits.items()})


def test_it_may_be_empty_or_without_parts() -> None:
    empty = make(inputs=torch.empty(0, 4), target=torch.empty(0, dtype=torch.int64), splits={})
    assert str(empty) == "toy: ; 3 classes; 4 float32"
    assert empty.in_channels == 4
    with pytest.raises(ValueError, match="toy has the splits"):
        make(splits={}).part("train")


# Use


def test_a_part_is_a_copy_of_its_samples_in_its_order() -> None:
    data = make()
    inputs, target = data.part("train")
    assert torch.equal(inputs, torch.stack([data.inputs[i] for i in (5, 0, 1)]))
    assert target.tolist() == [2, 0, 1]
    inputs.zero_()
    target.zero_()
    assert data.inputs.flatten().tolist() == list(range(72))
    assert data.target.tolist() == [0, 1, 2, 0, 1, 2]


@pytest.mark.parametrize("name", ["val2", "valid", ""])
def test_a_part_that_is_not_there_is_named(name) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 the whole message is compared
        make().part(name)
    assert str(caught.value) == f"toy has the splits train, val, test, got {name!r}"


def test_only_the_test_part_may_have_an_encoder_of_its_own() -> None:
    usual, other = Normalize((0.5,) * 3, (0.5,) * 3), Normalize((0.4,) * 3, (0.2,) * 3)
    data = make(encoder=usual)
    assert all(data.encoder_of(part) is usual for part in ("train", "val", "val2", "test"))
    data = make(encoder=usual, test_encoder=other)
    assert all(data.encoder_of(part) is usual for part in ("train", "val", "val2"))
    assert data.encoder_of("test") is other


@pytest.mark.parametrize(
    ("inputs", "encoder", "shape"),
    [
        (torch.zeros(6, 3, 4, 5, dtype=torch.uint8), Normalize((0.5,) * 3, (1.0,) * 3), (3, 4, 5)),
        (torch.zeros(6, 1000, dtype=torch.int32), Embed(torch.zeros(9, 50)), (50, 1000)),
        (torch.zeros(6, 17), nn.Identity(), (17,)),
    ],
)
def test_its_shape_is_what_a_model_takes(inputs, encoder, shape) -> None:
    data = make(inputs=inputs, encoder=encoder)
    assert data.input_shape == shape == tuple(data.encoder(data.inputs).shape[1:])
    assert data.in_channels == shape[0]


def test_it_prints_what_it_is() -> None:
    assert str(make()) == "toy: 3 train, 1 val, 2 test; 3 classes; 3 x 2 x 2 uint8"
    many = {"inputs": torch.zeros(12_345, 1000, dtype=torch.int32), "target": torch.zeros(12_345, dtype=torch.int64)}
    assert str(make(**many, splits={"test": torch.arange(12_345)})) == "toy: 12,345 test; 3 classes; 1000 int32"


class Where(nn.Module):
    """An encoder that notes where it is put."""

    device = "where it was"

    def to(self, device) -> "Where":
        self.device = device
        return self


def test_on_a_device_it_is_the_same_and_the_first_stays_where_it_is() -> None:
    data = make(encoder=Where(), test_encoder=Where(), augment=CropFlip(2), notes=("a note",))
    there = data.to("cpu")
    assert there.encoder.device == there.test_encoder.device == "cpu"
    assert data.encoder.device == data.test_encoder.device == "where it was"
    assert (there.name, there.class_names, there.notes) == (data.name, data.class_names, data.notes)
    assert there.augment is data.augment
    assert torch.equal(there.inputs, data.inputs)
    assert torch.equal(there.target, data.target)
    assert list(there.splits) == list(data.splits)
    assert all(torch.equal(there.splits[part], index) for part, index in data.splits.items())


# By name


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("cifar1", "cifar10"),
        ("tiny-imagenet", "tiny_imagenet"),
        ("newsgroups", "20newsgroups"),
        ("mnist", None),
        ("no/such/folder", None),
    ],
)
def test_an_unknown_name_lists_what_there_is_and_suggests(name, meant, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError) as caught:  # noqa: PT011 the whole message is compared
        load_data(name)
    assert str(caught.value) == (
        f"data must be one of {', '.join(DATASETS)}, a folder of images by class, or an .npz file, got {name!r}"
        + (f"; did you mean {meant}?" if meant else "")
    )


def test_unknown_options_are_named_with_the_known_ones(tmp_path) -> None:
    with pytest.raises(ValueError, match=r"^digits has the options noise, .*; got nois; did you mean noise\?$"):
        load_data("digits", nois=0.3)
    with pytest.raises(ValueError, match=r"got path, valsize$"):
        load_data("digits", path="elsewhere", valsize=3)
    with pytest.raises(ValueError, match=re.escape(str(tmp_path)) + r" has the options size, channels, .*; got path$"):
        load_data(str(tmp_path), path="elsewhere")


def test_a_name_and_its_options_reach_its_function(monkeypatch) -> None:
    def toy(root=None, *, val_size=1):
        return root, val_size

    monkeypatch.setitem(DATASETS, "toy", toy)
    assert load_data("toy") == (None, 1)
    assert load_data("toy", "/root", val_size=7) == ("/root", 7)


def images_of(folder) -> None:
    for label, value in (("black", 0), ("white", 255)):
        (folder / label).mkdir(parents=True)
        for i in range(10):
            Image.fromarray(np.full((4, 4, 3), value, dtype=np.uint8)).save(folder / label / f"{i}.png")


def test_a_name_comes_before_a_folder_of_that_name(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    images_of(tmp_path / "digits")
    assert load_data("digits", tmp_path).inputs.shape == (1797, 1, 8, 8)
    for path in ("./digits", str(tmp_path / "digits"), "digits/"):
        own = load_data(path, tmp_path)
        assert own.name == "digits"
        assert own.class_names == ("black", "white")
        assert (own.inputs.flatten(1).double().mean(1) == 255 * own.target).all()


def test_a_folder_may_be_below_the_home_folder(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    images_of(tmp_path / "mine")
    assert load_data("~/mine", tmp_path).class_names == ("black", "white")


def test_an_npz_is_read_by_its_path_and_missed_by_its_name(tmp_path) -> None:
    x, y = np.arange(40, dtype=np.float32).reshape(20, 2), np.arange(20) % 2
    np.savez(tmp_path / "mine.npz", x=x, y=y)
    data = load_data(str(tmp_path / "mine.npz"))
    assert data.name == "mine"
    assert data.inputs.tolist() == x.tolist()
    assert data.target.tolist() == y.tolist()
    with pytest.raises(ValueError, match=r"other\.npz: there is no such file"):
        load_data(str(tmp_path / "other.npz"))


def test_draws_are_on_the_data_device_and_for_all_of_it() -> None:
    plain = load_data("digits")
    assert plain.draw(seed=0, epoch=0) is None
    data = replace(plain, augment=CropFlip(1))
    draws = data.draw(seed=0, epoch=3)
    assert torch.equal(draws, CropFlip(1).draw(len(data.inputs), seed=0, epoch=3))
    index = data.splits["train"][:7]
    inputs, target = data.batch(index, draws)
    assert torch.equal(inputs, data.encoder(CropFlip(1)(data.inputs[index], draws[index])))
    assert torch.equal(target, data.target[index])
    for wrong in (draws[:-1], CropFlip(1).draw(10, seed=0, epoch=0)):
        with pytest.raises(ValueError, match="draws must be the result of draw"):
            data.batch(index, wrong)
    with pytest.raises(ValueError, match="draws must be the result of draw"):
        plain.batch(index, draws)


def test_where_parts_are_encoded_differently_the_part_must_be_said() -> None:
    data = replace(load_data("digits"), test_encoder=Normalize((0.5,), (0.5,)), augment=CropFlip(1))
    index = data.splits["test"][:5]
    with pytest.raises(ValueError, match="give the split of the samples as part"):
        data.batch(index)
    assert torch.equal(data.batch(index, part="test")[0], Normalize((0.5,), (0.5,))(data.inputs[index]))
    assert torch.equal(data.batch(index, part="val")[0], data.encoder(data.inputs[index]))
    data.batch(data.splits["train"][:5], data.draw(seed=0, epoch=0))  # only training has draws
    with pytest.raises(ValueError, match="must be one of train, val, val2, test, got 'tset'"):
        data.batch(index, part="tset")
