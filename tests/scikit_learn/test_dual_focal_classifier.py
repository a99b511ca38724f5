"""DualFocalClassifier: scikit-learn's own checks, its objective, weights, seeds, early stopping, and bad input."""

import copy
import pickle
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_digits, load_iris
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_random_state
from sklearn.utils.estimator_checks import parametrize_with_checks

from dualfocal import LOSSES, AdaDualFocalLoss, DualFocalLoss, dual_focal_loss
from dualfocal.integrations.sklearn import DualFocalClassifier

X, Y = load_iris(return_X_y=True)
X = StandardScaler().fit_transform(X)
NAMES = np.array(["setosa", "versicolor", "virginica"])
BINARY = Y > 0
ADAPTIVE = ("ada_focal", "ada_dual_focal")


pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")  # trainings are short


def small(**options: Any) -> DualFocalClassifier:
    return DualFocalClassifier(**{"hidden_layer_sizes": (10,), "max_iter": 20, "random_state": 0, **options})


@pytest.mark.filterwarnings("ignore:dual focal loss with two classes")
@parametrize_with_checks([DualFocalClassifier((20,), max_iter=100, learning_rate_init=0.01)])
def test_all_checks_of_scikit_learn_pass(estimator: Any, check: Any) -> None:
    check(estimator)


def test_the_defaults_learn_small_data() -> None:
    features, labels = load_iris(return_X_y=True)  # not scaled; one step per epoch
    for seed in range(3):
        assert DualFocalClassifier(random_state=seed).fit(features, labels).score(features, labels) > 0.95


