"""CalibratedModel: a model and its calibrator as one module, eager, compiled and exported by torch."""

from types import SimpleNamespace

import pytest
import torch
from calibrator_cases import NAMES, forced, sample
from case_loops import for_each
from torch import nn

from dualfocal.calibrators import CalibratedModel, HistogramBinning, TemperatureScaling, VectorScaling, make_calibrator

FEATURES, CLASSES = 6, 4


def network(classes: int = CLASSES) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(FEATURES, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, classes))


def fitted(name: str = "temperature", classes: int = CLASSES):
    return forced(name).fit(*sample(400, classes))


class Returns(nn.Module):
    """A model that returns a given object, whatever its arguments are."""

    def __init__(self, result: object) -> None:
        super().__init__()
        self.result = result

    def forward(self, *args: object, **kwargs: object) -> object:
        return self.result


@for_each(name=NAMES)
def test_probabilities_are_those_of_the_calibrator_applied_to_the_model(name) -> None:
    model, calibrator, x = network().eval(), fitted(name), torch.randn(50, FEATURES)
    expected = calibrator(model(x).double()).softmax(1)
    probs = CalibratedModel(model, calibrator).eval()(x)
    assert probs.dtype == torch.float32
    assert torch.equal(probs, expected.float())
    logits = CalibratedModel(model, calibrator, output="logits").eval()(x)
    torch.testing.assert_close(logits.softmax(1), probs, rtol=0, atol=2e-6)


@for_each(name=NAMES)
def test_the_whole_module_exports_for_any_batch_size(name) -> None:
    model = CalibratedModel(network(), fitted(name)).eval()
    shapes = {"args": ({0: torch.export.Dim("batch")},)}
    exported = torch.export.export(model, (torch.randn(3, FEATURES),), dynamic_shapes=shapes).module()
    for rows in (2, 7, 300):
        x = torch.randn(rows, FEATURES)
        torch.testing.assert_close(exported(x), model(x), rtol=0, atol=1e-7)


@for_each(name=NAMES)
def test_the_whole_module_compiles_for_any_batch_size(name) -> None:
    model = CalibratedModel(network(), fitted(name)).eval()
    compiled = torch.compile(model, fullgraph=True, backend="eager", dynamic=True)
    for rows in (2, 7, 300):
        x = torch.randn(rows, FEATURES)
        torch.testing.assert_close(compiled(x), model(x), rtol=0, atol=1e-7)
    torch.compiler.reset()


@for_each(make=(lambda z: z, lambda z: {"loss": None, "logits": z}, lambda z: SimpleNamespace(logits=z)))
def test_the_logits_may_be_a_tensor_or_in_a_dictionary_or_an_object(make) -> None:
    logits, calibrator = sample(20)[0], fitted()
    model = CalibratedModel(Returns(make(logits)), calibrator)
    assert torch.equal(model.uncalibrated(), logits)
    assert torch.equal(model(input_ids=None), calibrator(logits.double()).softmax(1).float())


@pytest.mark.parametrize(
    "result", [(torch.zeros(3, 4),), {"scores": torch.zeros(3, 4)}, torch.zeros(3, 4).long(), None]
)
def test_other_results_of_the_model_are_refused(result) -> None:
    with pytest.raises(
        TypeError, match=r"tensor of logits, or an object with \.logits, got (tuple|dict|torch.int64|N)"
    ):
        CalibratedModel(Returns(result), fitted())()


def test_log_odds_give_the_probability_of_class_1() -> None:
    logits, target = sample(300, 2)
    odds = logits[:, 1] - logits[:, 0]
    calibrator = TemperatureScaling().fit(odds, target)
    probs = CalibratedModel(nn.Identity(), calibrator)(odds)
    torch.testing.assert_close(probs, (odds / calibrator.temperature).sigmoid().float())


@for_each(name=("temperature", "isotonic", "matrix"))
def test_dense_logits_and_classes_in_the_last_dimension(name) -> None:
    calibrator = fitted(name)
    rows = sample(2 * 3 * 5)[0]
    expected = CalibratedModel(nn.Identity(), calibrator)(rows).view(2, 3, 5, CLASSES)
    dense = rows.view(2, 3, 5, CLASSES).permute(0, 3, 1, 2)
    torch.testing.assert_close(CalibratedModel(nn.Identity(), calibrator)(dense), expected.permute(0, 3, 1, 2))
    last = CalibratedModel(nn.Identity(), calibrator, class_dim=-1)
    torch.testing.assert_close(last(rows.view(2, 3, 5, CLASSES)), expected)


@for_each(name=("temperature", "isotonic", "vector"))
def test_a_model_that_returns_probabilities(name) -> None:
    logits, target = sample()
    probs = logits.double().softmax(1)
    calibrator = forced(name).fit(probs, target, input="probs")
    model = CalibratedModel(nn.Softmax(1), calibrator, input="probs")
    torch.testing.assert_close(model(logits.double()), calibrator(probs, input="probs").softmax(1))


