"""Export to ONNX: onnxruntime gives the probabilities of torch, and a wrong export is not written."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from calibrator_cases import NAMES, forced, sample
from torch import Tensor, nn

from dualfocal.calibrators import (
    BetaCalibration,
    CalibratedModel,
    Calibrator,
    EnsembleTemperatureScaling,
    HistogramBinning,
    IsotonicCalibration,
    TemperatureScaling,
    make_calibrator,
)

if os.environ.get("DUALFOCAL_INTEGRATIONS") != "required":
    pytest.importorskip("onnxscript", reason="make test-integrations installs it")
    pytest.importorskip("onnxruntime", reason="make test-integrations installs it")
pytestmark = pytest.mark.filterwarnings("ignore")  # the exporter has warnings of its own

import onnx  # noqa: E402
import onnxruntime  # noqa: E402

from dualfocal.integrations.onnx import BOUNDS, export_onnx  # noqa: E402
from dualfocal.integrations.onnx._operators import search_sorted  # noqa: E402

ALL = (*NAMES, "vector+histogram", "beta+bbq")


def run(path: Path, *inputs: Tensor) -> Tensor:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    outputs = session.run(None, {name: x.numpy() for name, x in zip(names, inputs, strict=True)})
    assert len(outputs) == 1
    return torch.from_numpy(outputs[0])


def largest(a: Tensor, b: Tensor) -> float:
    return float((a.double() - b.double()).abs().max())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.onnx"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ALL)
def test_every_calibrator_agrees_within_the_bound_of_its_dtype(name, dtype, path) -> None:
    calibrator = forced(name).fit(*sample(1500, 4))
    agreement = export_onnx(calibrator, sample(5, 4)[0].to(dtype), path)
    assert (agreement.inputs, agreement.output, agreement.bound) == (("logits",), "probs", BOUNDS[dtype])
    logits = sample(20_000, 4, seed=3)[0].to(dtype)
    probs, expected = run(path, logits), CalibratedModel(nn.Identity(), calibrator)(logits)
    assert probs.dtype == expected.dtype == dtype
    assert largest(probs, expected) <= BOUNDS[dtype]
    logits = logits[:4].clone()
    logits[1, 2] = torch.nan
    with_nan = run(path, logits)
    assert with_nan[1].isnan().all()
    torch.testing.assert_close(with_nan[[0, 2, 3]], probs[[0, 2, 3]])


def test_a_softmax_before_a_calibrator_of_logits_is_an_error(path) -> None:
    logits, target = sample(300, 4)
    calibrator = TemperatureScaling().fit(logits, target)
    with pytest.raises(ValueError, match="takes logits, but the values look like probabilities"):
        export_onnx(CalibratedModel(nn.Softmax(1), calibrator).eval(), logits[:5], path)
    export_onnx(CalibratedModel(nn.Softmax(1), calibrator, input="logits"), logits[:5], path)


def test_a_calibrator_fitted_on_probabilities_takes_probabilities(path) -> None:
    logits, target = sample(300, 4)
    probs = logits.softmax(1)
    calibrator = TemperatureScaling().fit(probs, target, input="probs")
    assert export_onnx(calibrator, probs[:5], path).inputs == ("probs",)
    assert largest(run(path, probs), calibrator(probs).softmax(1)) <= BOUNDS[torch.float32]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["matrix", "beta", "temperature+isotonic"])
def test_logits_of_half_precision_agree(name, dtype, path) -> None:
    calibrator = forced(name).fit(*sample(500, 3))
    agreement = export_onnx(calibrator, sample(5, 3)[0].to(dtype), path)
    assert agreement.dtype == str(dtype).removeprefix("torch.")
    assert agreement.difference <= agreement.bound == BOUNDS[dtype]
    assert agreement.rows > 1000


@pytest.mark.parametrize("classes", [2, 3, 10, 1000])
@pytest.mark.parametrize("name", ["ets", "beta", "isotonic"])
def test_few_and_many_classes_and_any_batch_size(name, classes, path) -> None:
    logits, target = sample(600, classes)
    calibrator = forced(name).fit(logits, target)
    export_onnx(calibrator, logits[:1], path)
    for rows in (0, 1, 7, 1000):
        new = sample(1000, classes, seed=4)[0][:rows]
        probs = run(path, new)
        assert probs.shape == (rows, classes)
        torch.testing.assert_close(probs, CalibratedModel(nn.Identity(), calibrator)(new), rtol=0, atol=2e-7)


@pytest.mark.parametrize("name", NAMES)
def test_calibrators_of_probabilities(name, path) -> None:
    logits, target = sample(800, 3, dtype=torch.float64)
    probs = logits.softmax(1)
    calibrator = forced(name).fit(probs, target, input="probs")
    model = CalibratedModel(nn.Identity(), calibrator, input="probs")
    assert export_onnx(model, probs[:4], path).inputs == ("probs",)
    new = sample(5000, 3, seed=3, dtype=torch.float64)[0].softmax(1)
    new[0], new[1] = torch.tensor([1.0, 0.0, 0.0]), torch.tensor([0.5, 0.0, 0.5])
    assert largest(run(path, new), calibrator(new, input="probs").softmax(1)) <= BOUNDS[torch.float64]


def test_points_on_between_and_beyond_knots(path) -> None:
    knots = torch.tensor([[0.2, 0.5, 0.7], [0.2, 0.5, 0.7]], dtype=torch.float64)
    values = torch.tensor([[0.1, 0.3, 0.6, 0.9], [0.1, 0.3, 0.6, 0.9]], dtype=torch.float64)
    calibrator = HistogramBinning()
    calibrator.load_state_dict({"knots": knots, "values": values})
    agreement = export_onnx(calibrator, torch.zeros(2, 2, dtype=torch.float64), path)
    assert agreement.rows_at_jumps > 0
    p = torch.tensor([0.5, 0.45, 0.6, 0.9, 0.75 - 1e-9, 1.0], dtype=torch.float64)
    probs = run(path, torch.stack([(1 - p).log().clamp(min=-1e4), p.log()], dim=1))
    # (lo, hi]: 0.5 belongs to the bin below, for both classes; then q / (q + q of the other class).
    q, other = torch.tensor([0.3, 0.3, 0.6, 0.9, 0.9, 0.9]), torch.tensor([0.3, 0.6, 0.3, 0.1, 0.3, 0.1])
    torch.testing.assert_close(probs[:, 1].float(), q / (q + other))


def test_isotonic_knots_close_to_each_other_stay_apart(path) -> None:
    # In float32, as in other exporters, these knots would be one.
    knots = torch.tensor([[0.1, 0.3, 0.3 + 1e-9, 0.9]] * 2, dtype=torch.float64)
    values = torch.tensor([[0.1, 0.1, 0.8, 0.8]] * 2, dtype=torch.float64)
    calibrator = IsotonicCalibration()
    calibrator.load_state_dict({"knots": knots, "values": values})
    export_onnx(calibrator, torch.zeros(2, 2, dtype=torch.float64), path)
    p = torch.tensor([0.3 - 1e-10, 0.3 + 0.5e-9, 0.3 + 1.1e-9], dtype=torch.float64)
    probs = run(path, torch.stack([(1 - p).log(), p.log()], dim=1))[:, 1]
    q = torch.tensor([0.1, 0.45, 0.8], dtype=torch.float64)
    torch.testing.assert_close(probs, q / (q + 0.8), rtol=0, atol=1e-6)


def test_log_sigmoid_is_exact_where_that_of_the_exporter_is_not(path) -> None:
    # Slopes of 2 and 0, and saturated logits: log(sigmoid) underflows, and 0 * log(0) would be NaN.
    calibrator = BetaCalibration()
    coefficients = torch.tensor([[2.0, 0.0, 0.0], [2.0, 2.0, -30.0]], dtype=torch.float64)
    calibrator.load_state_dict({"coefficients": coefficients})
    export_onnx(calibrator, torch.zeros(2, 2, dtype=torch.float64), path)
    logits = torch.tensor([[0.0, -900.0], [900.0, 0.0], [0.0, 60_000.0], [0.0, 14.0]], dtype=torch.float64)
    probs = run(path, logits)
    assert largest(probs, calibrator(logits).softmax(1)) <= BOUNDS[torch.float64]
    assert probs.isfinite().all()


def test_the_uniform_part_of_an_ensemble_is_not_rounded_to_float32(path) -> None:
    calibrator = EnsembleTemperatureScaling()
    weights = torch.tensor([0.5, 0.2, 0.3], dtype=torch.float64)
    calibrator.load_state_dict({"temperature": torch.tensor(1.7, dtype=torch.float64), "weights": weights})
    export_onnx(calibrator, torch.zeros(2, 3, dtype=torch.float64), path)
    logits = sample(1000, 3, dtype=torch.float64)[0]
    expected = 0.5 * (logits / 1.7).softmax(1) + 0.2 * logits.softmax(1) + 0.3 / 3
    assert largest(run(path, logits), expected) < 1e-14


# Wrong exports


def shifted(knots: Any, values: Any) -> Any:
    from onnxscript import opset18 as op

    return op.Add(search_sorted(knots, values), op.Constant(value_int=1))


def rounded(knots: Any, values: Any) -> Any:
    from onnxscript import opset18 as op

    narrow = op.Cast(op.Cast(knots, to=onnx.TensorProto.FLOAT), to=onnx.TensorProto.DOUBLE)
    narrow.shape = knots.shape
    return search_sorted(narrow, values)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [("histogram", shifted), ("isotonic", shifted), ("histogram", rounded), ("bbq", rounded)],
)
def test_a_wrong_or_imprecise_search_is_refused_and_the_old_file_kept(name, wrong, path, monkeypatch) -> None:
    path.write_bytes(b"old")
    monkeypatch.setattr(
        "dualfocal.integrations.onnx.export.translations", lambda: {torch.ops.aten.searchsorted.Tensor: wrong}
    )
    calibrator = make_calibrator(name).fit(*sample(2000, 3, dtype=torch.float64))
    with pytest.raises(RuntimeError, match=r"not written: a calibrated probability .* differs from torch by"):
        export_onnx(calibrator, sample(3, 3, dtype=torch.float64)[0], path)
    assert path.read_bytes() == b"old"
    assert [file.name for file in path.parent.iterdir()] == ["model.onnx"]


@pytest.mark.parametrize("change", [lambda x: x + 1, lambda x: torch.where(x > 0, x, torch.nan)])
def test_a_model_that_onnx_changes_is_refused(change, path) -> None:
    class Changing(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return change(x) if torch.compiler.is_exporting() else x

    model = CalibratedModel(Changing(), TemperatureScaling().fit(*sample(100, 3)))
    with pytest.raises(RuntimeError, match="uncalibrated logits of onnxruntime differ"):
        export_onnx(model, sample(3, 3)[0], path)
    assert not path.exists()


class Masked(nn.Module):
    """A linear model without its last class, whose weights the exporter changes."""

    def __init__(self, change: Callable[[Tensor], Tensor], mask: float) -> None:
        super().__init__()
        self.weight, self.change = nn.Parameter(torch.randn(4, 8)), change
        self.register_buffer("mask", torch.tensor([0.0, 0.0, 0.0, mask]))

    def forward(self, x: Tensor) -> Tensor:
        weight = self.change(self.weight) if torch.compiler.is_exporting() else self.weight
        return x @ weight.T + self.mask


@pytest.mark.parametrize("mask", [-1e5, -1e30, torch.finfo(torch.float32).min, -torch.inf])
@pytest.mark.parametrize("change", [torch.neg, lambda weight: 1.01 * weight], ids=["sign", "scale"])
def test_a_masked_class_does_not_hide_wrong_weights(change, mask, path) -> None:
    example = torch.randn(20, 8)
    with pytest.raises(RuntimeError, match="uncalibrated logits of onnxruntime differ"):
        export_onnx(CalibratedModel(Masked(change, mask), fitted("temperature")), example, path)
    assert not path.exists()
    agreement = export_onnx(CalibratedModel(Masked(nn.Identity(), mask), fitted("temperature")), example, path)
    assert agreement.logit_difference < 1e-5


# Whole models


class Token(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(50, 8), nn.Linear(8, classes)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        return {"logits": self.head(self.embedding(input_ids)) * attention_mask[..., None]}


def fitted(name: str = "isotonic") -> Calibrator:
    return make_calibrator(name).fit(*sample(600, 4))


def test_a_network_with_dropout_and_batch_norm_is_exported_in_evaluation_mode(path) -> None:
    layers = [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 4)]
    model = CalibratedModel(nn.Sequential(*layers), fitted("temperature")).train()
    agreement = export_onnx(model, torch.randn(2, 3, 6, 6), path)
    assert model.training
    assert model.model[4].training
    assert agreement.batch_sizes == (2, 1, 7)
    assert agreement.logit_difference < 1e-5
    x = torch.randn(30, 3, 6, 6)
    with torch.no_grad():
        torch.testing.assert_close(run(path, x), model.eval()(x), rtol=0, atol=1e-5)


def test_dense_predictions_of_any_size(path) -> None:
    model = CalibratedModel(nn.Conv2d(3, 4, 1), fitted("platt")).eval()
    export_onnx(model, torch.randn(2, 3, 5, 6), path, dynamic_dims=(0, 2, 3))
    x = torch.randn(3, 3, 9, 4)
    torch.testing.assert_close(run(path, x), model(x).detach(), rtol=0, atol=1e-5)


def test_keyword_arguments_classes_last_and_any_length(path) -> None:
    model = CalibratedModel(Token(4), fitted("vector"), class_dim=-1).eval()
    ids, mask = torch.randint(50, (3, 7)), torch.ones(3, 7, dtype=torch.int64)
    agreement = export_onnx(model, {"input_ids": ids, "attention_mask": mask}, path, dynamic_dims=(0, 1))
    assert agreement.inputs == ("input_ids", "attention_mask")
    ids, mask = torch.randint(50, (5, 11)), torch.randint(2, (5, 11))
    torch.testing.assert_close(run(path, ids, mask), model(ids, mask).detach(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["temperature", "platt", "histogram"])
def test_log_odds(name, path) -> None:
    logits, target = sample(500, 2)
    odds = logits[:, 1] - logits[:, 0]
    calibrator = make_calibrator(name).fit(odds, target)
    export_onnx(calibrator, odds[:3], path)
    torch.testing.assert_close(run(path, odds), calibrator(odds.double()).sigmoid().float(), rtol=0, atol=2e-7)


def test_calibrated_logits_fixed_sizes_names_and_metadata(path) -> None:
    calibrator = fitted("ets")
    calibrator.class_names = ("a", "b", "c", "ä")
    model = CalibratedModel(nn.Identity(), calibrator, output="logits")
    logits = sample(6, 4)[0]
    agreement = export_onnx(model, logits, path, dynamic_dims=(), opset=18)
    assert (agreement.inputs, agreement.output, agreement.opset) == (("logits",), "calibrated_logits", 18)
    assert agreement.batch_sizes == (6,)
    torch.testing.assert_close(run(path, logits), calibrator(logits.double()).float(), rtol=1e-6, atol=1e-6)
    file = onnx.load(path)
    facts = {entry.key: entry.value for entry in file.metadata_props}
    assert facts["dualfocal.calibrator"].startswith("EnsembleTemperatureScaling")
    assert json.loads(facts["dualfocal.class_names"]) == ["a", "b", "c", "ä"]
    onnx.checker.check_model(file, full_check=True)
    assert export_onnx(model, logits, path, input_names=["z"]).inputs == ("z",)


def test_hugging_face_models(path) -> None:
    transformers = pytest.importorskip("transformers", reason="make test-integrations installs it")
    config = transformers.BertConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, vocab_size=50, num_labels=4
    )
    model = CalibratedModel(transformers.BertForSequenceClassification(config), fitted("matrix")).eval()
    ids, mask = torch.randint(50, (3, 8)), torch.ones(3, 8, dtype=torch.int64)
    mask[0, 5:] = 0
    export_onnx(model, {"input_ids": ids, "attention_mask": mask}, path, dynamic_dims=(0, 1))
    ids, mask = ids[:2, :6], mask[:2, :6]
    expected = model(input_ids=ids, attention_mask=mask).detach()
    torch.testing.assert_close(run(path, ids, mask), expected, rtol=0, atol=1e-5)


# Bad input


@pytest.mark.parametrize(
    ("example", "message"),
    [
        (torch.zeros(0, 4), r"at least one, got shapes \(0, 4\)"),
        ((torch.zeros(2, 4), torch.zeros(3, 4)), r"same number of rows, .* got shapes \(2, 4\), \(3, 4\)"),
        ((), "got nothing"),
        ([[1.0, 2.0]], "tuple or dictionary of tensors, got list"),
        (torch.zeros(2, 4).numpy(), r"got ndarray; convert arrays with torch\.as_tensor"),
        (torch.zeros(2, 5), r"fitted for 4 classes, but the model returned logits of shape \(2, 5\)"),
    ],
)
def test_bad_examples_are_refused(example, message, path) -> None:
    with pytest.raises(ValueError, match=message):
        export_onnx(fitted(), example, path)
    assert not path.exists()


def test_bad_arguments_are_refused(path) -> None:
    with pytest.raises(ValueError, match=r"must end in \.onnx"):
        export_onnx(fitted(), torch.zeros(2, 4), path.with_suffix(".pt"))
    with pytest.raises(ValueError, match="there is no folder"):
        export_onnx(fitted(), torch.zeros(2, 4), path.parent / "missing" / "model.onnx")
    with pytest.raises(TypeError, match="must be a CalibratedModel or a calibrator, got Linear"):
        export_onnx(nn.Linear(2, 2), torch.zeros(2, 2), path)
    with pytest.raises(RuntimeError, match="is not fitted"):
        export_onnx(TemperatureScaling(), torch.zeros(2, 2), path)
    with pytest.raises(ValueError, match=r"input_names must be 1 different names, .* got \['a', 'b'\]"):
        export_onnx(fitted(), torch.zeros(2, 4), path, input_names=["a", "b"])
    with pytest.raises(ValueError, match=r"dynamic_dims must not be negative, got \(-1,\)"):
        export_onnx(fitted(), torch.zeros(2, 4), path, dynamic_dims=(-1,))
    with pytest.raises(ValueError, match=r"dynamic_dims must be below 2, .*got \(0, 2\)"):
        export_onnx(fitted(), torch.zeros(2, 4), path, dynamic_dims=(0, 2))


def test_what_onnxruntime_cannot_run_is_refused_with_the_remedy(path) -> None:
    model = CalibratedModel(nn.Linear(3, 4), fitted()).bfloat16()
    with pytest.raises(RuntimeError, match=r"cannot load the model on the CPU: .*; .* export it in float32"):
        export_onnx(model, torch.randn(2, 3, dtype=torch.bfloat16), path)
    assert not path.exists()


def test_a_missing_package_is_named_with_its_extra(path, monkeypatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "onnxruntime", None)
    with pytest.raises(ImportError, match=re.escape('onnxruntime is not installed: pip install "dualfocal[onnx]"')):
        export_onnx(fitted(), torch.zeros(2, 4), path)
