"""Long-tailed data: class weights in the loss distort the probabilities. See the damage, and repair it.

    python examples/long_tailed.py

Scikit-learn's digits, with noise, are drawn so that digit 0 is ten times as frequent as digit 9. With the weights
1 / frequency, a network finds more of the rare digits (lower balanced error), but its probabilities belong to a world
in which all digits are equally frequent. The ECE of cross-entropy hardly shows this, because it looks at the predicted
class only; the test of the class probabilities does. One temperature for all classes cannot repair it. Two ways help:

- Divide the probabilities by the weights: subtract log(weight) from the logits. This needs no data, but assumes that
  the network learned what it was asked to. For dual focal it is an approximation.
- Fit a calibrator with an offset per class, such as vector scaling, on validation data with the true frequencies.

New noise in each epoch keeps the networks from becoming over-confident. Cross-entropy without weights is then close to
calibrated, and dual focal, which lowers the confidence, is under-confident: nothing is gained by it on such data.
Training and test sets are drawn from the same images, so the errors are those on new noise, not on new digits.
"""

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from dualfocal import DualFocalLoss, TemperatureScaling, evaluate
from dualfocal.calibrators import VectorScaling

IMBALANCE, NOISE, RARE = 10, 0.7, 5  # digits 5 to 9 are called rare
SIZES = 2000, 1000, 2000  # training, validation, test
EPOCHS, SEEDS = 50, range(3)


def draw_digits(count: int) -> tuple[Tensor, Tensor]:
    """Draw labels (N,) with long-tailed frequencies, and an image of scikit-learn's for each of them (N, 64)."""
    pixels, labels = (torch.from_numpy(array) for array in load_digits(return_X_y=True))
    chosen = torch.multinomial(IMBALANCE ** (-labels / 9) / torch.bincount(labels)[labels], count, replacement=True)
    return pixels[chosen].float() / 16, labels[chosen]


def add_noise(images: Tensor) -> Tensor:
    """Return noisy images, different ones in each call."""
    return images + NOISE * torch.randn(images.shape)


def train(criterion: nn.Module, images: Tensor, target: Tensor) -> nn.Module:
    """Train a network with the usual loop."""
    net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.003)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(images)).split(50):
            loss = criterion(net(add_noise(images[batch])), target[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        schedule.step()
    return net.requires_grad_(False)


def scores(logits: Tensor, target: Tensor) -> Tensor:
    """Error, balanced error, NLL, ECE, excess probability of rare digits, and whether the class test is significant."""
    evaluation = evaluate(logits, target, inference=True)
    wrong, rare = (logits.argmax(1) != target).double(), target >= RARE
    balanced = torch.stack([wrong[target == k].mean() for k in target.unique()]).mean()
    excess = logits.softmax(1)[:, RARE:].sum(1).mean() - rare.double().mean()
    significant = evaluation.inference.classwise.p_value <= 0.05
    percent = [100 * value for value in (evaluation.error, balanced, evaluation.ece, excess)]
    return torch.tensor([*percent, evaluation.nll, significant])


results: dict[tuple[str, ...], list[Tensor]] = {}
for seed in SEEDS:
    torch.manual_seed(seed)
    (train_images, train_target), (val_images, val_target), (test_images, test_target) = map(draw_digits, SIZES)
    val_images, test_images = add_noise(val_images), add_noise(test_images)
    frequency = torch.bincount(train_target, minlength=10) / len(train_target)
    for loss, gamma in {"cross-entropy": 0, "dual focal": 5}.items():  # gamma = 0 is cross-entropy
        for weights, weight in {"none": torch.ones(10), "1/frequency": 1 / frequency}.items():
            net = train(DualFocalLoss(gamma=gamma, weight=weight), train_images, train_target)
            val, test = net(val_images), net(test_images)
            repairs = {"none": test, "temperature": TemperatureScaling().fit(val, val_target)(test)}
            if weights != "none":
                repairs |= {"divide": test - weight.log(), "vector": VectorScaling().fit(val, val_target)(test)}
            for repair, logits in repairs.items():
                results.setdefault((loss, weights, repair), []).append(scores(logits, test_target))

print(f"{'':39}  error  balanced  ECE  rare digits    NLL  class probabilities")
print(f"{'loss':15}{'weights':13}{'repair':11}      %   error %    %  too likely          significantly wrong")
for names, rows in results.items():
    error, balanced, ece, excess, nll, significant = torch.stack(rows).mean(0).tolist()
    line = "{:15}{:13}{:11}".format(*names) + f"  {error:5.1f}  {balanced:8.1f} {ece:4.1f} {excess:+9.1f} %  {nll:.3f}"
    print(f"{line}  in {significant * len(rows):.0f} of {len(rows)} seeds")
