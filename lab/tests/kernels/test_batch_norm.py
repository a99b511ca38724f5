"""The fused batch norm, compared with torch in float64; without a GPU in the interpreter of triton."""

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("triton")

from dualfocal_lab.kernels import batch_norm
from dualfocal_lab.kernels.batch_norm import (
    MAX_SPLITS,
    Plan,
    Running,
    applies,
    batch_norm_of,
    batch_norm_relu,
    plan_for,
)
from dualfocal_lab.models import MODELS
from dualfocal_lab.models.normalization import kernels_on
from dualfocal_lab.train.presets import preset
from dualfocal_lab.train.result import slowed_by

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
KERNELS = ("statistics", "apply", "backward_sums", "backward_apply")
needs_cuda = pytest.mark.skipif(DEVICE != "cuda", reason="needs a CUDA device")


class Outcome(NamedTuple):
    out: Tensor
    dx: Tensor
    d_residual: Tensor | None
    d_weight: Tensor
    d_bias: Tensor
    running_mean: Tensor
    running_var: Tensor


class Case:
    """Inputs of one call; ``fused`` and ``oracle`` do not modify them."""

    def __init__(
        self,
        shape: tuple[int, int, int, int],
        dtype: torch.dtype = torch.float32,
        residual: bool = False,
        relu: bool = True,
        mean: float = 0.5,
        std: float = 2.0,
        users: int = 1,
    ) -> None:
        generator = torch.Generator().manual_seed(0)

        def draw(*size: int) -> Tensor:
            return torch.randn(size, generator=generator)

        def image() -> Tensor:
            return draw(*shape).to(DEVICE, dtype).contiguous(memory_format=torch.channels_last)

        channels = shape[1]
        self.x = (draw(*shape) * std + mean + draw(1, channels, 1, 1) * std).to(DEVICE, dtype)
        self.x = self.x.contiguous(memory_format=torch.channels_last)
        self.dy, self.residual, self.relu = image(), image() if residual else None, relu
        self.more_dy = image() if users == 2 else None
        self.weight, self.bias = draw(channels).to(DEVICE), draw(channels).to(DEVICE)
        self.running_mean, self.running_var = draw(channels).to(DEVICE), draw(channels).square().to(DEVICE)
        self.tracked = torch.tensor(7, device=DEVICE)

    def leaves(self, dtype: torch.dtype | None) -> list[Tensor | None]:
        tensors = (self.x, self.residual, self.weight, self.bias)
        return [None if t is None else t.detach().to(dtype or t.dtype, copy=True).requires_grad_() for t in tensors]

    def fused(self) -> Outcome:
        x, residual, weight, bias = self.leaves(None)
        mean, var, tracked = self.running_mean.clone(), self.running_var.clone(), self.tracked.clone()
        running = Running(mean, var, tracked)
        options = {"momentum": 0.1, "eps": 1e-5, "residual": residual, "relu": self.relu}
        out, again = batch_norm_relu(x, weight, bias, running, **options)
        assert again.data_ptr() == out.data_ptr()
        if self.more_dy is None:
            out.backward(self.dy)
        else:
            torch.autograd.backward([out, again], [self.dy, self.more_dy])
        assert out.dtype == self.x.dtype
        assert out.is_contiguous(memory_format=torch.channels_last)
        assert tracked.item() == self.tracked.item() + 1
        d_residual = None if residual is None else residual.grad
        return Outcome(out.detach(), x.grad, d_residual, weight.grad, bias.grad, mean, var)

    def oracle(self) -> Outcome:
        x, residual, weight, bias = self.leaves(torch.float64)
        mean, var = self.running_mean.double(), self.running_var.double()
        out = nn.functional.batch_norm(x, mean, var, weight, bias, training=True, momentum=0.1, eps=1e-5)
        out = out if residual is None else out + residual
        out = out.relu() if self.relu else out
        # No gradient near the kink of the ReLU, where rounding decides about the mask.
        if self.relu:
            closed = out.detach().abs() < 1e-4
            self.dy = self.dy.masked_fill(closed, 0.0)
            self.more_dy = None if self.more_dy is None else self.more_dy.masked_fill(closed, 0.0)
        out.backward(self.dy.double() if self.more_dy is None else self.dy.double() + self.more_dy.double())
        d_residual = None if residual is None else residual.grad
        return Outcome(out.detach(), x.grad, d_residual, weight.grad, bias.grad, mean, var)

    def check(self, rtol: float = 1e-5) -> None:
        """Compare images at the precision of their dtype, and sums at ``rtol`` of their size."""
        reference, fused = self.oracle(), self.fused()
        image = rtol if self.x.dtype == torch.float32 else torch.finfo(self.x.dtype).eps
        for name, got, expected in zip(Outcome._fields, fused, reference, strict=True):
            if expected is None:
                assert got is None
                continue
            is_image = expected.ndim == 4
            assert got.dtype == (self.x.dtype if is_image else torch.float32), name
            scale = expected.abs().max().item() if not is_image else expected.abs().max().clamp(max=2).item()
            torch.testing.assert_close(
                got.double(),
                expected,
                rtol=image if is_image else rtol,
                atol=rtol * scale,
                msg=lambda m, n=name: f"{n}: {m}",
            )