@pytest.mark.parametrize("early_stopping", [False, True])
def test_a_loss_that_still_falls_is_a_warning(early_stopping: bool) -> None:
    options = {"early_stopping": early_stopping, "learning_rate_init": 0.01, "loss": "focal"}
    with pytest.warns(ConvergenceWarning, match="not converged after max_iter=20 epochs: raise max_iter"):
        small(**options).fit(X, Y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        small(**options, max_iter=1000).fit(X, Y)


def test_two_classes_warn_at_every_fit_and_are_trained() -> None:
    for _ in range(2):
        with pytest.warns(UserWarning, match="use loss='focal' for binary problems"):
            model = DualFocalClassifier(random_state=0, max_iter=50).fit(X, BINARY)
    assert model.score(X, BINARY) > 0.95


@pytest.mark.parametrize(
    "options", [{"loss": "focal"}, {"gamma": 0.0}, {"loss": DualFocalLoss(rival=0.1)}, {"loss": torch.nn.NLLLoss()}]
)
def test_losses_without_the_jump_do_not_warn(options: dict[str, Any]) -> None:
    small(**options).fit(X, BINARY)  # warnings are errors


def test_the_adaptive_dual_focal_loss_warns_too() -> None:
    with pytest.warns(UserWarning, match="two classes"):
        small(loss=AdaDualFocalLoss(), early_stopping=True).fit(X, BINARY)


@pytest.mark.parametrize("gamma", [None, 2.0])
def test_the_loss_is_dual_focal_loss_with_this_gamma(gamma: float | None) -> None:
    model = small(gamma=gamma, learning_rate_init=0.0, max_iter=1).fit(X, Y)  # the initial weights
    logits = torch.tensor(model.decision_function(X))
    expected = dual_focal_loss(logits, torch.tensor(Y), 5.0 if gamma is None else gamma)
    assert model.loss_curve_ == pytest.approx([expected.item()], rel=1e-12)


@pytest.mark.parametrize("class_weight", [None, "balanced", {0: 1.0, 1: 3.0, 2: 0.5}])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_linear_model_with_cross_entropy_is_logistic_regression(class_weight: Any, weighted: bool) -> None:
    rows = np.r_[0:150, 0:20]  # not balanced
    features, labels = X[rows], Y[rows]
    weight = np.random.default_rng(0).random(len(rows)) if weighted else np.ones(len(rows))
    alpha = 0.01
    model = DualFocalClassifier(
        (), loss="cross_entropy", alpha=alpha, learning_rate_init=0.1, max_iter=600, class_weight=class_weight
    )
    model.fit(features, labels, sample_weight=weight if weighted else None)
    class_weights = class_weight
    if class_weight == "balanced":
        class_weights = dict(enumerate(weight.sum() / (3 * np.bincount(labels, weight))))
    total = (
        weight.sum() if class_weights is None else sum(weight[i] * class_weights[labels[i]] for i in range(len(rows)))
    )
    peer = LogisticRegression(C=1 / (alpha * total), class_weight=class_weights, tol=1e-8, max_iter=1000)
    peer.fit(features, labels, sample_weight=weight)
    np.testing.assert_allclose(model.predict_proba(features), peer.predict_proba(features), atol=1e-3)


def test_weights_in_batches_change_the_model_as_repetition_does() -> None:
    weight = np.where(Y == 1, 3.0, 1.0)
    options = {"batch_size": 50, "max_iter": 100, "learning_rate_init": 0.01}
    shares = [
        small(**options).fit(X, Y, sample_weight=weight).predict_proba(X).mean(0)[1],
        small(**options).fit(*(np.repeat(a, weight.astype(int), axis=0) for a in (X, Y))).predict_proba(X).mean(0)[1],
        small(**options).fit(X, Y).predict_proba(X).mean(0)[1],
    ]
    assert shares[0] == pytest.approx(shares[1], abs=0.03)
    assert shares[0] > shares[2] + 0.02


def test_same_seed_same_model_and_the_global_random_state_stays() -> None:
    before = torch.get_rng_state()
    first, again, other = (small(random_state=seed, batch_size=32, early_stopping=True).fit(X, Y) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    np.testing.assert_array_equal(first.predict_proba(X), again.predict_proba(X))
    assert abs(first.predict_proba(X) - other.predict_proba(X)).max() > 1e-3


def test_copies_predict_the_same_and_hold_no_tensors() -> None:
    model = small(early_stopping=True).fit(X, Y)
    for twin in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        np.testing.assert_array_equal(twin.predict_proba(X), model.predict_proba(X))
    values = [item for value in vars(model).values() for item in (value if isinstance(value, list) else [value])]
    assert not any(isinstance(item, torch.Tensor) for item in values)
    assert not hasattr(clone(model), "coefs_")
    assert not hasattr(model.set_params(early_stopping=False).fit(X, Y), "validation_nll_")


@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss_learns(loss: str) -> None:
    options = {"max_iter": 60, "learning_rate_init": 0.005, "batch_size": 32, "early_stopping": loss in ADAPTIVE}
    model = DualFocalClassifier((20,), loss=loss, random_state=0, **options)
    assert model.fit(X, Y).score(X, Y) > 0.85


def test_a_given_loss_is_copied_and_its_reduction_does_not_matter() -> None:
    adaptive = AdaDualFocalLoss()
    small(loss=adaptive, early_stopping=True).fit(X, Y)
    assert (adaptive.gamma == 5).all()
    assert adaptive.reduction == "mean"
    by_name = small(gamma=3.0).fit(X, Y).predict_proba(X)
    for reduction in ("mean", "sum", "none"):
        model = small(loss=DualFocalLoss(gamma=3.0, reduction=reduction))
        np.testing.assert_array_equal(clone(model).fit(X, Y).predict_proba(X), by_name)


def test_grid_search_compares_losses_and_gammas_by_nll() -> None:
    grid = [{"dualfocalclassifier__gamma": [1.0, 5.0]}, {"dualfocalclassifier__loss": ["cross_entropy", "brier"]}]
    pipeline = make_pipeline(StandardScaler(), small(max_iter=50, learning_rate_init=0.02))
    search = GridSearchCV(pipeline, grid, scoring="neg_log_loss", cv=3).fit(*load_iris(return_X_y=True))
    scores = search.cv_results_["mean_test_score"]
    assert len(set(scores)) == 4
    assert search.best_score_ == max(scores) > -0.3


def test_early_stopping_keeps_the_epoch_with_the_lowest_validation_nll() -> None:
    features, labels = load_digits(return_X_y=True)
    features = features[:400] / 16 + np.random.default_rng(0).normal(size=(400, 64))  # overfits soon
    model = DualFocalClassifier(
        loss="cross_entropy", learning_rate_init=0.01, early_stopping=True, validation_fraction=0.25, random_state=3
    )
    model.fit(features, labels[:400])
    _, val = train_test_split(np.arange(400), test_size=0.25, stratify=labels[:400], random_state=check_random_state(3))
    nll = log_loss(labels[val], model.predict_proba(features[val]))
    best = int(np.argmin(model.validation_nll_))
    assert nll == pytest.approx(model.validation_nll_[best], rel=1e-9)
    assert model.n_iter_ == best + 1 + model.n_iter_no_change == len(model.loss_curve_) < model.max_iter


def test_text_labels_are_the_columns_in_sorted_order() -> None:
    names = NAMES[[2, 0, 1]]  # class 0 is now the last one in sorted order
    by_name, by_number = small().fit(X, names[Y]), small().fit(X, np.array([2, 0, 1])[Y])
    assert by_name.classes_.tolist() == sorted(NAMES)
    np.testing.assert_array_equal(by_name.predict_proba(X), by_number.predict_proba(X))
    assert by_name.predict(X).tolist() == NAMES[by_number.predict(X)].tolist()


def test_the_decision_function_is_the_logits_or_the_log_odds() -> None:
    model = small().fit(X, Y)
    odds = np.exp(model.decision_function(X))
    np.testing.assert_allclose(odds / odds.sum(1, keepdims=True), model.predict_proba(X), rtol=1e-12)
    cancer, malignant = load_breast_cancer(return_X_y=True)
    binary = small(loss="focal").fit(cancer / cancer.max(0), malignant)
    probs = binary.predict_proba(cancer / cancer.max(0))
    np.testing.assert_allclose(binary.decision_function(cancer / cancer.max(0)), np.log(probs[:, 1] / probs[:, 0]))


def test_float32_features_train_in_float32() -> None:
    single, double = (small(max_iter=5).fit(X.astype(dtype), Y) for dtype in (np.float32, np.float64))
    assert [w.dtype for w in single.coefs_ + double.coefs_] == [np.float32] * 2 + [np.float64] * 2
    assert single.predict_proba(X).dtype == np.float32


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss": "dual_focl"}, "'dual_focl'; did you mean dual_focal"),
        ({"loss": 3}, "name of dualfocal.LOSSES or a torch.nn.Module, got 3"),
        ({"loss": "cross_entropy", "gamma": 3.0}, "loss cross_entropy has the options label_smoothing; got gamma"),
        ({"loss": DualFocalLoss(), "gamma": 3.0}, "gamma=3.0"),
        ({"gamma": -1.0}, "gamma must be finite and at least 0, got -1"),
        ({"loss": "ada_focal"}, "set early_stopping=True"),
        ({"loss": "mmce", "class_weight": "balanced"}, "MMCELoss is computed over a whole batch"),
        ({"class_weight": {0: -1.0}}, "must not be negative"),
        ({"hidden_layer_sizes": (5, 0)}, "hidden_layer_sizes must be at least 1, got 0"),
        ({"batch_size": "all"}, "batch_size must be an integer or 'auto', got 'all'"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"max_iter": 0}, "max_iter must be at least 1, got 0"),
        ({"alpha": -0.1}, "alpha must be finite and at least 0, got -0.1"),
        ({"early_stopping": True, "validation_fraction": 1.0}, "validation_fraction must be above 0 and below 1"),
        ({"learning_rate_init": 1e308, "max_iter": 1, "alpha": 1e10}, "training diverged: .*StandardScaler"),
        ({"learning_rate_init": 1e300}, "training diverged.*learning_rate_init, which is 1e[+]300"),
    ],
)
def test_an_error_names_the_value_and_the_rule(options: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        small(**options).fit(X, Y)


def test_the_memory_layout_of_the_features_does_not_matter() -> None:
    expected = small().fit(X, Y).predict_proba(X)
    frozen, reverse = X.copy(), np.ascontiguousarray(X[::-1, ::-1])
    frozen.flags.writeable = False
    for features in (frozen, np.asfortranarray(X), reverse[::-1, ::-1]):
        np.testing.assert_allclose(small().fit(features, Y).predict_proba(features), expected, rtol=1e-9)


@pytest.mark.parametrize("scale", [1e-300, 1e308])
def test_only_the_ratios_of_weights_matter(scale: float) -> None:
    weight = np.where(Y == 1, 0.5, 1.0)
    expected = small().fit(X, Y, sample_weight=weight).predict_proba(X)
    np.testing.assert_allclose(small().fit(X, Y, sample_weight=scale * weight).predict_proba(X), expected, rtol=1e-9)


def test_one_class_is_an_error() -> None:
    with pytest.raises(ValueError, match="y has one class, 'emu'"):
        small().fit(X, np.full(len(X), "emu"))


def test_it_trains_although_the_caller_switched_gradients_off() -> None:
    with torch.no_grad():
        model = small().fit(X, Y)
    np.testing.assert_array_equal(model.predict_proba(X), small().fit(X, Y).predict_proba(X))
