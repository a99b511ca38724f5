"""Images are augmented and normalised as by a plain loop, independently of the batch."""

import re
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dualfocal_lab.data import CropFlip, Embed, Normalize
from dualfocal_lab.data.transforms import CIFAR_MEAN, CIFAR_STD, IMAGENET_MEAN, IMAGENET_STD

DTYPES = [torch.uint8, torch.int16, torch.int64, torch.bool]
DTYPES += [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def by_hand(images: Tensor, draws: Tensor, padding: int) -> Tensor:
    """Pad, crop, mirror: image by image."""
    result = []
    for image, (top, left, mirrored) in zip(images.double().numpy(), draws.tolist(), strict=True):
        height, width = image.shape[1:]
        padded = np.pad(image, ((0, 0), (padding, padding), (padding, padding)))
        crop = padded[:, top : top + height, left : left + width]
        result.append(crop[:, :, ::-1] if mirrored else crop)
    return torch.from_numpy(np.stack(result)).to(images.dtype)


def sample(shape: tuple[int, ...], dtype: torch.dtype = torch.uint8, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(256, shape, generator=generator).to(dtype)


LAYOUTS = {
    "plain": lambda images: images,
    "channels last": lambda images: images.contiguous(memory_format=torch.channels_last),
    "transposed": lambda images: images.transpose(2, 3).contiguous().transpose(2, 3),
    "every second": lambda images: images.repeat_interleave(2, 0).repeat_interleave(2, 3)[::2, :, :, ::2],
    "expanded": lambda images: images[:1].expand_as(images),
}


@settings(max_examples=150)
@given(
    shape=st.tuples(st.integers(1, 5), st.integers(1, 4), st.integers(1, 9), st.integers(1, 9)),
    padding=st.integers(0, 11),
    flip=st.booleans(),
    dtype=st.sampled_from(DTYPES),
    layout=st.sampled_from(sorted(LAYOUTS)),
    seed=st.integers(0, 100),
)
def test_it_is_pad_crop_mirror(shape, padding, flip, dtype, layout, seed) -> None:
    augment, images = CropFlip(padding, flip=flip), LAYOUTS[layout](sample(shape, dtype))
    before, draws = images.clone(), augment.draw(shape[0], seed=seed, epoch=0)
    augmented = augment(images, draws)
    assert torch.equal(augmented, by_hand(images, draws, padding))
    assert augmented.dtype == dtype
    assert torch.equal(images, before)


def test_the_extremes_are_pad_crop_mirror() -> None:
    images = sample((3, 3, 5, 4)) | 1
    for top, left, mirrored in product((0, 3, 6), (0, 3, 6), (0, 1)):
        draws = torch.tensor([[top, left, mirrored]] * 3, dtype=torch.uint8)
        augmented = CropFlip(3)(images, draws)
        assert torch.equal(augmented, by_hand(images, draws, 3)), (top, left, mirrored)
        assert (augmented != 0).any()


@given(st.randoms(use_true_random=False), st.lists(st.integers(0, 12), max_size=4))
def test_batches_may_be_put_together_in_any_way(random, cuts) -> None:
    augment, images = CropFlip(2), sample((12, 2, 4, 5))
    draws = augment.draw(12, seed=3, epoch=1)
    order = list(range(12))
    random.shuffle(order)
    order = torch.tensor(order)
    parts = [augment(images[i], draws[i]) for i in order.tensor_split(sorted(cuts)) if len(i)]
    assert torch.equal(torch.cat(parts), augment(images, draws)[order])


def test_an_empty_batch_stays_empty_and_without_padding_or_mirroring_nothing_changes() -> None:
    augmented = CropFlip(2)(torch.empty(0, 3, 8, 6, dtype=torch.uint8), CropFlip(2).draw(0, seed=0, epoch=0))
    assert (augmented.shape, augmented.dtype) == ((0, 3, 8, 6), torch.uint8)
    augment, images = CropFlip(0, flip=False), sample((7, 3, 6, 5))
    draws = augment.draw(7, seed=0, epoch=0)
    assert not draws.any()
    assert torch.equal(augment(images, draws), images)


def test_draws_may_be_of_any_integers_and_layout() -> None:
    augment, images = CropFlip(3), sample((9, 3, 6, 5))
    draws = augment.draw(9, seed=0, epoch=0)
    expected = augment(images, draws)
    assert torch.equal(augment(images, draws.long()), expected)
    assert torch.equal(augment(images, draws.t().contiguous().t()), expected)


def test_it_compiles_in_one_graph() -> None:
    augment, normalize = CropFlip(2), Normalize(CIFAR_MEAN, CIFAR_STD)

    def both(images: Tensor, draws: Tensor) -> Tensor:
        return normalize(augment(images, draws))

    images, draws = sample((6, 3, 8, 8)), augment.draw(6, seed=0, epoch=0)
    compiled = torch.compile(both, backend="eager", fullgraph=True)
    assert torch.equal(compiled(images, draws), both(images, draws))
    assert torch.equal(compiled(images[:4], draws[:4]), both(images[:4], draws[:4]))


# Draws


def test_the_first_draws_are_these() -> None:
    """Repeated runs depend on them, whatever the version of NumPy."""
    assert CropFlip(4).draw(4, seed=0, epoch=0).tolist() == [[6, 2, 1], [2, 4, 1], [0, 1, 1], [4, 7, 0]]
    assert CropFlip(4).draw(4, seed=1, epoch=349).tolist() == [[0, 1, 1], [7, 1, 0], [3, 6, 0], [6, 6, 1]]
    assert CropFlip(2, flip=False).draw(4, seed=7, epoch=3).tolist() == [[3, 3, 0], [4, 4, 0], [2, 3, 0], [4, 2, 0]]


def test_more_samples_do_not_change_the_draws_of_the_first() -> None:
    assert torch.equal(CropFlip(4).draw(1_000, seed=3, epoch=5)[:333], CropFlip(4).draw(333, seed=3, epoch=5))


def test_an_epoch_has_the_same_draws_each_time_and_others_than_other_epochs() -> None:
    augment = CropFlip(4)
    torch.manual_seed(5)
    np.random.seed(5)
    first = augment.draw(1000, seed=1, epoch=2)
    torch.manual_seed(6)
    np.random.seed(6)
    assert torch.equal(augment.draw(1000, seed=1, epoch=2), first)
    for seed, epoch in ((1, 3), (2, 2), (2, 1), (0, 2), (1, 0)):
        other = augment.draw(1000, seed=seed, epoch=epoch)
        assert (other == first).all(1).double().mean() < 0.05  # 1 in 162 by chance


def test_drawing_does_not_change_the_global_generators() -> None:
    before, torch_state = np.random.get_state()[1].copy(), torch.get_rng_state()
    CropFlip(4).draw(100, seed=1, epoch=2)
    assert np.array_equal(np.random.get_state()[1], before)
    assert torch.equal(torch.get_rng_state(), torch_state)


@pytest.mark.parametrize("padding", [1, 4, 127])
def test_all_places_are_equally_likely(padding) -> None:
    places = 2 * padding + 1
    draws = CropFlip(padding).draw(100_000, seed=0, epoch=0)
    assert draws.dtype == torch.uint8
    assert int(draws[:, :2].max()) == 2 * padding
    for column in (0, 1):
        assert chi_square(draws[:, column].long(), places) < 1.5 * places + 15


def test_rows_columns_and_mirroring_are_independent() -> None:
    top, left, mirrored = CropFlip(4).draw(100_000, seed=0, epoch=0).long().unbind(1)
    assert chi_square((top * 9 + left) * 2 + mirrored, 162) < 230  # 161 expected, with a std of 18


def chi_square(values: Tensor, places: int) -> float:
    counts = values.bincount(minlength=places).double()
    assert len(counts) == places
    expected = len(values) / places
    return float(((counts - expected) ** 2 / expected).sum())


def test_a_padding_out_of_range_is_refused() -> None:
    for padding in (-1, 128, 1.5, "4", None):
        with pytest.raises(ValueError, match=f"padding must be an integer from 0 to 127, got {padding!r}$"):
            CropFlip(padding)


def test_the_text_of_an_augmentation_names_its_arguments() -> None:
    assert str(CropFlip(4)) == "CropFlip(padding=4, flip=True)"
    assert str(CropFlip(0, flip=False)) == "CropFlip(padding=0, flip=False)"


# Encoders


@pytest.mark.parametrize(("mean", "std"), [(CIFAR_MEAN, CIFAR_STD), (IMAGENET_MEAN, IMAGENET_STD), ((0.5,), (0.01,))])
def test_each_byte_is_normalised_by_the_formula(mean, std) -> None:
    images = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16).repeat(2, len(mean), 1, 1)
    exact = [[(value / 255 - m) / s for value in range(256)] for m, s in zip(mean, std, strict=True)]
    result = Normalize(mean, std)(images)
    assert result.dtype == torch.float32
    for image in result.double():
        torch.testing.assert_close(image.flatten(1), torch.tensor(exact, dtype=torch.float64), rtol=1e-6, atol=1e-6)


def test_inputs_are_not_written_to() -> None:
    normalize = Normalize(CIFAR_MEAN, CIFAR_STD)
    for layout, dtype in product(LAYOUTS, (torch.uint8, torch.float16, torch.float32, torch.float64)):
        images = LAYOUTS[layout](sample((3, 3, 4, 5), dtype))
        before = images.clone()
        result = normalize(images)
        assert torch.equal(images, before), (layout, dtype)
        assert torch.equal(result, normalize(before.contiguous())), (layout, dtype)
        assert result.dtype == torch.float32


def test_gradients_reach_the_pixels() -> None:
    images = sample((2, 2, 3, 3), torch.float32).requires_grad_()
    Normalize((0.1, 0.2), (0.5, 0.25))(images).sum().backward()
    assert images.grad is not None
    torch.testing.assert_close(images.grad[:, 0], torch.full((2, 3, 3), 1 / (255 * 0.5)))
    torch.testing.assert_close(images.grad[:, 1], torch.full((2, 3, 3), 1 / (255 * 0.25)))


def test_channels_that_do_not_fit_are_refused() -> None:
    for mean, std in (((0.5,), (0.5, 0.5)), ((), ()), ((0.5,), (0.0,)), ((0.5,), (-1.0,))):
        with pytest.raises(ValueError, match=re.escape(f"got {mean} and {std}")):
            Normalize(mean, std)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_words_become_columns_and_padding_its_row(dtype) -> None:
    vectors = torch.randn(5, 3)
    vectors[0] = 0
    words = torch.tensor([[0, 0, 4, 1], [2, 3, 3, 0]], dtype=dtype)
    result = Embed(vectors)(words)
    expected = [[[vectors[word, i].item() for word in text] for i in range(3)] for text in words.tolist()]
    assert result.tolist() == expected
    assert not result[0, :, :2].any()
    assert not result[1, :, 3].any()


def test_encoders_are_not_trained_and_move_with_the_model() -> None:
    for encoder in (Embed(torch.randn(5, 3)), Normalize(CIFAR_MEAN, CIFAR_STD)):
        assert not list(encoder.parameters())
        assert all(buffer.device.type == "meta" for buffer in encoder.to("meta").buffers())
