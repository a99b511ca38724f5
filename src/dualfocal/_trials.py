"""Small computations that show whether a device and the kernels work; used by :mod:`dualfocal.doctor`."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

OK, FAILED, UNUSED = "ok", "failed", "not used"
TOLERANCE = 1e-4  # relative; float32 on any device is closer than this
SHAPE = (64, 10)


@dataclass(frozen=True)
class Trial:
    """A computation that was tried.

    Args:
        name: what was tried, and where.
        state: ``"ok"``, ``"failed"``, or ``"not used"`` if there is nothing to try here.
        detail: result or reason, in words.
    """

    name: str
    state: str
    detail: str


def try_loss(device: str) -> Trial:
    """Compute the dual focal loss and its gradient, as a training does, and compare them with the CPU in float64."""
    return _loss_trial(f"loss on {device}", device, "auto", "dual focal loss and gradient match float64")


def try_calibrator() -> Trial:
    """Fit temperature scaling to logits x and to 3 x; the second temperature must be three times the first."""
    from dualfocal.calibrators import TemperatureScaling

    def compare() -> str:
        logits, target = _predictions()
        first, second = (TemperatureScaling().fit(scale * logits, target).temperature for scale in (1.0, 3.0))
        return _difference("the temperature", torch.as_tensor(second), 3 * torch.as_tensor(first))

    return _tried("calibrator on cpu", compare, "temperature scaling finds the scale of the logits")


def try_kernels(device: str) -> Iterator[Trial]:
    """Compute loss and gradient, and confidences, with the Triton kernels, and compare them with PyTorch."""

    def compare_confidences() -> str:
        from dualfocal.kernels import confidence

        logits, target = (tensor.to(device) for tensor in _predictions())
        rows = confidence.scan_rows(logits, target, scores=True)
        nll = torch.nn.functional.cross_entropy(logits, target, reduction="none")
        largest = logits.softmax(1).amax(1)
        return _difference("the confidence", rows.confidence / 2**32, largest) or _difference("the NLL", rows.nll, nll)

    yield _loss_trial(f"loss kernel on {device}", device, "triton", "matches PyTorch")
    yield _tried(f"confidence kernel on {device}", compare_confidences, "matches PyTorch")


def _predictions() -> tuple[Tensor, Tensor]:
    """Return logits and classes drawn from them."""
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(SHAPE, generator=generator)
    return logits, torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]


def _loss_trial(name: str, device: str, impl: str, success: str) -> Trial:
    """Compare the dual focal loss and its gradient on a device with autograd on the CPU, in float64."""
    from dualfocal.losses import dual_focal_loss

    def loss_and_gradient(logits: Tensor, target: Tensor, impl: str) -> tuple[Tensor, Tensor]:
        logits = logits.clone().requires_grad_()
        loss = dual_focal_loss(logits, target, impl=impl)
        return loss.detach(), torch.autograd.grad(loss, logits)[0]

    def compare() -> str:
        logits, target = _predictions()
        actual = loss_and_gradient(logits.to(device), target.to(device), impl)
        expected = loss_and_gradient(logits.double(), target, "torch")
        return _difference("the gradient", actual[1], expected[1]) or _difference("the loss", actual[0], expected[0])

    return _tried(name, compare, success)


def _difference(what: str, actual: Tensor, expected: Tensor) -> str:
    """Say by how much two tensors differ; empty if they agree."""
    expected = expected.detach().cpu().double()
    error = (actual.detach().cpu().double() - expected).abs().max() / expected.abs().max()
    return "" if error <= TOLERANCE else f"{what} differs by {float(error):.1%}"  # also for NaN


def _tried(name: str, compare: Callable[[], str], success: str) -> Trial:
    try:
        problem = compare()
    except Exception as error:  # a broken driver, compiler or library can raise anything
        lines = str(error).strip().splitlines() or [""]
        problem = f"{type(error).__name__}: {lines[0]}"
    return Trial(name, FAILED if problem else OK, problem or success)
