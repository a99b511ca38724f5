"""On a GPU: the same numbers, and no predictions cross to the host."""

import pytest
import torch
from case_loops import for_each
from samples import draw_logits

from dualfocal import metrics as M

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


NAMES = ["ece", "mce", "adaptive_ece", "classwise_ece", "debiased_ece", "nll", "brier_score", "error_rate", "aurc"]


@for_each(name=[*NAMES, "kde_ece"], num_classes=[3, 70], dtype=[torch.float32, torch.bfloat16])
def test_equals_the_cpu(name, num_classes, dtype) -> None:
    logits, target = draw_logits(3000, num_classes, overconfidence=1.3)
    logits = logits.to(dtype)
    metric = getattr(M, name)
    assert metric(logits.cuda(), target.cuda()) == pytest.approx(metric(logits, target), abs=1e-9)


def test_evaluate_compare_and_ood() -> None:
    logits, target = draw_logits(3000, 10, overconfidence=1.3)
    here, there = M.evaluate(logits, target, inference=True), M.evaluate(logits.cuda(), target.cuda(), inference=True)
    for name in ("ece", "nll", "brier", "aurc", "classwise_ece", "adaptive_ece"):
        assert getattr(there, name) == pytest.approx(getattr(here, name), abs=1e-8)
    assert there.inference.p_value == pytest.approx(here.inference.p_value, abs=1e-3)
    assert there.inference.floors["classwise_ece"].mean == pytest.approx(
        here.inference.floors["classwise_ece"].mean, rel=0.05
    )
    a, b = M.compare(logits, logits / 1.3, target), M.compare(logits.cuda(), logits.cuda() / 1.3, target.cuda())
    for name, d in a.differences.items():
        assert b.differences[name].low == pytest.approx(d.low, abs=1e-6), name
    assert M.ood_auroc(logits.cuda(), logits.cuda() / 2) == pytest.approx(M.ood_auroc(logits, logits / 2), abs=1e-9)


def test_sums() -> None:
    logits, target = draw_logits(3000, 10, overconfidence=1.3)
    clusters = torch.arange(3000) // 20
    here = M.CalibrationSums.from_predictions(logits, target, clusters=clusters)
    there = M.CalibrationSums.from_predictions(logits.cuda(), target.cuda(), clusters=clusters.cuda())
    assert there.evaluate().scalars() == pytest.approx(here.evaluate().scalars(), abs=1e-8)
    p, guess = logits.cuda().double().softmax(1).max(1)
    confidences = M.CalibrationSums.from_confidences(p, guess == target.cuda(), nll=-p.log())
    assert confidences.evaluate(inference=False).ece == pytest.approx(here.evaluate(inference=False).ece, abs=1e-9)


def test_what_crosses_is_small(monkeypatch) -> None:
    """Numbers of samples cross, and never the predictions."""
    logits, target = (x.cuda() for x in draw_logits(200_000, 10, overconfidence=1.3))
    crossed = []
    for name in ("cpu", "to", "tolist", "numpy"):
        plain = getattr(torch.Tensor, name)

        def watch(self, *args, plain=plain, **kwargs):
            result = plain(self, *args, **kwargs)
            if self.is_cuda and not (isinstance(result, torch.Tensor) and result.is_cuda):
                crossed.append(self.numel())
            return result

        monkeypatch.setattr(torch.Tensor, name, watch)
    M.evaluate(logits, target, inference=True)
    assert crossed
    assert max(crossed) < logits.numel()


def test_streaming() -> None:
    logits, target = draw_logits(3000, 10, overconfidence=1.3)
    for make in (
        M.ExpectedCalibrationError,
        lambda: M.ClasswiseCalibrationError(10),
        M.BrierScore,
    ):
        here, there = make(), make().cuda()
        for part in (slice(0, 1000), slice(1000, 3000)):
            here.update(logits[part], target[part])
            there.update(logits[part].cuda(), target[part].cuda())
        assert there.compute().item() == pytest.approx(here.compute().item(), abs=1e-9)
        assert there.compute().is_cuda
