"""Training and validation samples are the published ones, and each sample is in one part."""

import math
import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dualfocal_lab.data.dataset import as_count, last_of_each_class, random_split, shuffled, sizes


def published(num_samples: int, seed: int) -> list[int]:
    """The order of the published code."""
    state = np.random.get_state()
    try:
        np.random.seed(seed)
        order = list(range(num_samples))
        np.random.shuffle(order)
    finally:
        np.random.set_state(state)
    return order


def everyone(parts: dict[str, torch.Tensor]) -> list[int]:
    return torch.cat(list(parts.values())).sort().values.tolist()


def test_the_validation_part_of_cifar_is_the_published_one() -> None:
    parts, order = random_split(50_000, val_size=5_000, seed=1), published(50_000, 1)
    assert list(parts) == ["train", "val"]
    assert parts["val"][:5].tolist() == [26247, 35067, 34590, 16668, 12196]
    assert parts["val"].tolist() == order[:5_000]
    assert parts["train"].tolist() == order[5_000:]


@given(st.integers(1, 500), st.integers(0, 2**32 - 1))
def test_the_order_is_that_of_the_published_code(num_samples, seed) -> None:
    order = shuffled(num_samples, seed)
    assert order.tolist() == published(num_samples, seed)
    assert order.dtype == torch.int64


def test_drawing_does_not_change_the_global_generators() -> None:
    before, torch_state = np.random.get_state()[1].copy(), torch.get_rng_state()
    random_split(100, val_size=10, seed=3)
    assert np.array_equal(np.random.get_state()[1], before)
    assert torch.equal(torch.get_rng_state(), torch_state)


@given(st.data(), st.integers(2, 300), st.integers(0, 2**32 - 1))
def test_parts_are_disjoint_cover_everything_and_are_drawn_again(data, num_train, seed) -> None:
    val = data.draw(st.integers(0, num_train - 1))
    val2 = data.draw(st.integers(0, num_train - 1 - val)) if val else 0
    parts = random_split(num_train, val_size=val, val2_size=val2, seed=seed)
    assert everyone(parts) == list(range(num_train))
    assert {part: len(index) for part, index in parts.items()} == {
        part: size for part, size in (("train", num_train - val - val2), ("val", val), ("val2", val2)) if size
    }
    again = random_split(num_train, val_size=val, val2_size=val2, seed=seed)
    assert all(torch.equal(parts[part], again[part]) for part in parts)


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 1000))
def test_a_second_validation_part_is_taken_from_training_alone(val, val2, seed) -> None:
    without = random_split(100, val_size=val, seed=seed)
    having = random_split(100, val_size=val, val2_size=val2, seed=seed)
    assert torch.equal(having["val"], without["val"])
    assert torch.equal(torch.cat([having["val2"], having["train"]]), without["train"])


def test_fractions_are_rounded_shares() -> None:
    parts = random_split(50_000, val_size=0.1, val2_size=0.05, seed=1)
    assert {part: len(index) for part, index in parts.items()} == {"train": 42_500, "val": 5_000, "val2": 2_500}
    assert torch.equal(parts["val"], random_split(50_000, val_size=5_000, seed=1)["val"])
    assert as_count(0.126, 100, "val_size") == 13
    assert as_count(0.0, 100, "val_size") == 0
    assert as_count(1, 100, "val_size") == 1  # an integer is a number of samples
    assert as_count(np.float64(0.25), 100, "val_size") == 25


# By class


def test_tiny_imagenet_trains_on_the_first_450_of_each_class_and_validates_on_the_last_50() -> None:
    target = torch.arange(200).repeat_interleave(500)
    parts = last_of_each_class(target, val_size=10_000)
    of_class = torch.arange(100_000).view(200, 500)
    assert torch.equal(parts["train"], of_class[:, :450].flatten())
    assert torch.equal(parts["val"], of_class[:, 450:].flatten())
    assert list(parts) == ["train", "val"]
    same = last_of_each_class(target, val_size=0.1)
    assert torch.equal(same["val"], parts["val"])


