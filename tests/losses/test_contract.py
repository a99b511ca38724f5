"""Contract of every loss, like that of ``F.cross_entropy``: shapes, weights, ignored targets, reductions, dtypes."""

import inspect
from functools import partial

import numpy as np
import oracles
import pytest
import torch
import torch.nn.functional as F
from case_loops import for_each
from cases import HAS_SMOOTHING, PLAIN, WITH_SMOOTHED
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from dualfocal import losses as L

PER_ROW = [name for name in WITH_SMOOTHED if name not in ("mmce", "kde_xe")]
GAMMA_0 = {"cross_entropy": {}, "focal": {"gamma": 0.0}, "inverse_focal": {"gamma": 0.0}, "dual_focal": {"gamma": 0.0}}
REDUCTIONS = ("mean", "sum", "none")
WEIGHT = torch.tensor([0.5, 2.0, 0.0, 1.5, 1.0])


def problem(*shape: int, c: int = 5) -> tuple[Tensor, Tensor]:
    n, *rest = shape
    return torch.randn(n, c, *rest, requires_grad=True), torch.randint(c, shape)


@for_each(
    name=GAMMA_0,
    reduction=REDUCTIONS,
    weight=[None, WEIGHT],
    shape=[(6,), (2, 3, 2)],
    ignore_index=[-100, 3],
    label_smoothing=[0.0, 0.1, 1.0],
)
def test_gamma_0_is_cross_entropy(
    name: str,
    reduction: str,
    weight: Tensor | None,
    shape: tuple[int, ...],
    ignore_index: int,
    label_smoothing: float,
) -> None:
    logits, target = problem(*shape)
    target.view(-1)[1] = ignore_index
    options = {
        "weight": weight,
        "ignore_index": ignore_index,
        "reduction": reduction,
        "label_smoothing": label_smoothing,
    }
    true = F.cross_entropy(logits, target, **options)
    (true_grad,) = torch.autograd.grad(true.sum(), logits)
    loss = PLAIN[name](logits, target, **GAMMA_0[name], **options)
    (grad,) = torch.autograd.grad(loss.sum(), logits)
    torch.testing.assert_close(loss, true)
    torch.testing.assert_close(grad, true_grad)


@for_each(name=GAMMA_0, reduction=REDUCTIONS, weight=[None, WEIGHT], label_smoothing=[0.0, 0.1])
def test_gamma_0_is_cross_entropy_of_probabilities(
    name: str, reduction: str, weight: Tensor | None, label_smoothing: float
) -> None:
    logits, target = torch.randn(3, 5, 2), torch.rand(3, 5, 2).softmax(1)
    options = {"weight": weight, "reduction": reduction, "label_smoothing": label_smoothing}
    loss = PLAIN[name](logits, target, **GAMMA_0[name], **options)
    torch.testing.assert_close(loss, F.cross_entropy(logits, target, **options))


