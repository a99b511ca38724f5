"""Calibrators of multi-label predictions agree with scikit-learn and scipy, label by label."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from dualfocal.calibrators import (
    MULTILABEL_CALIBRATORS,
    MultilabelIsotonic,
    MultilabelPlatt,
    MultilabelTemperature,
    compare_multilabel_calibrators,
    load_calibrator,
    log_probs,
    make_multilabel_calibrator,
    save_calibrator,
)
from dualfocal.metrics import evaluate

SLOPE, SHIFT = torch.tensor([2.0, 1.0, 0.5]), torch.tensor([0.0, 1.5, -1.0])


def drawn(n: int = 3000, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Logits of three labels that are wrong in a known way, and targets."""
    generator = torch.Generator().manual_seed(seed)
    true = torch.randn(n, 3, generator=generator, dtype=torch.float64) - 1
    target = (torch.rand(n, 3, generator=generator, dtype=torch.float64) < true.sigmoid()).long()
    return SLOPE * true + SHIFT, target


def test_platt_is_logistic_regression_of_each_label() -> None:
    logits, target = drawn()
    fitted = MultilabelPlatt().fit(logits, target)
    for label, (slope, constant) in enumerate(fitted.coefficients.tolist()):
        peer = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000).fit(logits[:, [label]], target[:, label])
        assert slope == pytest.approx(peer.coef_.item(), rel=5e-4)  # the prior is weak
        assert constant == pytest.approx(peer.intercept_.item(), abs=5e-4)
    assert fitted.report is not None
    assert fitted.report.converged


def test_temperature_is_the_maximum_of_the_likelihood_of_each_label() -> None:
    logits, target = drawn()
    fitted = MultilabelTemperature().fit(logits, target)
    for label, temperature in enumerate(fitted.temperature.tolist()):
        z, y = logits[:, label].numpy(), target[:, label].numpy()

        def nll(beta: float, z=z, y=y) -> float:
            return float((np.logaddexp(0, beta * z) - y * beta * z).mean())

        best = minimize_scalar(nll, bounds=(1e-3, 20), method="bounded", options={"xatol": 1e-10}).x
        assert temperature == pytest.approx(1 / best, rel=2e-4)
    assert torch.equal(fitted(logits), logits / fitted.temperature)


def test_isotonic_is_that_of_scikit_learn() -> None:
    logits, target = drawn(400)
    new = drawn(200, seed=1)[0]
    fitted = MultilabelIsotonic(smoothing=0.0).fit(logits, target)
    for label in range(3):
        p, q = logits[:, label].sigmoid().numpy(), new[:, label].sigmoid().numpy()
        peer = IsotonicRegression(out_of_bounds="clip").fit(p, target[:, label].numpy()).predict(q)
        assert fitted(new)[:, label].sigmoid().numpy() == pytest.approx(peer, abs=1e-9)


