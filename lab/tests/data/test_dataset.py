"""A data set is checked when it is made, and is found by its name."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from dualfocal_lab.data import DATASETS, CropFlip, DataSet, Embed, Normalize, load_data


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


def test_a_data_set_that_does_not_fit_together_is_refused() -> None:
    places = "splits must hold indices from 0 to 5, each at most once"
    cases = [
        ({"target": torch.tensor([0, 1, 2])}, r"one int64 label for each of 6 inputs, got torch.int64 \(3,\)"),
        ({"target": torch.zeros(7, dtype=torch.int64)}, r"6 inputs, got torch.int64 \(7,\)"),
        ({"target": torch.zeros(6)}, r"6 inputs, got torch.float32 \(6,\)"),
        ({"target": torch.zeros(6, dtype=torch.int32)}, r"6 inputs, got torch.int32 \(6,\)"),
        ({"target": torch.zeros(6, 1, dtype=torch.int64)}, r"6 inputs, got torch.int64 \(6, 1\)"),
        ({"target": torch.tensor(0)}, r"6 inputs, got torch.int64 \(\)"),
        ({"target": torch.tensor([0, 1, 2, 0, 3, 2])}, "labels must be from 0 to 2, got 0 to 3"),
        ({"target": torch.tensor([0, 1, 2, 0, -1, 2])}, "labels must be from 0 to 2, got -1 to 2"),
        ({"target": torch.tensor([0, 1, 2, 0, -100, 2])}, "labels must be from 0 to 2, got -100 to 2"),
        ({"splits": {"valid": [0], "train": [1], "dev": [2]}}, "train, val, val2, test, got dev, valid"),
        ({"splits": {"train": [0, 1], "test": [6]}}, places),
        ({"splits": {"train": [0, 1], "test": [-1]}}, places),
        ({"splits": {"train": [0, 1], "test": [10**12]}}, places),
        ({"splits": {"train": [0, 1], "test": [2, 1]}}, places),
        ({"splits": {"train": [0, 1, 0]}}, places),
    ]
    for changes, words in cases:
        if "splits" in changes:
            changes = {"splits": {part: torch.tensor(indices) for part, indices in changes["splits"].items()}}
        try:
            make(**changes)
        except ValueError as error:
            assert re.search(f"^toy: .*{words}$", str(error)), changes  # noqa: PT017 names the case
        else:
            pytest.fail(f"accepted {changes}")


def test_it_may_be_empty_or_without_parts_or_samples_of_a_class() -> None:
    assert make(target=torch.zeros(6, dtype=torch.int64)).num_classes == 3
    empty = make(inputs=torch.empty(0, 4), target=torch.empty(0, dtype=torch.int64), splits={})
    assert str(empty) == "toy: ; 3 classes; 4 float32"
    assert empty.in_channels == 4


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


def test_a_part_that_does_not_exist_is_refused() -> None:
    for name in ("val2", "valid", ""):
        with pytest.raises(ValueError, match=f"toy has the splits train, val, test, got {name!r}"):
            make().part(name)
    with pytest.raises(ValueError, match="toy has the splits"):
        make(splits={}).part("train")


def test_only_the_test_part_may_have_another_encoder() -> None:
    usual, other = Normalize((0.5,) * 3, (0.5,) * 3), Normalize((0.4,) * 3, (0.2,) * 3)
    data = make(encoder=usual)
    assert all(data.encoder_of(part) is usual for part in ("train", "val", "val2", "test"))
    data = make(encoder=usual, test_encoder=other)
    assert all(data.encoder_of(part) is usual for part in ("train", "val", "val2"))
    assert data.encoder_of("test") is other


def test_the_input_shape_is_that_of_encoded_inputs() -> None:
    for inputs, encoder, shape in (
        (torch.zeros(6, 3, 4, 5, dtype=torch.uint8), Normalize((0.5,) * 3, (1.0,) * 3), (3, 4, 5)),
        (torch.zeros(6, 1000, dtype=torch.int32), Embed(torch.zeros(9, 50)), (50, 1000)),
        (torch.zeros(6, 17), nn.Identity(), (17,)),
    ):
        data = make(inputs=inputs, encoder=encoder)
        assert data.input_shape == shape == tuple(data.encoder(data.inputs).shape[1:])
        assert data.in_channels == shape[0]


def test_the_text_of_a_data_set_names_its_sizes() -> None:
    assert str(make()) == "toy: 3 train, 1 val, 2 test; 3 classes; 3 x 2 x 2 uint8"
    many = {"inputs": torch.zeros(12_345, 1000, dtype=torch.int32), "target": torch.zeros(12_345, dtype=torch.int64)}
    assert str(make(**many, splits={"test": torch.arange(12_345)})) == "toy: 12,345 test; 3 classes; 1000 int32"


class Where(nn.Module):
    """An encoder that records its device."""

    device = "the first device"

    def to(self, device) -> "Where":
        self.device = device
        return self


def test_moving_to_a_device_makes_an_equal_copy() -> None:
    data = make(encoder=Where(), test_encoder=Where(), augment=CropFlip(2), notes=("a note",))
    there = data.to("cpu")
    assert there.encoder.device == there.test_encoder.device == "cpu"
    assert data.encoder.device == data.test_encoder.device == "the first device"
    assert (there.name, there.class_names, there.notes) == (data.name, data.class_names, data.notes)
    assert there.augment is data.augment
    assert torch.equal(there.inputs, data.inputs)
    assert torch.equal(there.target, data.target)
    assert list(there.splits) == list(data.splits)
    assert all(torch.equal(there.splits[part], index) for part, index in data.splits.items())


# By name


def test_an_unknown_name_is_refused_with_the_known_ones_and_the_nearest(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    nearest = {"cifar1": "cifar10", "tiny-imagenet": "tiny_imagenet", "newsgroups": "20newsgroups"}
    for name in (*nearest, "mnist", "no/such/folder"):
        end = rf"; did you mean {nearest[name]}\?$" if name in nearest else "$"
        end = ", but there is no such folder$" if "/" in name else end
        others = "a folder of images by class, an .npz file, or package.module:function"
        words = f"one of {', '.join(DATASETS)}, {others}, got {name!r}{end}"
        with pytest.raises(ValueError, match=words):
            load_data(name)


def test_unknown_options_are_named_with_the_known_ones(tmp_path) -> None:
    with pytest.raises(ValueError, match=r"^data digits has the options noise, .*; got nois; did you mean noise\?$"):
        load_data("digits", nois=0.3)
    with pytest.raises(ValueError, match=r"got path, valsize$"):
        load_data("digits", path="elsewhere", valsize=3)
    with pytest.raises(ValueError, match=re.escape(str(tmp_path)) + r" has the options size, channels, .*; got path$"):
        load_data(str(tmp_path), path="elsewhere")


def images_of(folder) -> None:
    for label, value in (("black", 0), ("white", 255)):
        (folder / label).mkdir(parents=True)
        for i in range(10):
            Image.fromarray(np.full((4, 4, 3), value, dtype=np.uint8)).save(folder / label / f"{i}.png")


def test_a_name_comes_before_a_folder_of_that_name(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    images_of(tmp_path / "digits")
    assert load_data("digits", tmp_path).inputs.shape == (1797, 1, 8, 8)
    for path in ("./digits", str(tmp_path / "digits"), "digits/", "~/digits"):
        data = load_data(path, tmp_path)
        assert (data.name, data.class_names) == ("digits", ("black", "white")), path
        assert (data.inputs.flatten(1).double().mean(1) == 255 * data.target).all(), path


def test_draws_are_for_all_samples() -> None:
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


def test_the_part_must_be_given_where_parts_have_different_encoders() -> None:
    data = replace(load_data("digits"), test_encoder=Normalize((0.5,), (0.5,)), augment=CropFlip(1))
    index = data.splits["test"][:5]
    with pytest.raises(ValueError, match="give the split of the samples as part"):
        data.batch(index)
    assert torch.equal(data.batch(index, part="test")[0], Normalize((0.5,), (0.5,))(data.inputs[index]))
    assert torch.equal(data.batch(index, part="val")[0], data.encoder(data.inputs[index]))
    data.batch(data.splits["train"][:5], data.draw(seed=0, epoch=0))  # only training has draws
    with pytest.raises(ValueError, match="must be one of train, val, val2, test, got 'tset'"):
        data.batch(index, part="tset")