@for_each(name=HAS_SMOOTHING, reduction=REDUCTIONS, weight=[None, WEIGHT], impl=["closed form", "expression"])
def test_label_smoothing_is_a_mixture_of_targets(
    name: str, reduction: str, weight: Tensor | None, impl: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss of every class, with its weight, times (1 - eps) y + eps / K; the mean is weighted by the labels."""
    if impl == "expression":
        monkeypatch.setattr("dualfocal.losses._modulated.is_concrete", lambda tensor: False)
    logits, target = problem(7)
    target[1], target[2] = 2, -100  # class 2 has weight 0
    kept = target != -100
    every = [PLAIN[name](logits[kept], torch.full((6,), c), reduction="none") for c in range(5)]
    mass = 0.9 * F.one_hot(target[kept], 5) + 0.1 / 5
    weights = torch.ones(5) if weight is None else weight
    rows = torch.zeros(7).masked_scatter(kept, (torch.stack(every, 1) * mass * weights).sum(1))
    true = {"none": rows, "sum": rows.sum(), "mean": rows.sum() / weights[target[kept]].sum()}[reduction]
    loss = PLAIN[name](logits, target, weight=weight, reduction=reduction, label_smoothing=0.1)
    torch.testing.assert_close(loss, true)
    grads = [torch.autograd.grad(value.sum(), logits, retain_graph=True)[0] for value in (loss, true)]
    torch.testing.assert_close(*grads)


@for_each(name=PLAIN, soft=[False, True])
def test_weights_may_be_a_list_or_an_array(name: str, soft: bool) -> None:
    logits, target = problem(8)
    target = torch.rand(8, 5).softmax(1) if soft else target
    true = PLAIN[name](logits, target, weight=WEIGHT)
    array = np.array(WEIGHT.tolist())  # float64
    array.setflags(write=False)
    for weight in (WEIGHT.tolist(), tuple(WEIGHT.tolist()), array):
        assert torch.equal(PLAIN[name](logits, target, weight=weight), true)
    counts = torch.arange(1, 6)
    assert torch.equal(PLAIN[name](logits, target, weight=counts), PLAIN[name](logits, target, weight=counts.float()))
    module = L.LOSSES[name](weight=WEIGHT.tolist())
    assert torch.equal(module.state_dict()["weight"], WEIGHT)
    assert torch.equal(module(logits, target), L.LOSSES[name](weight=WEIGHT)(logits, target))


def test_one_logit_per_label_is_a_two_class_problem() -> None:
    """What the error for binary and multi-label targets recommends is the binary cross-entropy."""
    z, y = torch.randn(6, 3), torch.randint(2, (6, 3))
    for logit, label in ((z, y), (z[:, 0], y[:, 0]), (z[:, :1], y[:, :1])):
        loss = L.focal_loss(torch.stack([torch.zeros_like(logit), logit], 1), label, gamma=0.0)
        torch.testing.assert_close(loss, F.binary_cross_entropy_with_logits(logit, label.float()))


@for_each(reduction=REDUCTIONS, weight=[None, WEIGHT])
def test_torch_form_of_label_smoothing(weight: Tensor | None, reduction: str) -> None:
    logits, target = problem(6)
    target[1], target[2] = 2, -100  # class 2 has weight 0
    true = F.cross_entropy(logits, target, weight=weight, reduction=reduction, label_smoothing=0.1)
    loss = L.label_smoothing_loss(logits, target, 0.1, spread="all", weight=weight, reduction=reduction)
    torch.testing.assert_close(loss, true)


@for_each(weight=[None, WEIGHT], name=WITH_SMOOTHED)
def test_reductions_agree(name: str, weight: Tensor | None) -> None:
    logits, target = problem(4, 3)
    target[0, 1] = target[2, 0] = -100
    mean, total, rows = (WITH_SMOOTHED[name](logits, target, weight=weight, reduction=r) for r in REDUCTIONS)
    assert rows.shape == target.shape
    kept = target != -100
    counts = torch.ones(5)[target[kept]] if weight is None else weight[target[kept]]
    torch.testing.assert_close(total, rows.sum())
    torch.testing.assert_close(mean, total / counts.sum())
    assert (rows[~kept] == 0).all()


@for_each(name=[name for name in PLAIN if name not in ("mmce", "kde_xe", "label_smoothing")])
def test_weights_multiply_rows(name: str) -> None:
    logits, target = problem(8)
    rows = PLAIN[name](logits, target, reduction="none")
    for reduction in REDUCTIONS:
        weighted = PLAIN[name](logits, target, weight=WEIGHT, reduction=reduction)
        true = oracles.reduce(rows.double(), target, WEIGHT.double(), reduction=reduction)
        torch.testing.assert_close(weighted, true.float())


def test_weights_of_label_smoothing_act_on_every_class_with_mass() -> None:
    logits, target = problem(8)
    nll = -logits.log_softmax(1)
    rows = []
    for i, t in enumerate(target.tolist()):
        mass = [0.9 if c == t else 0.1 / 4 for c in range(5)]
        rows.append(sum(WEIGHT[c] * mass[c] * nll[i, c] for c in range(5)))
    loss = L.label_smoothing_loss(logits, target, 0.1, weight=WEIGHT, reduction="sum")
    torch.testing.assert_close(loss, torch.stack(rows).sum())


@for_each(name=PLAIN)
def test_weights_of_soft_targets(name: str) -> None:
    """Linear in the target, per class; losses without per-class terms take the expected weight of a row."""
    logits, target = torch.randn(4, 5), torch.rand(4, 5).softmax(1)
    loss = PLAIN[name](logits, target, weight=WEIGHT, reduction="none")
    nll = -logits.log_softmax(1)
    expected_weight = (target * WEIGHT).sum(1)
    if name == "brier":
        true = expected_weight * L.brier_loss(logits, target, reduction="none")
    elif name in ("mmce", "kde_xe"):
        penalty = PLAIN[name](logits, target, reduction="none") - (nll * target).sum(1)
        true = (nll * target * WEIGHT).sum(1) + expected_weight * penalty
    elif name == "label_smoothing":  # smoothing comes before weighting
        true = (nll * (0.95 * target + 0.05 / 4 * (1 - target)) * WEIGHT).sum(1)
    else:
        columns = [PLAIN[name](logits, torch.full((4,), c), reduction="none") for c in range(5)]
        true = (torch.stack(columns, 1) * target * WEIGHT).sum(1)
    torch.testing.assert_close(loss, true)


@for_each(name=WITH_SMOOTHED)
def test_dimensions_are_rows(name: str) -> None:
    logits, target = problem(2, 3, 2)
    true = WITH_SMOOTHED[name](logits.permute(0, 2, 3, 1).reshape(12, 5), target.reshape(12), reduction="none")
    torch.testing.assert_close(WITH_SMOOTHED[name](logits, target, reduction="none"), true.reshape(2, 3, 2))
    if name in PER_ROW:
        torch.testing.assert_close(
            WITH_SMOOTHED[name](logits[1, :, 2, 0], target[1, 2, 0]), true.reshape(2, 3, 2)[1, 2, 0]
        )


@for_each(name=WITH_SMOOTHED, chunked=[False, True])
def test_ignored_rows_count_nothing(name: str, chunked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loss and gradient are the same as without the ignored rows, whatever their logits."""
    if chunked:
        monkeypatch.setattr("dualfocal.losses._closed_form.SMALL", 0)
        monkeypatch.setattr("dualfocal.losses._closed_form.CHUNK", 13)
    logits, target = problem(6)
    kept = torch.tensor([True, False, True, True, False, True])
    target[~kept] = -100
    bad = logits.detach().clone()
    bad[1], bad[4] = torch.nan, torch.inf
    bad.requires_grad_()
    without = WITH_SMOOTHED[name](logits[kept], target[kept])
    (true_grad,) = torch.autograd.grad(without, logits)
    torch.testing.assert_close(WITH_SMOOTHED[name](logits, target), without)
    loss = WITH_SMOOTHED[name](bad, target)
    torch.testing.assert_close(loss, without)
    (grad,) = torch.autograd.grad(loss, bad)
    torch.testing.assert_close(grad, true_grad)
    assert (grad[~kept] == 0).all()


def test_rivals_averaged_over_the_batch_leave_out_ignored_rows() -> None:
    logits, target = problem(6)
    target[[1, 4]] = -100
    kept = target != -100
    loss = partial(L.dual_focal_loss, rival="batch_next")
    torch.testing.assert_close(loss(logits, target), loss(logits[kept], target[kept]))


@for_each(name=WITH_SMOOTHED, case=["empty", "all ignored", "no weight"])
def test_nothing_kept_is_0_with_0_gradient(name: str, case: str) -> None:
    logits, target = problem(0 if case == "empty" else 4)
    if case == "all ignored":
        target[:] = -100
    weight = torch.zeros(5) if case == "no weight" else None
    loss = WITH_SMOOTHED[name](logits, target, weight=weight)
    assert loss.item() == 0
    (grad,) = torch.autograd.grad(loss, logits)
    assert (grad == 0).all()


@given(rows=st.integers(0, 12), cut=st.integers(0, 12), c=st.integers(1, 6), seed=st.integers(0, 99))
@pytest.mark.filterwarnings("ignore:dual focal loss with two classes")
def test_split_batches_add_up(rows: int, cut: int, c: int, seed: int) -> None:
    assume(cut <= rows)
    torch.manual_seed(seed)
    logits, target = problem(rows, c=c)
    for name in PER_ROW:
        whole, first, rest = (
            WITH_SMOOTHED[name](logits[s], target[s], reduction="sum")
            for s in (slice(None), slice(0, cut), slice(cut, None))
        )
        torch.testing.assert_close(whole, first + rest, msg=lambda text, name=name: f"{name}: {text}")


@for_each(soft=[False, True], dtype=[torch.bfloat16, torch.float16], name=WITH_SMOOTHED)
def test_half_inputs_give_a_float32_loss_and_half_gradients(name: str, dtype: torch.dtype, soft: bool) -> None:
    logits, target = problem(9)
    half = logits.detach().to(dtype).requires_grad_()
    full = half.detach().float().requires_grad_()
    if soft:
        target = torch.rand(9, 5).softmax(1)
    loss, true = WITH_SMOOTHED[name](half, target), WITH_SMOOTHED[name](full, target)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, true)
    (grad,) = torch.autograd.grad(loss, half)
    (true_grad,) = torch.autograd.grad(true, full)
    assert grad.dtype == dtype
    torch.testing.assert_close(grad, true_grad.to(dtype))