@pytest.mark.parametrize("name", MULTILABEL_CALIBRATORS)
def test_labels_do_not_depend_on_each_other(name: str) -> None:
    logits, target = drawn(500)
    together = make_multilabel_calibrator(name).fit(logits, target)(logits)
    for label in range(3):
        alone = make_multilabel_calibrator(name).fit(logits[:, [label]], target[:, [label]])(logits[:, [label]])
        torch.testing.assert_close(together[:, [label]], alone, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", MULTILABEL_CALIBRATORS)
def test_ignored_entries_do_not_count(name: str) -> None:
    logits, target = drawn(500)
    changed, ignored = logits.clone(), target.clone()
    ignored[::3, 1] = -100
    changed[::3, 1] = torch.nan
    fitted = make_multilabel_calibrator(name).fit(changed, ignored)
    keep = ignored[:, 1] != -100
    alone = make_multilabel_calibrator(name).fit(logits[keep][:, [1]], target[keep][:, [1]])
    torch.testing.assert_close(fitted(logits)[:, [1]], alone(logits[:, [1]]), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", MULTILABEL_CALIBRATORS)
def test_labels_without_positives_get_finite_maps(name: str) -> None:
    logits, target = drawn(300)
    target[:, 0] = 0
    target[:, 1] = 1
    target[:, 2] = -100
    fitted = make_multilabel_calibrator(name).fit(logits, target)
    mapped = fitted(logits)
    assert bool(mapped.isfinite().all())
    if name != "temperature":
        assert 0 < mapped[:, 0].sigmoid().mean() < 0.01
        assert 0.99 < mapped[:, 1].sigmoid().mean() < 1
    torch.testing.assert_close(mapped[:, 2], logits[:, 2])  # no entries: the identity
    assert fitted.report is not None
    assert "3 of 3 labels have fewer than 10 positive or negative samples (0, 1, 2)" in str(fitted.report)


@pytest.mark.parametrize("name", MULTILABEL_CALIBRATORS)
def test_saved_calibrators_come_back(name: str, tmp_path: Path) -> None:
    logits, target = drawn(300)
    fitted = make_multilabel_calibrator(name).fit(logits, target)
    fitted.class_names = ("cat", "dog", "emu")
    save_calibrator(fitted, tmp_path / "cal.npz")
    loaded = load_calibrator(tmp_path / "cal.npz")
    assert torch.equal(loaded(logits), fitted(logits))
    assert (loaded.class_names, loaded.num_classes) == (fitted.class_names, 3)
    assert str(loaded.report) == str(fitted.report)
    assert "300 samples, 3 labels: NLL" in str(loaded.report)
    assert loaded.half()(logits.float()).dtype == torch.float32  # buffers stay float64


@pytest.mark.parametrize("name", MULTILABEL_CALIBRATORS)
def test_probabilities_and_their_log_odds_have_the_same_map(name: str) -> None:
    logits, target = drawn(300)
    p = logits.sigmoid()
    p[0, 0], p[1, 0] = 0.0, 1.0  # moved inwards
    fitted = make_multilabel_calibrator(name).fit(p, target, input="probs")
    assert fitted.fitted_on is not None
    odds = log_probs(p.reshape(-1), fitted.fitted_on.zeros).view(p.shape)
    torch.testing.assert_close(fitted(p, input="probs"), make_multilabel_calibrator(name).fit(odds, target)(odds))


def test_a_call_takes_the_kind_and_the_labels_of_the_fit() -> None:
    logits, target = drawn(300)
    p = logits.sigmoid()
    fitted = MultilabelPlatt().fit(p, target, input="probs", class_names=list("abc"))
    assert fitted.class_names == tuple("abc")
    assert torch.equal(fitted(p), fitted(p, input="probs"))
    swapped = SimpleNamespace(columns=list("cba"), to_numpy=p.flip(1).numpy)
    assert torch.equal(fitted(swapped), fitted(p))
    with pytest.raises(ValueError, match=r'was fitted on probabilities, but got the value .* input="logits"'):
        fitted(logits)
    fitted.fit(logits, target)
    with pytest.raises(ValueError, match="takes logits, but the values look like probabilities"):
        fitted(p)
    assert fitted(p[:1]).isfinite().all()  # three logits can lie in [0, 1] by chance
    frame = SimpleNamespace(columns=list("abc"), to_numpy=logits.numpy)
    assert fitted.fit(frame, target).class_names == tuple("abc")


def test_bad_input_is_refused() -> None:
    logits, target = drawn(30)
    with pytest.raises(RuntimeError, match="not fitted"):
        MultilabelPlatt()(logits)
    with pytest.raises(ValueError, match="leave out task"):
        MultilabelPlatt().fit(logits, target[:, 0])
    with pytest.raises(ValueError, match="clamp the logits"):
        MultilabelPlatt().fit(logits - torch.inf, target)
    fitted = MultilabelPlatt().fit(logits, target)
    with pytest.raises(ValueError, match="fitted for 3 labels"):
        fitted(logits[:, :2])
    with pytest.raises(ValueError, match=r"shape \(N, L\)"):
        fitted(logits[:, 0])
    with pytest.raises(ValueError, match="isotonik"):
        make_multilabel_calibrator("isotonik")
    with pytest.raises(ValueError, match="at least 20 samples"):
        compare_multilabel_calibrators(logits[:10], target[:10])


def test_comparison_recommends_what_the_labels_need() -> None:
    logits, target = drawn()
    comparison = compare_multilabel_calibrators(logits, target, repeats=1)
    assert comparison.recommended == "platt"  # the second and third label are shifted
    best, raw = comparison["platt"], comparison["uncalibrated"]
    assert best.changes["nll"].difference == pytest.approx(best.scores["nll"] - raw.scores["nll"])
    assert best.changes["nll"].high < 0
    nll = torch.nn.functional.binary_cross_entropy_with_logits(logits, target.double()).item()
    assert raw.scores["nll"] == pytest.approx(nll)
    evaluated = evaluate(logits, target, task="multilabel", inference=True)
    assert evaluated.macro_floor is not None
    assert raw.scores["macro_floor"] == pytest.approx(evaluated.macro_floor.mean, rel=1e-12)  # as on the same page
    assert raw.scores["macro_ece"] > 5 * raw.scores["macro_floor"]
    assert best.scores["macro_ece"] < 2 * best.scores["macro_floor"]
    scaled = compare_multilabel_calibrators((logits - SHIFT) / SLOPE, target, repeats=1)
    assert scaled.recommended == "uncalibrated"
    assert "Keep the model uncalibrated" in str(scaled)


def test_folds_keep_clusters_whole() -> None:
    """Copies of a sample in other folds would let isotonic regression look good."""
    logits, target = drawn(60)
    copies, codes = 30, np.repeat(np.arange(60), 30)
    repeated = logits.repeat_interleave(copies, 0), target.repeat_interleave(copies, 0)
    kept, split = (
        compare_multilabel_calibrators(*repeated, ["isotonic"], repeats=1, clusters=clusters)["isotonic"]
        for clusters in (codes, None)
    )
    assert split.scores["nll"] < kept.scores["nll"] - 0.05


def test_the_comparison_notes_fits_that_did_not_converge(monkeypatch) -> None:
    monkeypatch.setattr("dualfocal.calibrators._newton.MOST_ITERATIONS", 1)
    comparison = compare_multilabel_calibrators(*drawn(100), ["platt", "isotonic"])
    assert comparison.remarks()[-1] == "platt: the fit of at least one fold did not converge"
