"""A training loop as anybody has it, once with cross-entropy and once with dual focal: one line differs.

    python examples/swap_the_loss.py

The digits ship with scikit-learn; noise on them makes the task hard enough to be wrong in. Half a minute on one core.
"""

import torch
from torch import nn

from dualfocal import DualFocalLoss
from dualfocal.metrics import evaluate
from dualfocal_lab.data import load_data
from dualfocal_lab.models import make_model

EPOCHS = 150


def train(criterion: nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and labels of the test part."""
    data = load_data("digits", noise=0.3)
    images, target = data.part("train")
    torch.manual_seed(0)
    net = make_model("small_cnn", num_classes=10, in_channels=1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(images)).split(100):
            loss = criterion(net(images[batch]), target[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        schedule.step()
    test_images, test_target = data.part("test")
    net.eval()  # no effect on this network, but on each one with dropout or batch normalisation
    with torch.no_grad():
        return net(test_images), test_target


for criterion in (nn.CrossEntropyLoss(), DualFocalLoss(gamma=5)):  # the line
    logits, target = train(criterion)
    print(f"{criterion}\n{evaluate(logits, target, inference=True)}\n")