@for_each(name=GAMMA_0)
def test_gradient_of_soft_targets(name: str) -> None:
    """As in F.cross_entropy, also where a target is exactly 0."""
    logits, y = torch.randn(3, 5), F.one_hot(torch.tensor([0, 2, 4]), 5).float().requires_grad_()
    (grad,) = torch.autograd.grad(PLAIN[name](logits, y, **GAMMA_0[name]), y)
    torch.testing.assert_close(grad, torch.autograd.grad(F.cross_entropy(logits, y), y)[0])


@for_each(name=WITH_SMOOTHED, shape=[(6, 5), (300, 200)])
def test_unreduced_loss_is_an_ordinary_tensor(name: str, shape: tuple[int, int]) -> None:
    logits = torch.randn(shape, requires_grad=True)
    target = torch.randint(min(shape[1], 5), shape[:1])
    rows = WITH_SMOOTHED[name](logits, target, reduction="none")
    (true,) = torch.autograd.grad(2 * rows.sum(), logits, retain_graph=True)
    rows.mul_(2)
    torch.testing.assert_close(torch.autograd.grad(rows.sum(), logits)[0], true)


@for_each(name=PLAIN)
def test_integer_targets_of_any_width(name: str) -> None:
    logits, target = problem(6)
    for dtype in (torch.int32, torch.uint8, torch.int16):
        torch.testing.assert_close(PLAIN[name](logits, target.to(dtype)), PLAIN[name](logits, target))


