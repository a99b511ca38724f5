"""On a GPU, images are augmented and encoded as on the CPU, without synchronization."""

import pytest
import torch

from dualfocal_lab.data import CropFlip, DataSet, Embed, Normalize
from dualfocal_lab.data.transforms import CIFAR_MEAN, CIFAR_STD

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def sample(*shape: int) -> torch.Tensor:
    return torch.randint(256, shape, generator=torch.Generator().manual_seed(0), dtype=torch.uint8)


@pytest.mark.parametrize(("shape", "padding"), [((257, 3, 32, 32), 4), ((31, 1, 8, 5), 3), ((5, 3, 64, 64), 0)])
def test_images_are_augmented_as_on_the_cpu(shape, padding) -> None:
    augment = CropFlip(padding)
    draws = augment.draw(shape[0], seed=0, epoch=3)
    for dtype in (torch.uint8, torch.float16, torch.float32):
        for layout in (torch.contiguous_format, torch.channels_last):
            images = sample(*shape).to(dtype).contiguous(memory_format=layout)
            assert torch.equal(augment(images.cuda(), draws.cuda()).cpu(), augment(images, draws)), (dtype, layout)


def test_batches_may_be_put_together_in_any_way() -> None:
    augment, images = CropFlip(4), sample(1000, 3, 32, 32).cuda()
    draws, order = augment.draw(1000, seed=0, epoch=0).cuda(), torch.randperm(1000, device="cuda")
    parts = [augment(images[i], draws[i]) for i in order.split(128)]
    assert torch.equal(torch.cat(parts), augment(images, draws)[order])


def test_encoders_give_the_same_as_on_the_cpu() -> None:
    images, normalize = sample(64, 3, 32, 32), Normalize(CIFAR_MEAN, CIFAR_STD)
    expected = normalize(images)
    torch.testing.assert_close(normalize.cuda()(images.cuda()).cpu(), expected, rtol=1e-6, atol=1e-6)
    words, embed = torch.randint(50, (8, 100), dtype=torch.int32), Embed(torch.randn(50, 20))
    expected = embed(words)
    assert torch.equal(embed.cuda()(words.cuda()).cpu(), expected)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_a_batch_is_made_without_waiting_for_the_gpu() -> None:
    augment, normalize = CropFlip(4), Normalize(CIFAR_MEAN, CIFAR_STD).cuda()
    images, draws = sample(512, 3, 32, 32).cuda(), augment.draw(512, seed=0, epoch=0).cuda()
    batch = torch.randperm(512, device="cuda")[:128]
    expected = normalize(augment(images[batch], draws[batch]))
    torch.cuda.set_sync_debug_mode("error")
    try:
        result = normalize(augment(images[batch], draws[batch]))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(result, expected)


def test_a_data_set_is_copied_to_the_device() -> None:
    here = DataSet(
        name="toy",
        class_names=("a", "b"),
        inputs=sample(10, 3, 8, 8),
        target=torch.arange(10) % 2,
        splits={"train": torch.arange(6), "test": torch.arange(6, 10)},
        encoder=Normalize(CIFAR_MEAN, CIFAR_STD),
        test_encoder=Normalize((0.5,) * 3, (0.5,) * 3),
    )
    there = here.to("cuda")
    for part in ("train", "test"):
        (inputs, target), (moved, moved_target) = here.part(part), there.part(part)
        assert moved.is_cuda
        assert torch.equal(moved.cpu(), inputs)
        assert torch.equal(moved_target.cpu(), target)
        encoded = there.encoder_of(part)(moved)
        assert encoded.is_cuda
        torch.testing.assert_close(encoded.cpu(), here.encoder_of(part)(inputs), rtol=1e-6, atol=1e-6)
    assert there.in_channels == here.in_channels == 3
