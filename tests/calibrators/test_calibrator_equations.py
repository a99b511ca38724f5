"""Each method, compared with scipy or a plain loop that solves the same problem."""

import calibrator_oracles as O
import numpy as np
import pytest
import torch
from calibrator_cases import draw, sample
from case_loops import for_each
from scipy import special
from sklearn.isotonic import IsotonicRegression
from torch import Tensor
from torch.nn import functional

from dualfocal.calibrators import (
    BayesianBinning,
    BetaCalibration,
    DirichletCalibration,
    HistogramBinning,
    IsotonicCalibration,
    MatrixScaling,
    PlattScaling,
    TemperatureScaling,
    VectorScaling,
    log_probs,
)
from dualfocal.calibrators._logistic import Problem

LINEAR = {"vector": VectorScaling, "matrix": MatrixScaling, "dirichlet": DirichletCalibration}


@for_each(name=LINEAR, prior=[0.1, 3.0, 1000.0])
def test_linear_maps(name, prior) -> None:
    logits, target = sample(250, 4, sharp=3.0, dtype=torch.float64)
    logits = logits + torch.tensor([5.0, 0.0, -2.0, 1.0])  # so that centring matters
    calibrator = LINEAR[name](prior=prior).fit(logits, target)
    temperature = TemperatureScaling().fit(logits, target).temperature.item()
    x = logits.log_softmax(1) if name == "dirichlet" else logits
    full, damped = name != "vector", name == "dirichlet"
    weight, bias = O.linear_scaling(x.numpy(), target.numpy(), temperature, prior, full=full, damped=damped)
    np.testing.assert_allclose(calibrator.weight.numpy(), weight, atol=1e-5)
    np.testing.assert_allclose(calibrator.bias.numpy(), bias, atol=5e-5)
    eta = x.numpy() @ weight.T + bias if name != "vector" else x.numpy() * weight + bias
    np.testing.assert_allclose(calibrator(logits).softmax(1).numpy(), special.softmax(eta, axis=1), atol=1e-5)
    assert calibrator.report.converged
    assert calibrator.report.gradient < 1e-4


@for_each(keep=[True, False])
def test_linear_map_in_tiles_kept_or_not(keep, monkeypatch) -> None:
    logits, target = sample(250, 4, sharp=3.0, dtype=torch.float64)
    expected = {name: make(force=True) if name != "vector" else make() for name, make in LINEAR.items()}
    expected = {name: calibrator.fit(logits, target)(logits) for name, calibrator in expected.items()}
    monkeypatch.setattr("dualfocal.calibrators._tiles.TILE_CPU", 30)
    if not keep:
        monkeypatch.setattr("dualfocal.calibrators._logistic.MAX_CACHED", 0)
    for name, make in LINEAR.items():
        torch.testing.assert_close(make().fit(logits, target)(logits), expected[name], rtol=0, atol=1e-5)


def test_the_data_choose_the_prior_of_most_evidence() -> None:
    # By MacKay's rule the precision is (parameters that the data determine) / (their squares), at the minimum for it.
    # A part that all features share makes them so dependent that the diagonal of the Hessian would be 40 % off.
    generator = torch.Generator().manual_seed(0)
    n, num_classes = 2000, 12
    logits = 2 * torch.randn(n, num_classes, generator=generator, dtype=torch.float64)
    factor, shift = torch.linspace(0.6, 1.4, num_classes), torch.linspace(-1, 1, num_classes)
    target = draw((factor * logits + 0.3 * logits.roll(1, 1) + shift).softmax(1), generator)
    x = (logits - logits.mean(0)).T + 6 * torch.randn(n, generator=generator, dtype=torch.float64)
    identity = torch.eye(num_classes, dtype=torch.float64)
    start = torch.cat([identity, torch.zeros(num_classes, 1)], dim=1)
    group = torch.cat([2 - 2 * identity, torch.ones(num_classes, 1)], dim=1).long()
    precision = torch.tensor([1.0, 1.0, 100.0], dtype=torch.float64)  # learned in place
    solved = Problem(lambda: [(slice(0, n), x)], target, start, group, precision, learn=True).solve()
    assert solved.converged
    features = torch.cat([x, torch.ones(1, n)])

    def total_nll(theta: Tensor) -> Tensor:
        return functional.cross_entropy((theta.view(start.shape) @ features).T, target, reduction="sum")

    hessian = torch.func.hessian(total_nll)(solved.x.flatten())
    variance = torch.linalg.inv(hessian + precision[group].flatten().diag()).diagonal().view(start.shape)
    for g in range(3):
        members = group == g
        determined = (1 - precision[g] * variance[members]).sum()
        squares = (solved.x - start)[members].square().sum()
        assert precision[g].item() == pytest.approx(float(determined / squares), rel=0.1)


