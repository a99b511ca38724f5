"""scikit-learn's digits: with the noise of the demo, and without noise."""

import pytest
import torch
from sklearn.datasets import load_digits

from dualfocal_lab.data import load_data


def noisy_digits(seed):
    """The data of the demo when its numbers were recorded, before it used this module."""
    pixels, digits = load_digits(return_X_y=True)
    rng = torch.Generator().manual_seed(seed)
    images = torch.tensor(pixels, dtype=torch.float32).view(-1, 1, 8, 8) / 16  # in [0, 1]
    images += 0.3 * torch.randn(images.shape, generator=rng)
    target = torch.tensor(digits)
    train, test = torch.randperm(len(images), generator=rng).tensor_split([800])
    return images[train], target[train], images[test], target[test]


@pytest.mark.parametrize("seed", [0, 3])
def test_with_noise_it_is_bit_for_bit_the_data_of_the_demo(seed):
    images, target, test_images, test_target = noisy_digits(seed)
    data = load_data("digits", noise=0.3, val_size=0, split_seed=seed)
    train, test = data.part("train"), data.part("test")
    assert torch.equal(data.encoder_of("train")(train[0]), images)
    assert torch.equal(train[1], target)
    assert torch.equal(data.encoder_of("test")(test[0]), test_images)
    assert torch.equal(test[1], test_target)
    assert set(data.splits) == {"train", "test"}


def test_without_noise_images_are_bytes_and_the_encoder_gives_pixels_from_0_to_1():
    pixels, labels = load_digits(return_X_y=True)
    data = load_data("digits")
    assert data.inputs.dtype == torch.uint8
    assert data.inputs.view(-1, 64).tolist() == pixels.tolist()
    assert data.target.tolist() == labels.tolist()
    torch.testing.assert_close(data.encoder(data.inputs).view(-1, 64), torch.tensor(pixels, dtype=torch.float32) / 16)
    assert data.class_names == tuple("0123456789")
    assert data.augment is None


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_validation_samples_come_from_the_800_and_not_from_the_997(noise):
    whole = load_data("digits", noise=noise, val_size=0).splits
    splits = load_data("digits", noise=noise, val_size=200, val2_size=50).splits
    assert {part: len(indices) for part, indices in splits.items()} == {
        "train": 550,
        "val": 200,
        "val2": 50,
        "test": 997,
    }
    assert torch.equal(splits["test"], whole["test"])
    merged = torch.cat([splits["train"], splits["val"], splits["val2"]])
    assert torch.equal(merged.sort().values, whole["train"].sort().values)
    assert torch.equal(load_data("digits", noise=noise, val_size=200).splits["val"], splits["val"])


def test_no_folder_of_data_is_needed_or_made(tmp_path, monkeypatch):
    nowhere = tmp_path / "nowhere"
    monkeypatch.setenv("DUALFOCAL_DATA", str(nowhere))
    inputs = load_data("digits", nowhere).inputs
    assert torch.equal(inputs, load_data("digits").inputs)
    assert not nowhere.exists()


def test_wrong_options_are_refused():
    for noise in (-0.1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=r"noise must be .*at least 0"):
            load_data("digits", noise=noise)
    with pytest.raises(ValueError, match="val2_size"):
        load_data("digits", val_size=0, val2_size=100)


def test_noise_does_not_change_the_split():
    clean, noisy = (load_data("digits", noise=noise, split_seed=3) for noise in (0, 0.3))
    for part, index in clean.splits.items():
        assert torch.equal(noisy.splits[part], index)