@pytest.fixture
def force(monkeypatch: pytest.MonkeyPatch) -> Callable[[Plan], None]:
    """Make every kernel follow one plan."""
    return lambda plan: monkeypatch.setattr(batch_norm, "plan_for", lambda *_: plan)


@pytest.mark.parametrize(
    ("shape", "dtype", "options", "rtol"),
    [
        # 5 * 7 * 3 = 105 rows are not a multiple of any tile.
        *(
            ((5, 40, 7, 3), torch.float32, {"residual": residual, "relu": relu, "users": users}, 1e-5)
            for residual, relu, users in itertools.product([False, True], [False, True], [1, 2])
        ),
        ((5, 3, 7, 3), torch.float32, {}, 1e-5),
        ((8, 16, 4, 4), torch.float32, {"residual": True}, 1e-5),
        ((4, 64, 5, 5), torch.float32, {}, 1e-5),
        ((2, 160, 3, 3), torch.float32, {"residual": True}, 1e-5),
        ((6, 16, 1, 1), torch.float32, {}, 1e-5),
        ((9, 1, 3, 2), torch.float32, {"residual": True}, 1e-5),
        ((2, 16, 1, 1), torch.float32, {}, 1e-3),  # two values a channel: dx is a difference of nearly equal numbers
        ((4, 3, 5, 5), torch.bfloat16, {}, 1e-5),
        ((4, 64, 5, 5), torch.bfloat16, {"residual": True}, 1e-5),
        ((4, 40, 5, 5), torch.bfloat16, {"residual": True, "relu": False}, 1e-5),
        ((4, 40, 5, 5), torch.bfloat16, {"residual": True, "users": 2}, 3e-2),
        ((4, 3, 5, 5), torch.float16, {"residual": True}, 1e-5),
        ((4, 64, 5, 5), torch.float16, {}, 1e-5),
    ],
)
def test_agrees_with_torch(
    shape: tuple[int, int, int, int], dtype: torch.dtype, options: dict[str, Any], rtol: float
) -> None:
    """With two users of the output, their gradients are added."""
    Case(shape, dtype, **options).check(rtol)


@pytest.mark.parametrize("used", [0, 1])
def test_either_output_may_be_unused(used: int) -> None:
    case = Case((5, 16, 7, 3))
    expected = case.fused()
    x, _, weight, bias = case.leaves(None)
    running = Running(case.running_mean.clone(), case.running_var.clone(), None)
    both = batch_norm_relu(x, weight, bias, running, momentum=0.1, eps=1e-5)
    both[used].backward(case.dy)
    assert torch.equal(x.grad, expected.dx)