@for_each(sharp=[0.5, 3.0], num_classes=[2, 4])
def test_platt_and_beta(sharp, num_classes) -> None:
    logits, target = sample(300, num_classes, sharp=sharp, dtype=torch.float64)
    p = special.softmax(logits.numpy(), axis=1)
    log_p, log_rest = np.log(p), np.log1p(-p)
    platt, beta = PlattScaling().fit(logits, target), BetaCalibration().fit(logits, target)
    q = {platt: np.empty_like(p), beta: np.empty_like(p)}
    for k in range(num_classes):
        hit = target.numpy() == k
        for calibrator, features, bounds in (
            (platt, [log_p[:, k] - log_rest[:, k]], [(None, None)] * 2),
            (beta, [log_p[:, k], -log_rest[:, k]], [(0, None), (0, None), (None, None)]),
        ):
            expected = O.one_vs_rest(features, hit, bounds)
            np.testing.assert_allclose(calibrator.coefficients[k].numpy(), expected, atol=3e-5)
            q[calibrator][:, k] = special.expit(np.stack([*features, np.ones(len(p))], 1) @ expected)
    for calibrator, unnormalised in q.items():
        np.testing.assert_allclose(calibrator(logits).exp().numpy(), O.normalised(unnormalised), atol=1e-5)
        assert calibrator.report.converged


def test_beta_stays_within_its_bounds() -> None:
    generator = torch.Generator().manual_seed(0)
    p = torch.rand(2000, generator=generator, dtype=torch.float64)
    target = (torch.rand(2000, generator=generator) < 0.2 + 0.6 * (p - 0.5).abs()).long()  # no monotone map fits
    logits = torch.stack([1 - p, p], 1).log()
    calibrator = BetaCalibration().fit(logits, target)
    assert (calibrator.coefficients[:, :2] >= 0).all()
    assert (calibrator.coefficients[:, :2] == 0).any()  # without bounds it would be negative
    log_p, log_rest = p.log().numpy(), (1 - p).log().numpy()
    expected = O.one_vs_rest([log_p, -log_rest], target.numpy() == 1, [(0, None), (0, None), (None, None)])
    np.testing.assert_allclose(calibrator.coefficients[1].numpy(), expected, atol=1e-4)


def test_one_vs_rest_from_a_first_guess(monkeypatch) -> None:
    logits, target = sample(2000, 3, dtype=torch.float64)
    for make in (PlattScaling, BetaCalibration):
        plain = make().fit(logits, target).coefficients
        with monkeypatch.context() as few:
            few.setattr("dualfocal.calibrators.one_vs_rest.SUBSAMPLE", 600)
            few.setattr("dualfocal.calibrators._tiles.TILE_CPU", 100)
            torch.testing.assert_close(make().fit(logits, target).coefficients, plain, rtol=0, atol=1e-5)