@for_each(name=L.LOSSES)
def test_module_without_arguments_is_the_function(name: str) -> None:
    logits, target = problem(16)
    module = L.LOSSES[name]()
    if name.startswith("ada_"):
        true = getattr(L, f"{name}_loss")(logits, target, module.gamma, module.edges)
    else:
        true = getattr(L, f"{name}_loss")(logits, target)
    torch.testing.assert_close(module(logits, target), true)


@for_each(name=L.LOSSES)
def test_module_keeps_the_common_arguments(name: str) -> None:
    logits, target = problem(16)
    module = L.LOSSES[name](weight=WEIGHT, ignore_index=1, reduction="none")
    rows = module(logits, target)
    assert (rows[target == 1] == 0).all()
    assert (rows[(target != 1) & (target != 2)] > 0).all()
    assert "weight" in module.state_dict()
    assert "ignore_index=1" in repr(module)
    assert "reduction='none'" in repr(module)


OPTIONS = [
    ("label_smoothing", {"alpha": 0.2, "spread": "all"}),
    ("mmce", {"strength": 0.7, "weighted": False, "width": 0.2}),
    ("mmce", {"as_published": True}),
    ("cross_entropy", {"label_smoothing": 0.2}),
    ("focal", {"gamma": 1.0, "label_smoothing": 0.2}),
    ("inverse_focal", {"gamma": 1.0, "label_smoothing": 0.2}),
    ("flsd", {"gammas": (4.0, 1.0), "thresholds": (0.5,), "label_smoothing": 0.2}),
    ("dual_focal", {"gamma": 2.0, "rival": "mean2", "impl": "torch", "label_smoothing": 0.2}),
    ("kde_xe", {"strength": 1.0, "bandwidth": 0.1, "norm": 2.0}),
]