@for_each(name=("temperature", "isotonic", "vector"))
def test_a_model_takes_the_kind_of_the_fit(name) -> None:
    logits, target = sample()
    calibrator = forced(name).fit(logits.softmax(1), target, input="probs")
    model = CalibratedModel(nn.Softmax(1), calibrator)
    assert model.input == "probs"
    assert torch.equal(model(logits), CalibratedModel(nn.Softmax(1), calibrator, input="probs")(logits))
    with pytest.raises(ValueError, match="was fitted on probabilities, but got"):
        CalibratedModel(nn.Identity(), calibrator)(logits)
    dense = logits.reshape(-1, 5, logits.shape[1])
    for dtype in (torch.float32, torch.bfloat16):
        with pytest.raises(ValueError, match="takes logits, but the values look like probabilities"):
            CalibratedModel(nn.Softmax(-1), fitted(name), class_dim=-1)(dense.to(dtype))
    assert CalibratedModel(nn.Softmax(1), fitted(name), input="logits")(logits).isfinite().all()


def test_half_precision_rounds_the_model_but_not_the_calibrator() -> None:
    calibrator = fitted("isotonic")
    knots = calibrator.knots.clone()
    model = CalibratedModel(network(), calibrator).bfloat16().eval()
    assert next(model.model.parameters()).dtype == torch.bfloat16
    assert torch.equal(model.calibrator.knots, knots)
    x = torch.randn(9, FEATURES, dtype=torch.bfloat16)
    probs = model(x)
    assert probs.dtype == torch.float32
    assert torch.equal(probs, calibrator(model.model(x).double()).softmax(1).float())


def test_the_state_is_that_of_model_and_calibrator() -> None:
    model = CalibratedModel(network(), fitted("vector")).eval()
    other = CalibratedModel(network(), VectorScaling().fit(*sample(100, seed=5))).eval()
    x = torch.randn(9, FEATURES)
    assert not torch.equal(other(x), model(x))
    other.load_state_dict(model.state_dict())
    assert {"calibrator.weight", "calibrator.bias", "model.0.weight"} <= model.state_dict().keys()
    assert torch.equal(other(x), model(x))


def test_gradients_reach_the_model_and_not_the_calibrator() -> None:
    model = CalibratedModel(network(), fitted("matrix")).eval()
    model(torch.randn(9, FEATURES))[:, 0].sum().backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in model.model.parameters())
    assert list(model.calibrator.parameters()) == []


def test_dropout_follows_train_and_eval() -> None:
    model, x = CalibratedModel(network(), fitted()), torch.randn(9, FEATURES)
    assert not torch.equal(model.train()(x), model(x))
    assert torch.equal(model.eval()(x), model(x))


def test_bad_arguments_are_refused_at_construction() -> None:
    with pytest.raises(RuntimeError, match="HistogramBinning is not fitted"):
        CalibratedModel(network(), HistogramBinning())
    with pytest.raises(TypeError, match=r"model must be a torch.nn.Module, got function"):
        CalibratedModel(lambda x: x, fitted())
    with pytest.raises(TypeError, match="calibrator must be a Calibrator, got Linear"):
        CalibratedModel(network(), nn.Linear(2, 2))
    with pytest.raises(ValueError, match="output must be one of 'probs', 'logits', got 'labels'"):
        CalibratedModel(network(), fitted(), output="labels")
    with pytest.raises(ValueError, match="fitted on logits, but got probabilities"):
        CalibratedModel(network(), fitted("vector"), input="probs")


def test_a_wrong_number_of_classes_is_named_with_the_shape() -> None:
    x = torch.randn(5, FEATURES)
    with pytest.raises(ValueError, match=r"fitted for 4 classes, .* shape \(5, 3\), with 3 classes in .*class_dim=1"):
        CalibratedModel(network(3), fitted("vector"))(x)
    with pytest.raises(ValueError, match=r"class_dim is 2, but .* shape \(5, 4\)"):
        CalibratedModel(network(), fitted("vector"), class_dim=2)(x)


@for_each(name=NAMES)
def test_sensitivity_is_above_0_only_beside_jumps_and_on_steep_parts(name) -> None:
    logits, target = sample(dtype=torch.float64)
    calibrator = forced(name).fit(logits, target)
    away = calibrator.sensitivity(sample(200, seed=9, dtype=torch.float64)[0])
    assert away.shape == (200,)
    assert float(away.max()) < 1e-9
    if name in ("histogram", "bbq"):
        knot = calibrator.knots[0, 3].log()
        rest = torch.log((1 - calibrator.knots[0, 3]) / 3)
        row = torch.stack([knot, rest, rest, rest])[None]
        jump = (calibrator.values[0, 4] - calibrator.values[0, 3]).abs()
        assert float(calibrator.sensitivity(row)) > float(jump) / 2
        shifted = row + torch.tensor([1e-9, 0, 0, 0])
        assert float(calibrator.sensitivity(shifted)) == 0
        assert float(calibrator.sensitivity(shifted, margin=1e-8)) > float(jump) / 2


def test_sensitivity_of_a_chain_is_that_of_its_steps() -> None:
    logits, target = sample(dtype=torch.float64)
    chain = make_calibrator("temperature+histogram").fit(logits, target)
    scaled = chain[0](logits)
    assert torch.equal(chain.sensitivity(logits, margin=1e-3), chain[1].sensitivity(scaled, margin=1e-3))
    assert float(chain.sensitivity(logits, margin=1e-3).max()) > 0
