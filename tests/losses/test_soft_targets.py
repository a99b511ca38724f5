"""Class probabilities: the implementations for few classes per row, many classes and gamma = 0 agree."""

import oracles
import pytest
import torch
import torch.nn.functional as F
from case_loops import for_each
from cases import PLAIN
from torch import Tensor
from torch.autograd import forward_ad

from dualfocal import losses as L
from dualfocal.losses import _modulated, rival

FAMILY = ("focal", "flsd", "inverse_focal", "dual_focal", "ada_focal", "ada_dual_focal")
WEIGHT = torch.tensor([0.5, 2.0, 0.0, 1.5, 1.0])


def mixup(n: int = 8, c: int = 5, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Logits with ties, and targets of one or two classes."""
    logits = (2 * torch.randn(n, c, dtype=dtype)).round()
    first, second = torch.randint(c, (n,)), torch.randint(c, (n,))
    second[0] = first[0]
    return logits.requires_grad_(), (0.7 * F.one_hot(first, c) + 0.3 * F.one_hot(second, c)).to(dtype)


def both(loss: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
    return loss.detach(), torch.autograd.grad(loss.sum(), logits, retain_graph=True)[0]


def never(*args: object) -> None:
    raise AssertionError("this implementation must not be used")


def by_autograd(patch: pytest.MonkeyPatch, name: str, *args: Tensor, **options: object) -> tuple[Tensor, Tensor]:
    """The expression, which test_equations compares with the oracles."""
    with patch.context() as general:
        general.setattr(
            "dualfocal.losses._modulated.soft_closed_form",
            lambda flat, gamma, dual, classes: _modulated.expression(flat, gamma, "next" if dual else None),
        )
        return both(PLAIN[name](*args, **options), args[0])


@for_each(name=FAMILY, way=["few", "all"], chunked=[True, False], reduction=["mean", "none"], weight=[None, WEIGHT])
def test_closed_forms_are_the_expression(
    name: str, way: str, chunked: bool, reduction: str, weight: Tensor | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The closed form is summed over the few classes of a mixup, or computed for all classes at once."""
    logits, target = mixup()
    options = {"weight": weight, "reduction": reduction}
    true = by_autograd(monkeypatch, name, logits, target, **options)
    monkeypatch.setattr("dualfocal.losses._modulated.expression", never)
    if way == "all":
        monkeypatch.setattr("dualfocal.losses._soft_closed_form.MAX_SPARSE_CLASSES", 0)
    else:
        monkeypatch.setattr("dualfocal.losses._soft_closed_form.next_of_each_class", never)
    if chunked:
        monkeypatch.setattr("dualfocal.losses._closed_form.CHUNK", 17)  # three rows
    torch.testing.assert_close(both(PLAIN[name](logits, target, **options), logits), true)


@for_each(gamma=[0.3, 1.0, 5.0])
def test_dense_targets_in_the_corners(gamma: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Masked classes without and with mass, saturation, ties."""
    inf = torch.inf
    rows = [[0.0, -inf, 1.0, 1.0, 2.0], [0.0, -inf, 1.0, 3.0, 2.0], [90.0, 0.0, 0.0, -90.0, 1.0], [1.0] * 5]
    logits = torch.tensor(rows, requires_grad=True)
    target = torch.tensor([[0.1, 0.0, 0.2, 0.3, 0.4]] * 2 + [[0.9, 0.05, 0.02, 0.02, 0.01]] * 2)
    target[1] = torch.tensor([0.1, 0.2, 0.3, 0.2, 0.2])
    wide = logits.detach().double().requires_grad_()
    true = oracles.dual_focal(wide, target.double(), gamma)
    loss = L.dual_focal_loss(logits, target, gamma, reduction="none")
    assert loss.isinf().tolist() == [False, True, False, False]
    torch.testing.assert_close(loss.double(), true, rtol=1e-5, atol=0)
    got, expected = (
        both(loss, logits),
        by_autograd(monkeypatch, "dual_focal", logits, target, gamma=gamma, reduction="none"),
    )
    torch.testing.assert_close(got, expected)
    finite = [0, 2, 3]
    (true_grad,) = torch.autograd.grad(true[finite].sum(), wide)
    torch.testing.assert_close(got[1][finite].double(), true_grad[finite], rtol=1e-4, atol=1e-6)


def test_dense_targets_twice_and_many_at_once() -> None:
    """Second derivatives, repeated backward, and a batched backward."""
    logits = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    target = torch.rand(4, 6, dtype=torch.float64).softmax(1)
    assert torch.autograd.gradcheck(lambda z: L.dual_focal_loss(z, target, 2.0), logits)
    assert torch.autograd.gradgradcheck(lambda z: L.dual_focal_loss(z, target, 2.0), logits)
    rows = L.dual_focal_loss(logits, target, 2.0, reduction="none")
    (jacobian,) = torch.autograd.grad(
        rows, logits, torch.eye(4, dtype=torch.float64), is_grads_batched=True, retain_graph=True
    )
    for i in range(4):
        torch.testing.assert_close(jacobian[i], torch.autograd.grad(rows[i], logits, retain_graph=True)[0])
    assert not L.dual_focal_loss(logits.detach(), target, 2.0).requires_grad
    with torch.no_grad():
        torch.testing.assert_close(L.dual_focal_loss(logits, target, 2.0, reduction="none"), rows)


@for_each(name=["focal", "dual_focal"])
def test_weights_and_targets_can_be_learnt(name: str) -> None:
    """The closed form has no derivative in weights and targets, so the expression must be used."""
    logits, target = torch.randn(4, 5, dtype=torch.float64), torch.rand(4, 5, dtype=torch.float64).softmax(1)
    weight = WEIGHT.double()

    def loss(y: Tensor, w: Tensor) -> Tensor:
        return PLAIN[name](logits, y, weight=w, reduction="sum")

    leaves = target.clone().requires_grad_(), weight.clone().requires_grad_()
    slopes = torch.autograd.grad(loss(*leaves), leaves)
    per_class = torch.stack([PLAIN[name](logits, torch.full((4,), c), reduction="none") for c in range(5)], 1)
    torch.testing.assert_close(slopes[0], per_class * weight)
    torch.testing.assert_close(slopes[1], (per_class * target).sum(0))
    with forward_ad.dual_level():
        for place, primal in enumerate((target, weight)):
            arguments = [target, weight]
            arguments[place] = forward_ad.make_dual(primal, torch.ones_like(primal))
            torch.testing.assert_close(forward_ad.unpack_dual(loss(*arguments)).tangent, slopes[place].sum())


@for_each(dtype=[torch.bfloat16, torch.float16, torch.float64])
def test_few_classes_in_any_dtype(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dualfocal.losses._modulated.expression", never)
    logits, target = mixup(dtype=torch.float64)
    loss = L.dual_focal_loss(logits, target.to(dtype), reduction="none")
    assert loss.dtype == torch.float64
    torch.testing.assert_close(loss, oracles.dual_focal(logits, target.to(dtype).double(), 5.0))


def test_few_classes_of_pixels_with_a_gamma_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dualfocal.losses._modulated.expression", never)
    logits, target = mixup(12)
    gamma = 5 * torch.rand(12)
    rows = L.dual_focal_loss(logits, target, gamma, reduction="none")
    dense = [values.reshape(3, 4, 5).permute(0, 2, 1) for values in (logits, target)]
    pixels = L.dual_focal_loss(*dense, gamma.reshape(3, 1, 4), reduction="none")
    torch.testing.assert_close(pixels, rows.reshape(3, 4))
    single = [L.dual_focal_loss(z, y, g.item()) for z, y, g in zip(logits, target, gamma, strict=True)]
    torch.testing.assert_close(rows, torch.stack(single))


def test_few_classes_can_be_differentiated_twice() -> None:
    logits, target = mixup(3, dtype=torch.float64)
    noise = torch.randn_like(logits)  # away from ties, where the loss jumps
    assert torch.autograd.gradcheck(lambda z: L.dual_focal_loss(z + noise, target), logits)
    assert torch.autograd.gradgradcheck(lambda z: L.dual_focal_loss(z + noise, target), logits)


def test_a_masked_class_counts_only_with_mass() -> None:
    """A class with logit -inf gives an infinite loss only if it has mass and weight."""
    logits = torch.tensor([[0.0, -torch.inf, 1.0]] * 3, requires_grad=True)
    target = torch.tensor([[0.5, 0.0, 0.5], [0.0, 1.0, 0.0], [0.5, 0.5, 0.0]])
    loss, grad = both(L.dual_focal_loss(logits, target, reduction="none"), logits)
    assert loss.isinf().tolist() == [False, True, True]
    assert grad.isfinite().all()
    weight = torch.tensor([1.0, 0.0, 1.0])
    assert L.dual_focal_loss(logits, target, weight=weight, reduction="none").isfinite().all()


def test_gamma_0_uses_cross_entropy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dualfocal.losses._modulated.expression", never)
    logits, target = torch.randn(6, 7, requires_grad=True), torch.rand(6, 7).softmax(1)
    true = both(F.cross_entropy(logits, target), logits)
    compiled = torch.compile(L.dual_focal_loss, backend="aot_eager", fullgraph=True)
    for loss in (L.focal_loss, L.inverse_focal_loss, L.dual_focal_loss, compiled):
        torch.testing.assert_close(both(loss(logits, target, gamma=0.0), logits), true)
    torch.compiler.reset()


@for_each(weight=[None, WEIGHT])
def test_cross_entropy_masks_only_where_there_is_something_to_mask(
    weight: Tensor | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits, target = torch.randn(6, 5, requires_grad=True), torch.rand(6, 5).softmax(1)
    target[:, 1] = 0
    target /= target.sum(1, keepdim=True)
    masked = torch.where(torch.arange(5) == 1, -torch.inf, logits)
    columns = [0, 2, 3, 4]
    rest = None if weight is None else weight[columns]
    true = both(F.cross_entropy(logits[:, columns], target[:, columns], weight=rest), logits)
    torch.testing.assert_close(both(L.cross_entropy_loss(masked, target, weight=weight), logits), true)
    monkeypatch.setattr("dualfocal.losses.cross_entropy.soft_nll", never)
    true = both(F.cross_entropy(logits, target, weight=weight), logits)
    torch.testing.assert_close(both(L.cross_entropy_loss(logits, target, weight=weight), logits), true)


@for_each(dtype=[torch.float32, torch.float64])
def test_rivals_of_all_classes(dtype: torch.dtype) -> None:
    """Of tied rivals the first is used, 0 and -0 are tied, infinities are sorted, and C stands for no rival."""
    logits = torch.tensor(
        [[1.0, 3.0, 1.0, 2.0, -0.0, 0.0], [0.0, -1.0, -2.0, torch.inf, -torch.inf, -2.0]], dtype=dtype
    )
    assert rival.next_of_each_class(logits).tolist() == [[4, 3, 4, 0, 6, 6], [1, 2, 4, 0, 6, 4]]
    p = torch.arange(1.0, 13.0, dtype=dtype).reshape(2, 6)
    rivals = rival.rival_of_each_class(logits, p, "next")
    assert rivals.tolist() == [[5, 4, 5, 1, 0, 0], [8, 9, 11, 7, 0, 11]]


def test_fast_sort_is_stable() -> None:
    for scale in (1.0, 1e-40, 1e38):
        logits = (3 * torch.randn(50, 40)).round() * scale
        true = logits.argsort(dim=1, descending=True, stable=True)
        assert torch.equal(rival._argsort_by_numpy(logits), true)
        assert torch.equal(rival._argsort_by_numpy(logits.T.contiguous().T), true)


@for_each(alpha=[0.0, 0.1, 0.79, 0.8, 0.9, 1.0], spread=["others", "all"], weight=[None, WEIGHT])
def test_smoothed_class_indices_are_smoothed_probabilities(alpha: float, spread: str, weight: Tensor | None) -> None:
    """With and without a matrix of targets the loss is the same, also for a target with logit -inf."""
    logits, target = torch.randn(7, 5, requires_grad=True), torch.tensor([0, 1, 2, 3, 4, 0, 1])
    impossible = logits.clone()
    impossible[5, 0] = -torch.inf
    options = {"alpha": alpha, "spread": spread, "weight": weight, "reduction": "none"}
    for z in (logits, impossible):
        soft = both(L.label_smoothing_loss(z, F.one_hot(target, 5).float(), **options), logits)
        torch.testing.assert_close(both(L.label_smoothing_loss(z, target, **options), logits), soft)


def test_a_masked_class_without_mass_does_not_matter_in_label_smoothing() -> None:
    logits, target = torch.randn(3, 4, requires_grad=True), torch.tensor([0, 1, 3])
    masked = torch.where(torch.arange(4) == 2, -torch.inf, logits)
    kept, place = [0, 1, 3], torch.tensor([0, 1, 2])
    plain = both(F.cross_entropy(logits[:, kept], place), logits)
    torch.testing.assert_close(both(L.label_smoothing_loss(masked, target, 0.0), logits), plain)
    weight = torch.tensor([1.0, 2.0, 0.0, 3.0])
    loss, grad = both(L.label_smoothing_loss(masked, target, 0.1, weight=weight), logits)
    nll = -logits[:, kept].log_softmax(1).detach()
    mass = (0.1 / 3 + (0.9 - 0.1 / 3) * torch.eye(3)) * weight[kept]
    torch.testing.assert_close(loss, (mass * nll).sum() / weight[target].sum())
    assert grad.isfinite().all()
    assert L.label_smoothing_loss(masked, target, 0.1) == torch.inf


def test_label_smoothing_of_class_indices_makes_no_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dualfocal.losses.cross_entropy.soft_nll", never)
    L.label_smoothing_loss(torch.randn(3, 5), torch.tensor([0, 1, 2]))