@for_each(case=OPTIONS)
def test_module_passes_every_option_on(case: tuple[str, dict[str, object]]) -> None:
    name, options = case
    logits, target = problem(16)
    loss = L.LOSSES[name](**options)(logits, target)
    torch.testing.assert_close(loss, getattr(L, f"{name}_loss")(logits, target, **options))
    for omitted in options.keys() - {"impl"}:  # impl does not change the value
        rest = {k: v for k, v in options.items() if k != omitted}
        if not (name == "flsd" and omitted == "thresholds"):
            assert loss.item() != pytest.approx(L.LOSSES[name](**rest)(logits, target).item()), omitted


def test_impl_torch_takes_the_expression(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dualfocal.losses._modulated.closed_form", None)  # calling it would raise
    logits, target = problem(4)
    L.DualFocalLoss(impl="torch")(logits, target)
    with pytest.raises(TypeError):
        L.DualFocalLoss()(logits, target)


@for_each(cls=[L.DualFocalLoss, L.FocalLoss, L.InverseFocalLoss])
def test_module_gamma_may_be_a_tensor_or_a_parameter(cls: type[torch.nn.Module]) -> None:
    logits, target = problem(4)
    fixed, learnt = cls(torch.tensor(2.0)), cls(torch.nn.Parameter(torch.tensor(2.0)))
    assert "gamma" in fixed.state_dict()
    assert dict(learnt.named_parameters()).keys() == {"gamma"}
    torch.testing.assert_close(fixed(logits, target), cls(2.0)(logits, target))
    learnt(logits, target).backward()
    assert learnt.gamma.grad != 0


@for_each(case=[*OPTIONS, ("ada_focal", {"gamma": 7.0, "num_bins": 3, "frozen": True, "label_smoothing": 0.2})])
def test_repr_round_trips(case: tuple[str, dict[str, object]]) -> None:
    name, options = case
    module = L.LOSSES[name](**options, ignore_index=3, reduction="sum")
    again = eval(repr(module), vars(L))
    assert repr(again) == repr(module)
    logits, target = problem(16)
    torch.testing.assert_close(again(logits, target), module(logits, target))


@for_each(name=L.LOSSES)
def test_help_documents_every_argument(name: str) -> None:
    for documented in (L.LOSSES[name], getattr(L, f"{name}_loss")):
        for argument in inspect.signature(documented).parameters:
            assert f"\n    {argument}: " in inspect.getdoc(documented), argument


def test_every_loss_is_tested() -> None:
    assert set(PLAIN) == set(L.LOSSES)