def binning_data(kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities with and without equal ones."""
    logits, target = sample(160, 3, dtype=torch.float64)
    if kind == "ties":  # 30 different predictions
        logits = logits[torch.arange(160) % 30]
    return logits, target


def fresh_probs() -> torch.Tensor:
    """Inner points, and the two ends."""
    logits, _ = sample(200, 3, seed=1, dtype=torch.float64)
    return torch.cat([logits.softmax(1), torch.eye(3, dtype=torch.float64)])


def fitted_probs(logits: torch.Tensor) -> np.ndarray:
    return logits.softmax(1).numpy()


@for_each(smoothing=[0.0, 1.0, 5.0], kind=["plain", "ties"])
def test_isotonic(smoothing, kind) -> None:
    logits, target = binning_data(kind)
    calibrator = IsotonicCalibration(smoothing=smoothing).fit(logits, target)
    p, at = fitted_probs(logits), fresh_probs()
    q = np.empty(at.shape)
    for k in range(3):
        knots, values = O.isotonic(p[:, k], (target == k).numpy(), smoothing)
        assert (np.diff(values) >= 0).all()
        q[:, k] = np.interp(at[:, k].numpy(), knots, values)
        if smoothing == 0:
            sklearn_map = IsotonicRegression(out_of_bounds="clip").fit(p[:, k], (target == k).numpy())
            np.testing.assert_allclose(q[:, k], sklearn_map.predict(at[:, k].numpy()), atol=1e-9)
    expected = O.normalised(np.clip(q, 1e-12, 1))
    np.testing.assert_allclose(calibrator(log_probs(at)).exp().numpy(), expected, atol=1e-9)


@for_each(num_bins=[1, 4, 15, 200], bins=["mass", "width"], smoothing=[0.0, 1.0], kind=["plain", "ties"])
def test_histogram(num_bins, bins, smoothing, kind) -> None:
    logits, target = binning_data(kind)
    calibrator = HistogramBinning(num_bins, bins=bins, smoothing=smoothing).fit(logits, target)
    p, at = fitted_probs(logits), fresh_probs()
    q = np.empty(at.shape)
    for k in range(3):
        edges = [b / num_bins for b in range(1, num_bins)]
        if bins == "mass":
            edges = O.equal_mass_edges(p[:, k], num_bins)
        values = O.histogram(p[:, k], (target == k).numpy(), edges, smoothing)
        q[:, k] = sum(v * inside for v, inside in zip(values, O.members(at[:, k].numpy(), edges), strict=True))
    expected = O.normalised(np.clip(q, 1e-12, 1))
    np.testing.assert_allclose(calibrator(log_probs(at)).exp().numpy(), expected, atol=1e-9)


@for_each("kind, n", [("plain", 160), ("ties", 160), ("plain", 12), ("plain", 1)])
def test_bbq(kind, n) -> None:
    logits, target = binning_data(kind)
    logits, target = logits[:n], target[:n]
    calibrator = BayesianBinning().fit(logits, target)
    p, at = fitted_probs(logits), fresh_probs()
    q = np.stack([O.bbq(p[:, k], (target == k).numpy(), at[:, k].numpy()) for k in range(3)], axis=1)
    np.testing.assert_allclose(calibrator(log_probs(at)).exp().numpy(), O.normalised(q), atol=1e-9)


@for_each(make=[HistogramBinning, BayesianBinning, IsotonicCalibration])
def test_classes_a_few_at_a_time(make, monkeypatch) -> None:
    logits, target = sample(200, 7)
    expected = make().fit(logits, target)(logits)
    monkeypatch.setattr("dualfocal.calibrators.binning.COLUMNS", 500)
    monkeypatch.setattr("dualfocal.calibrators._tiles.TILE_CPU", 50)
    torch.testing.assert_close(make().fit(logits, target)(logits), expected, rtol=0, atol=1e-6)


def test_log_probs() -> None:
    generator = torch.Generator().manual_seed(0)
    probs = torch.rand(50, 3, generator=generator, dtype=torch.float64)
    probs /= probs.sum(1, keepdim=True)
    torch.testing.assert_close(log_probs(probs).softmax(1), probs)
    positive = probs[:, 1]
    torch.testing.assert_close(log_probs(positive).sigmoid(), positive)
    torch.testing.assert_close(log_probs(positive.numpy()).sigmoid(), positive)
    assert log_probs(torch.tensor([0.0, 1.0])).tolist() == pytest.approx([-87.3365, 87.3365], abs=1e-3)
    assert log_probs(torch.tensor([[1.0, 0.0]], dtype=torch.float16)).dtype == torch.float32
    # Fitting on them is fitting on the model that they come from.
    logits, target = sample(300)
    t = TemperatureScaling().fit(logits.double(), target).temperature.item()
    assert TemperatureScaling().fit(log_probs(logits.double().softmax(1)), target).temperature.item() == pytest.approx(
        t
    )