# 3 * 3 * 3 = 27 rows of 20 channels, in two blocks of 16 channels; or 32 rows, a multiple of the tiles.
@pytest.mark.parametrize(
    ("plan", "shape"),
    [
        (Plan(4, 16, 512, 1), (3, 20, 3, 3)),  # one tile a program; 7 partial results
        (Plan(1, 16, 512, 1), (5, 16, 13, 1)),  # 65 partial results, merged in two rounds
        (Plan(4, 16, 3, 1), (3, 20, 3, 3)),  # 3, 2 and 2 tiles; the last is ragged
        (Plan(4, 16, 3, 1), (2, 16, 4, 4)),
        (Plan(2, 16, 3, 1, num_stages=3), (3, 20, 3, 3)),
        (Plan(16, 64, 2, 4), (2, 16, 4, 4)),  # fewer splits than the tile has rows
        (Plan(4, 16, 1, 1), (3, 20, 3, 3)),
        (Plan(32, 16, 1, 1), (3, 20, 3, 3)),  # one tile holds all rows
    ],
)
def test_any_split_agrees_with_torch(
    plan: Plan, shape: tuple[int, int, int, int], force: Callable[[Plan], None]
) -> None:
    force(plan)
    Case(shape, residual=shape[1] == 16).check()


@pytest.mark.parametrize(("plan", "shape"), [(None, (8, 16, 5, 5)), (Plan(4, 16, 5, 1), (4, 16, 3, 3))])
def test_variance_survives_a_large_mean(
    plan: Plan | None, shape: tuple[int, int, int, int], force: Callable[[Plan], None]
) -> None:
    """E[x^2] - E[x]^2 in float32 would have no correct digit here."""
    if plan:
        force(plan)
    case = Case(shape, mean=100.0, std=0.1)
    case.running_var.zero_()
    reference, fused = case.oracle(), case.fused()
    torch.testing.assert_close(fused.running_var.double(), reference.running_var, rtol=1e-4, atol=0)
    torch.testing.assert_close(fused.out.double(), reference.out, rtol=1e-3, atol=1e-3)


def test_default_plans_split_the_rows() -> None:
    """Otherwise the tests above would not test the merging."""
    assert plan_for("statistics", 4 * 5 * 5, 64, 4).splits > 1


