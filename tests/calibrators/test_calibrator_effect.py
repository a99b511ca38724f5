"""On new data: miscalibrated predictions improve, calibrated ones hardly change."""

from collections.abc import Callable

import torch
from calibrator_cases import NAMES, draw
from case_loops import for_each
from torch import Tensor

from dualfocal import metrics as M
from dualfocal.calibrators import make_calibrator

N, CLASSES = 20_000, 4
MIX = torch.tensor([[1.0, 0.6, 0.0, 0.0], [0.0, 1.0, 0.6, 0.0], [0.0, 0.0, 1.0, 0.6], [0.6, 0.0, 0.0, 1.0]])


def binary(q_of_p: Callable[[Tensor], Tensor], n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Shown log-probabilities of two classes, p uniform, and the true ones."""
    p = 0.001 + 0.998 * torch.rand(n, generator=generator, dtype=torch.float64)
    q = q_of_p(p)
    return torch.stack([1 - p, p], 1).log(), torch.stack([1 - q, q], 1)


def staircase(p: Tensor) -> Tensor:
    """A monotone function that no formula with two parameters fits."""
    return 0.05 + 0.25 * (p > 0.1) + 0.1 * (p > 0.5) + 0.55 * (p > 0.85)


def world(kind: str, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Logits shown, true probabilities, labels."""
    generator = torch.Generator().manual_seed(seed)
    z = 1.5 * torch.randn(N, CLASSES, generator=generator, dtype=torch.float64)
    if kind == "calibrated":
        shown, truth = z, z.softmax(1)
    elif kind == "too sharp":
        shown, truth = 3 * z, z.softmax(1)
    elif kind == "biased":
        shown, truth = 2 * z, (z + torch.tensor([1.0, -1.0, 0.5, 0.0])).softmax(1)
    elif kind == "confused":
        shown, truth = z, (z @ MIX.double().T).softmax(1)
    elif kind == "confused probabilities":
        shown = z.log_softmax(1)
        truth = (shown @ MIX.double().T).softmax(1)
        shown = shown + 3 * torch.randn(N, 1, generator=generator)  # which softmax does not see
    elif kind == "noisy labels":
        shown = 3 * z
        truth = 0.75 * shown.softmax(1) + 0.25 / CLASSES
    elif kind == "beta":
        shown, truth = binary(lambda p: p**2 / (p**2 + (1 - p) ** 0.4), N, generator)
    else:
        shown, truth = binary(staircase, N, generator)
    return shown.float(), truth, draw(truth, generator)


# Method, data made to need it, excess over the truth's NLL that is allowed on fresh data (measured, times two or
# so), and a simpler method that must not reach it.
NEEDED = [
    ("temperature", "too sharp", 3e-4, None),
    ("temperature_ece", "too sharp", 1e-3, None),
    ("ets", "noisy labels", 3e-4, "temperature"),
    ("vector", "biased", 5e-4, "temperature"),
    ("platt", "biased", 0.02, "temperature"),
    ("beta", "beta", 1e-3, "platt"),
    ("histogram", "staircase", 0.025, "beta"),
    ("isotonic", "staircase", 3e-3, "beta"),
    ("bbq", "staircase", 0.01, "beta"),
    ("matrix", "confused", 1e-3, "vector"),
    ("dirichlet", "confused probabilities", 1e-3, "vector"),
    ("temperature+isotonic", "staircase", 3e-3, "beta"),
]


@for_each("name, kind, allowed, simpler", NEEDED)
def test_miscalibrated_predictions_improve(name, kind, allowed, simpler) -> None:
    shown, _, target = world(kind, 0)
    fresh, truth, fresh_target = world(kind, 1)
    best = M.nll(truth, fresh_target, input="probs")

    def excess(method: str) -> float:
        return M.nll(make_calibrator(method).fit(shown, target)(fresh), fresh_target) - best

    uncalibrated, calibrated = M.nll(fresh, fresh_target) - best, excess(name)
    assert -1e-3 < calibrated < allowed
    assert calibrated < uncalibrated / 5
    if simpler is not None:
        assert excess(simpler) > 2 * calibrated


# NLL that a method may cost on fresh data that were calibrated already (measured, times two or so).
COST = {
    **dict.fromkeys(["temperature", "ets"], 3e-4),
    **dict.fromkeys(["temperature_ece", "vector", "platt", "beta", "matrix", "dirichlet"], 1e-3),
    **{"histogram": 6e-3, "bbq": 7e-3, "isotonic": 8e-3, "temperature+isotonic": 8e-3},
}


@for_each(name=NAMES)
def test_calibrated_predictions_hardly_change(name) -> None:
    shown, _, target = world("calibrated", 0)
    fresh, _, fresh_target = world("calibrated", 1)
    cost = M.nll(make_calibrator(name).fit(shown, target)(fresh), fresh_target) - M.nll(fresh, fresh_target)
    assert cost < COST[name]


@for_each(name=["vector", "matrix", "dirichlet"])
def test_parameters_that_are_not_needed_do_no_harm(name) -> None:
    # 30 classes, 1000 samples, 60 or 930 parameters: without the prior that the data choose they would overfit.
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(21_000, 30, generator=generator, dtype=torch.float64)
    target = draw((1.5 * logits).softmax(1), generator)
    logits = 3 * logits
    fit, rest = slice(0, 1000), slice(1000, None)
    scores = {
        method: M.nll(make_calibrator(method).fit(logits[fit], target[fit])(logits[rest]), target[rest])
        for method in (name, "temperature")
    }
    assert scores[name] < scores["temperature"] + 2e-3


def test_the_prior_of_dirichlet_is_not_narrow_because_the_mean_log_probability_varies() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(20_500, 10, generator=generator, dtype=torch.float64)
    logits = 4 * torch.rand(20_500, 1, generator=generator) * (logits - logits.mean(1, keepdim=True))
    target = draw((logits + 0.3 * logits.roll(1, 1)).softmax(1), generator)
    fit, rest = slice(0, 500), slice(500, None)
    scores = {
        name: M.nll(make_calibrator(name).fit(logits[fit], target[fit])(logits[rest]), target[rest])
        for name in ("matrix", "dirichlet", "temperature")
    }
    assert scores["dirichlet"] < scores["matrix"] + 5e-3 < scores["temperature"] - 0.02


@for_each(name=["platt", "beta"])
def test_the_prior_costs_little_with_confident_predictions_and_few_samples_per_class(name) -> None:
    # 50 samples of each class. Softened labels, Platt's way to finite coefficients, would cost 0.02 nats and more.
    generator = torch.Generator().manual_seed(0)
    logits = 6 * torch.randn(25_000, 100, generator=generator, dtype=torch.float64)
    target = draw(logits.softmax(1), generator)
    calibrator = make_calibrator(name).fit(logits[:5000], target[:5000])
    assert M.nll(calibrator(logits[5000:]), target[5000:]) < M.nll(logits[5000:], target[5000:]) + 0.018