def test_a_second_part_comes_before_the_first_in_each_class() -> None:
    target = torch.arange(4).repeat_interleave(10)
    without = last_of_each_class(target, val_size=8)
    having = last_of_each_class(target, val_size=8, val2_size=12)
    of_class = torch.arange(40).view(4, 10)
    assert torch.equal(having["val"], without["val"])
    assert torch.equal(having["val2"], of_class[:, 5:8].flatten())
    assert torch.equal(having["train"], of_class[:, :5].flatten())


@given(st.data(), st.lists(st.integers(3, 8), min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_classes_in_any_order_give_their_last_ones(data, counts, random) -> None:
    labels = [2 * label for label, count in enumerate(counts) for _ in range(count)]  # every second class is empty
    random.shuffle(labels)
    target = torch.tensor(labels)
    each = data.draw(st.integers(0, 2))
    each2 = data.draw(st.integers(0, 2 - each)) if each else 0
    parts = last_of_each_class(target, val_size=each * len(counts), val2_size=each2 * len(counts))
    assert everyone(parts) == list(range(len(labels)))
    for label, count in enumerate(counts):
        own = [i for i, value in enumerate(labels) if value == 2 * label]
        assert own[count - each :] == [i for i in parts.get("val", torch.empty(0)).tolist() if labels[i] == 2 * label]
        assert own[: count - each - each2] == [i for i in parts["train"].tolist() if labels[i] == 2 * label]


# Refusals


def test_a_size_that_is_no_number_of_samples_and_no_fraction_is_refused() -> None:
    wrong = [-1, -0.1, 1.0, 1.5, math.inf, -math.inf, math.nan, True, False, "5", None, [5]]
    wrong += [np.float64(1.0), np.float64(5.0), np.float64(math.nan)]
    for name in ("val_size", "val2_size"):
        for size in wrong:
            with pytest.raises(ValueError, match=f"^{name} must be .*fraction.*, got {re.escape(repr(size))}$"):
                sizes(100, **{"val_size": 5, "val2_size": 0, name: size})


def test_samples_must_be_left_to_train() -> None:
    for val, val2 in ((100, 0), (101, 0), (0.999, 0), (60, 40), (0.5, 0.5)):
        with pytest.raises(ValueError, match=f"must leave some of the 100 samples for training, got {val} and {val2}$"):
            random_split(100, val_size=val, val2_size=val2, seed=1)
    assert len(random_split(100, val_size=99, seed=1)["train"]) == 1
    with pytest.raises(ValueError, match="must leave some of the 0 samples for training, got 0 and 0"):
        last_of_each_class(torch.empty(0, dtype=torch.int64), val_size=0)


def test_a_second_part_needs_a_first() -> None:
    with pytest.raises(ValueError, match=r"val2_size=5 .*val_size must not be 0"):
        random_split(100, val_size=0, val2_size=5, seed=1)


def test_a_seed_is_a_whole_number_of_32_bits() -> None:
    for seed in (-1, 2**32, 1.0, "1", None):
        with pytest.raises(ValueError, match=rf"split_seed must be an integer from 0 to 2\^32 - 1, got {seed!r}$"):
            shuffled(10, seed)


def test_each_class_gives_equally_many_and_keeps_some() -> None:
    target = torch.arange(4).repeat_interleave(10)
    for val, val2 in ((9, 0), (8, 2), (8, 7)):
        with pytest.raises(ValueError, match=f"must be multiples of 4.*got {val} and {val2}$"):
            last_of_each_class(target, val_size=val, val2_size=val2)
    with pytest.raises(ValueError, match="the smallest class has 2; got 2 and 2"):
        last_of_each_class(torch.tensor([0, 0, 0, 0, 0, 7, 7]), val_size=2, val2_size=2)