@pytest.mark.parametrize("kernel", KERNELS)
def test_plans_are_legal(kernel: str) -> None:
    cases = itertools.product((1, 3, 16, 40, 64, 96, 160, 640, 2048), (2, 3, 100, 2048, 131072, 200_003), (2, 4))
    for case in cases:
        channels, rows, itemsize = case
        plan = plan_for(kernel, rows, channels, itemsize)
        blocks = -(-channels // plan.block_c)
        assert plan.block_m & (plan.block_m - 1) == plan.block_c & (plan.block_c - 1) == 0, case
        assert blocks * plan.block_c >= channels, case
        assert 1 <= plan.splits <= -(-rows // plan.block_m), case
        assert plan.splits <= (65535 if "apply" in kernel else MAX_SPLITS), case


def test_gradient_in_any_memory_format() -> None:
    """Also: the same call gives the same bits."""
    case = Case((4, 40, 5, 5), residual=True)
    reference = case.fused()
    case.dy = case.dy.contiguous()
    assert not case.dy.is_contiguous(memory_format=torch.channels_last)
    for expected, got in zip(reference, case.fused(), strict=True):
        assert torch.equal(expected, got)
    case = Case((2, 16, 3, 3), residual=True)
    case.dy = torch.ones((), device=DEVICE).expand(2, 16, 3, 3)  # like the gradient of a sum
    case.check()


def test_residual_of_another_format_and_dtype() -> None:
    case = Case((4, 16, 5, 5), torch.bfloat16, residual=True)
    reference = case.fused()
    assert case.residual is not None
    case.residual = case.residual.float().contiguous()
    got = case.fused()
    assert torch.equal(got.out, reference.out)
    assert got.d_residual is not None
    assert got.d_residual.dtype == torch.float32
    assert torch.equal(got.d_residual, reference.d_residual.float())


def test_gradients_of_some_inputs_only() -> None:
    case = Case((4, 16, 5, 5), residual=True)
    reference = case.fused()
    x, residual, weight, bias = (t.detach() for t in case.leaves(None))
    for leaf, expected in ((weight, reference.d_weight), (residual, reference.d_residual), (x, reference.dx)):
        leaf.requires_grad_()
        running = Running(case.running_mean.clone(), case.running_var.clone(), None)
        out, _ = batch_norm_relu(x, weight, bias, running, momentum=0.1, eps=1e-5, residual=residual)
        assert torch.equal(torch.autograd.grad(out, leaf, case.dy)[0], expected)
        leaf.requires_grad_(False)


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("relu", [False, True])
def test_differentiable_twice(residual: bool, relu: bool) -> None:
    """Needed for gradient penalties."""
    case = Case((3, 5, 2, 2), residual=residual, relu=relu)
    results = []
    for fused in (True, False):
        x, other, weight, bias = case.leaves(None if fused else torch.float64)
        if fused:
            running = Running(case.running_mean.clone(), case.running_var.clone(), None)
            out, _ = batch_norm_relu(x, weight, bias, running, momentum=0.1, eps=1e-5, residual=other, relu=relu)
        else:
            out = nn.functional.batch_norm(x, None, None, weight, bias, training=True, eps=1e-5)
            out = out if other is None else out + other
            out = out.relu() if relu else out
        leaves = [x, weight, bias]
        grads = torch.autograd.grad(out, leaves, case.dy.to(out.dtype), create_graph=True)
        penalty = sum(grad.square().sum() for grad in grads)
        results.append([*grads, *torch.autograd.grad(penalty, leaves[:2])])
    for fused, reference in zip(*results, strict=True):
        torch.testing.assert_close(fused.double(), reference, rtol=1e-3, atol=1e-3)


def test_many_gradients_at_once() -> None:
    case = Case((3, 5, 2, 2))
    x, _, weight, bias = case.leaves(None)
    running = Running(case.running_mean.clone(), case.running_var.clone(), None)
    out, _ = batch_norm_relu(x, weight, bias, running, momentum=0.1, eps=1e-5)
    many = torch.stack([case.dy, 2 * case.dy])
    batched = torch.autograd.grad(out, weight, many, is_grads_batched=True, retain_graph=True)[0]
    torch.testing.assert_close(batched[0], torch.autograd.grad(out, weight, case.dy)[0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(batched[1], 2 * batched[0])


def test_nan_is_not_hidden_by_the_relu() -> None:
    case = Case((4, 16, 5, 5))
    case.x[1, 3, 2, 2] = torch.nan
    got = case.fused()
    assert got.out[:, 3].isnan().all()
    assert got.dx[:, 3].isnan().all()
    assert got.running_mean.isnan().nonzero().tolist() == [[3]]
    assert not got.out[:, 4].isnan().any()


def test_invalid_input_is_an_error() -> None:
    case = Case((4, 16, 5, 5))
    running = Running(case.running_mean, case.running_var, case.tracked)
    valid = {"x": case.x, "weight": case.weight, "bias": case.bias, "running": running, "momentum": 0.1, "eps": 1e-5}
    one_value = case.x[:1, :, :1, :1].contiguous(memory_format=torch.channels_last)
    for changed, words in (
        ({"x": one_value}, r"more than 1 value per channel.*\(1, 16, 1, 1\)"),
        ({"x": case.x.contiguous()}, "channels-last.*strides"),
        ({"x": case.x.double()}, "channels-last.*float64"),
        ({"residual": case.x[:1]}, r"residual must have the shape.*\(1, 16, 5, 5\)"),
        ({"bias": case.bias[:3]}, r"bias must be 16.*\(3,\)"),
        ({"running": running._replace(var=case.running_var.double())}, "var must be 16.*float64"),
    ):
        with pytest.raises(ValueError, match=words):
            batch_norm_relu(**valid | changed)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_try_out_runs_both_ways_in_any_grad_mode(mode: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The first batch norm may run in an evaluation without gradients; the kernels must still be tested both ways."""
    calls = []
    backward_apply = batch_norm.backward_apply
    monkeypatch.setattr(batch_norm, "backward_apply", lambda *args: calls.append(args) or backward_apply(*args))
    with mode():
        batch_norm.try_out(torch.device(DEVICE))
    assert len(calls) == 1


def test_kernels_that_cannot_be_built_give_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_compiler(device: torch.device) -> None:
        raise RuntimeError("Failed to find\n  C compiler")

    device = torch.device("cuda", 0)
    monkeypatch.setattr(batch_norm, "try_out", lambda device: None)
    kernels_on.cache_clear()
    assert kernels_on(device) == (batch_norm, None)
    monkeypatch.setattr(batch_norm, "try_out", no_compiler)
    kernels_on.cache_clear()
    with pytest.warns(UserWarning, match=r"runs slower: .*: Failed to find C compiler"):
        kernels = kernels_on(device)
    assert kernels.module is None
    # The result of a run mentions it if the model has batch norm.
    resnet, text = preset("cifar10_resnet50"), preset("20newsgroups_text_cnn")
    assert slowed_by(MODELS["resnet50"](), resnet, device) == kernels.problem
    assert slowed_by(MODELS["resnet50"](), resnet, torch.device("cpu")) is None
    assert slowed_by(MODELS["text_cnn"](), text, device) is None
    monkeypatch.setenv("DUALFOCAL_KERNELS", "0")
    kernels_on.cache_clear()
    assert kernels_on(device) == (None, None)
    kernels_on.cache_clear()


def test_of_a_layer() -> None:
    """Same output and same running statistics as the layer."""
    case, bn = Case((4, 16, 5, 5)), nn.BatchNorm2d(16, momentum=0.3, eps=1e-3).to(DEVICE)
    other = nn.BatchNorm2d(16, momentum=0.3, eps=1e-3).to(DEVICE)
    out, _ = batch_norm_of(bn, case.x, None, relu=True)
    torch.testing.assert_close(out, other(case.x).relu())
    for name, value in other.state_dict().items():
        torch.testing.assert_close(bn.state_dict()[name], value)


def test_applies_only_where_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check the conditions with a tensor that claims to be on a GPU."""
    monkeypatch.setattr(batch_norm, "_is_recent", lambda device: True)

    class OnGPU(Tensor):
        is_cuda = True

    def image(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.zeros(shape, dtype=dtype).contiguous(memory_format=torch.channels_last).as_subclass(OnGPU)

    x, bn = image(4, 16, 5, 5), nn.BatchNorm2d(16)
    for inputs, layer in (
        (x, bn),
        (image(4, 16, 5, 5, dtype=torch.bfloat16), bn),
        (image(4, 16, 1, 1), bn),
        (torch.zeros(4, 1, 5, 5).as_subclass(OnGPU), nn.BatchNorm2d(1)),
    ):
        assert applies(inputs, layer), (inputs.shape, inputs.dtype)
    for reason, inputs, layer in (
        ("contiguous", torch.zeros(4, 16, 5, 5).as_subclass(OnGPU), bn),
        ("on the CPU", torch.zeros(4, 16, 5, 5).contiguous(memory_format=torch.channels_last), bn),
        ("rows left out", x[:, :, ::2], bn),
        ("channels left out", x[:, :8], nn.BatchNorm2d(8)),
        ("float64", x.double(), bn),
        ("one value", image(1, 16, 1, 1), bn),
        ("evaluation", x, nn.BatchNorm2d(16).eval()),
        ("no momentum", x, nn.BatchNorm2d(16, momentum=None)),
        ("no weights", x, nn.BatchNorm2d(16, affine=False)),
        ("no running statistics", x, nn.BatchNorm2d(16, track_running_stats=False)),
        ("bfloat16 weights", x, nn.BatchNorm2d(16).bfloat16()),
        ("synchronized", x, nn.SyncBatchNorm(16)),
        ("other channels", x, nn.BatchNorm2d(8)),
    ):
        assert not applies(inputs, layer), reason
    assert not torch.func.vmap(lambda _: torch.tensor(applies(x, bn)))(torch.zeros(2)).any()
    monkeypatch.setattr(batch_norm, "_is_recent", lambda device: False)
    assert not applies(x, bn)


@needs_cuda
def test_large_images_on_the_gpu() -> None:
    for shape in ((128, 64, 32, 32), (128, 320, 16, 16), (128, 2048, 4, 4), (127, 256, 31, 31)):
        Case(shape, torch.bfloat16, residual=shape[1] != 320).check(1e-4)


@needs_cuda
def test_same_bits_on_any_stream_and_under_load() -> None:
    """Many calls, while another stream keeps some multiprocessors busy."""
    case = Case((64, 64, 16, 16), torch.bfloat16, residual=True)
    expected = case.fused()
    torch.cuda.synchronize()
    noise, side = torch.cuda.Stream(), torch.cuda.Stream()
    matrix = torch.randn(2048, 2048, device="cuda")
    for i in range(100):
        with torch.cuda.stream(noise):
            matrix @ matrix
        with torch.cuda.stream(side if i % 2 else torch.cuda.current_stream()):
            got = case.fused()
        torch.cuda.synchronize()
        for first, second in zip(expected, got, strict=True):
            assert torch.equal(first, second), i


@needs_cuda
def test_in_a_cuda_graph() -> None:
    """Two replays give the same output and move the running statistics as two eager calls."""
    case = Case((32, 64, 8, 8), torch.bfloat16, residual=True)
    x, residual, weight, bias = case.leaves(None)

    def state() -> tuple[Tensor, Tensor, Tensor]:
        return case.running_mean.clone(), case.running_var.clone(), case.tracked.clone()

    def step(buffers: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, ...]:
        out, _ = batch_norm_relu(x, weight, bias, Running(*buffers), momentum=0.1, eps=1e-5, residual=residual)
        grads = torch.autograd.grad(out, (x, residual, weight, bias), case.dy)
        return out.detach(), *grads  # detached, because the autograd graph belongs to another stream

    eager = state()
    expected = [step(eager) for _ in range(2)][-1]
    buffers, start = state(), state()
    warm = torch.cuda.Stream()
    warm.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(warm):
        step(buffers)
    torch.cuda.current_stream().wait_stream(warm)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = step(buffers)
    for buffer, value in zip(buffers, start, strict=True):
        buffer.copy_(value)
    for _ in range(2):
        with torch.no_grad():
            for tensor in got:
                tensor.zero_()
        graph.replay()
        torch.cuda.synchronize()
        for name, first, second in zip(("out", "dx", "d_residual", "d_weight", "d_bias"), expected, got, strict=True):
            assert torch.equal(first, second), name
    for first, second in zip(eager, buffers, strict=True):
        assert torch.equal(first, second)


@needs_cuda
def test_applies_on_the_gpu() -> None:
    x = torch.zeros(4, 16, 5, 5, device="cuda").contiguous(memory_format=torch.channels_last)
    assert applies(x, nn.BatchNorm2d(16).cuda())
    assert not applies(x.contiguous(), nn.BatchNorm2d(16).cuda())
