"""Segmentation: train a small U-Net with cross-entropy and with dual focal, and measure the calibration of its pixels.

    python examples/segmentation.py

The images are drawn here: circles and squares in noise. A loss of this package takes logits ``(N, C, H, W)`` and labels
``(N, H, W)``, and leaves out the pixels with ``ignore_index``: here the borders of the shapes, as in many data sets.

The pixels of an image are not independent: where one pixel of a square is taken for a circle, its neighbours are, too.
Images are independent. In ``evaluate(..., inference=True)`` and ``compare``, the images of an array ``(N, C, H, W)``
are clusters by default. The last lines show what ``compare`` would conclude about 40 images if it took their pixels for
independent samples.

Cross-entropy (gamma = 0) is over-confident here, gamma = 2 much less so, and gamma = 5 is under-confident.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MetricCollection

from dualfocal import DualFocalLoss, TemperatureScaling
from dualfocal.metrics import BrierScore, ExpectedCalibrationError, compare

NUM_CLASSES, SIZE, NOISE, VOID = 3, 32, 1.0, -100  # classes: background, circle, square
EPOCHS, SEED = 60, 0
FEW = 40  # test images of the comparison


def draw_images(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return images (N, 1, H, W) with three shapes each, and the class of each pixel (N, H, W)."""
    generator = torch.Generator().manual_seed(seed)
    y, x = torch.arange(SIZE)[:, None], torch.arange(SIZE)
    images, target = torch.zeros(count, SIZE, SIZE), torch.zeros(count, SIZE, SIZE, dtype=torch.long)
    for _ in range(3):
        kind = torch.randint(1, 3, (count, 1, 1), generator=generator)
        brightness, size, *centre = torch.rand(4, count, 1, 1, generator=generator)
        dy, dx = (axis - SIZE * middle for axis, middle in zip((y, x), centre, strict=True))
        distance = torch.where(kind == 1, torch.hypot(dy, dx), torch.maximum(dy.abs(), dx.abs()) / 0.886)  # equal areas
        radius = 4 + 4 * size
        images = torch.where(distance < radius, 0.5 + brightness, images)
        target = torch.where(distance < radius - 0.7, kind, torch.where(distance < radius + 0.7, VOID, target))
    return (images + NOISE * torch.randn(images.shape, generator=generator))[:, None], target


class SmallUNet(nn.Module):
    """Two levels down, two levels up, with skip connections."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        sizes = (1, width), (width, 2 * width), (2 * width, 4 * width), (6 * width, 2 * width), (3 * width, width)
        layers = [nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU()) for a, b in sizes]
        self.blocks, self.head = nn.ModuleList(layers), nn.Conv2d(width, NUM_CLASSES, 1)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (N, C, H, W)."""
        fine = self.blocks[0](images)
        middle = self.blocks[1](F.max_pool2d(fine, 2))
        coarse = self.blocks[2](F.max_pool2d(middle, 2))
        middle = self.blocks[3](torch.cat([F.interpolate(coarse, scale_factor=2), middle], 1))
        return self.head(self.blocks[4](torch.cat([F.interpolate(middle, scale_factor=2), fine], 1)))


def train(criterion: nn.Module, images: Tensor, target: Tensor) -> nn.Module:
    """Train a network with the usual loop."""
    torch.manual_seed(SEED)
    net = SmallUNet()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.005)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(images)).split(10):
            loss = criterion(net(images[batch]), target[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        schedule.step()
    return net.eval().requires_grad_(False)


train_set, (val_images, val_target), test_set = (draw_images(count, seed=count + SEED) for count in (100, 200, 300))
scaled: dict[int, Tensor] = {}
print("gamma     T  Brier  ECE [%]")
for gamma in (0, 2, 5):  # gamma = 0 is cross-entropy
    net = train(DualFocalLoss(gamma=gamma, ignore_index=VOID), *train_set)
    scaling = TemperatureScaling().fit(net(val_images), val_target, ignore_index=VOID)
    for temperature, calibrate in ((1.0, nn.Identity()), (float(scaling.temperature), scaling)):
        metrics = MetricCollection([BrierScore(ignore_index=VOID), ExpectedCalibrationError(ignore_index=VOID)])
        for images, target in DataLoader(TensorDataset(*test_set), batch_size=50):
            metrics.update(calibrate(net(images)), target)  # the state has a fixed size, however many pixels there are
        brier, ece = metrics.compute().values()
        print(f"{gamma:5}  {temperature:4.2f}  {brier:.3f}  {100 * ece:7.1f}")
    scaled[gamma] = scaling(net(test_set[0][:FEW]))

print(f"\nBrier score of gamma = 2 minus gamma = 0, both with temperature scaling, on {FEW} images:")
for samples, clusters in (("independent pixels", "none"), ("images as clusters", None)):
    result = compare(scaled[0], scaled[2], test_set[1][:FEW], ignore_index=VOID, clusters=clusters)
    brier = result.differences["brier"]
    answer = "differs" if brier.significant else "no significant difference"
    print(f"{samples}: {brier.difference:+.4f}, 90 % interval {brier.low:+.4f} to {brier.high:+.4f}: {answer}")
