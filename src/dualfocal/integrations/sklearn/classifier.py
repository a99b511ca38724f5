"""A multilayer perceptron for scikit-learn that is trained with the losses of this package."""

import copy
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import train_test_split
from sklearn.utils import check_random_state
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, check_consistent_length, check_is_fitted, validate_data
from torch import nn

from dualfocal._checks import MAX_SEED, check_count, check_known
from dualfocal._tensors import check_number
from dualfocal.integrations.sklearn._training import Samples, Settings, Trained, adapts, new_layers, train_layers
from dualfocal.losses import LOSSES, AdaDualFocalLoss, DualFocalLoss
from dualfocal.runs.losses import make_loss

DTYPES = (np.float64, np.float32)
TWO_CLASSES = (
    "dual focal loss with two classes jumps where the probability of the true class is 1/2, and rewards predictions "
    "just below 1/2; use loss='focal' for binary problems"
)


class DualFocalClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Multilayer perceptron trained with dual focal loss, or with another loss of this package.

    The parameters are named like those of scikit-learn's ``MLPClassifier``: ReLU between the layers, Adam, and an L2
    penalty. Scale the features first, for example with ``make_pipeline(StandardScaler(), DualFocalClassifier())``.

    With two classes, ``fit`` warns that dual focal loss is not suited, and trains nevertheless; ``loss="focal"`` is the
    remedy. Training uses float32 if X is float32, otherwise float64, and does not change torch's global random state.
    The fitted parameters are numpy arrays.

    Args:
        hidden_layer_sizes: number of units of each hidden layer, a sequence or one integer; ``()`` is a linear model.
        loss: a name of ``dualfocal.LOSSES``, or a Module that maps ``(logits, class indices)`` to a loss, which is
            copied; the mean over the samples is minimised, whatever its ``reduction``. ``"ada_focal"`` and
            ``"ada_dual_focal"`` need ``early_stopping=True``.
        gamma: focusing parameter of the named loss. None (default): that of the loss, 5 for dual focal loss.
        alpha: strength of the L2 penalty, alpha / 2 * (sum of squared weights) beside the mean loss.
        batch_size: number of samples of a step; ``"auto"`` is ``min(200, n_samples)``.
        learning_rate_init: learning rate of Adam. The default is larger than that of ``MLPClassifier``, because focal
            losses have smaller gradients than cross-entropy.
        max_iter: number of epochs; at most this many with ``early_stopping``. ``fit`` gives a ``ConvergenceWarning`` if
            the loss (with ``early_stopping``, the NLL) was still falling in the last ``n_iter_no_change`` epochs.
        early_stopping: set samples aside, stop when their NLL has not decreased for ``n_iter_no_change`` epochs, and
            keep the parameters of the best epoch. The NLL is used because focal losses are not comparable over models.
        validation_fraction: share of samples to set aside, stratified by class where there are
            enough samples; only with ``early_stopping``.
        n_iter_no_change: number of epochs without a lower NLL, or without a loss that is lower by 1e-4, that count as
            convergence.
        class_weight: None, ``"balanced"``, or a dict from class label to weight.
        random_state: seed of initial weights, order of samples and validation samples: None, an integer, or a
            ``RandomState``.

    Attributes:
        classes_: class labels, in the order of the columns of ``predict_proba``.
        coefs_: weights of each layer, arrays of shape ``(inputs, outputs)``.
        intercepts_: biases of each layer.
        n_features_in_: number of features.
        feature_names_in_: names of the features, if X was a data frame with texts as column names.
        n_iter_: number of epochs of the training.
        loss_curve_: mean loss of each epoch, without the penalty.
        validation_nll_: validation NLL after each epoch; only with ``early_stopping``.

    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> model = DualFocalClassifier(gamma=3.0, max_iter=1000, random_state=0).fit(X, y)
    >>> model.predict_proba(X[:1]).shape, bool(model.score(X, y) > 0.9)
    ((1, 3), True)
    """

    def __init__(
        self,
        hidden_layer_sizes: Sequence[int] | int = (100,),
        *,
        loss: str | nn.Module = "dual_focal",
        gamma: float | None = None,
        alpha: float = 0.0001,
        batch_size: int | str = "auto",
        learning_rate_init: float = 0.003,
        max_iter: int = 200,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 10,
        class_weight: Mapping[Any, float] | str | None = None,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.hidden_layer_sizes = hidden_layer_sizes
        self.loss = loss
        self.gamma = gamma
        self.alpha = alpha
        self.batch_size = batch_size
        self.learning_rate_init = learning_rate_init
        self.max_iter = max_iter
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.class_weight = class_weight
        self.random_state = random_state

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train the network from new initial weights.

        Args:
            X: features, of shape ``(n_samples, n_features)``.
            y: class labels, numbers or texts, of shape ``(n_samples,)``; at least two classes.
            sample_weight: weight of each sample, at least 0; only their ratios matter, and samples of weight 0 are
                left out. If all samples fit into one batch, a weight of 2 is the same as the sample twice.

        Returns:
            The fitted estimator.

        Raises:
            ValueError: an argument is invalid, or the training diverged.
        """
        X, y = validate_data(self, X, y, dtype=DTYPES)
        check_classification_targets(y)
        self.classes_, target = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"y has one class, {self.classes_.tolist()[0]!r}, but a classifier needs at least two")
        sizes, criterion = self._hidden_sizes(), self._criterion()
        if _jumps(criterion, len(self.classes_)):
            warnings.warn(TWO_CLASSES, stacklevel=2)
        weight = self._weights(y, target, sample_weight)
        if weight is not None:
            kept = weight > 0
            X, target, weight = X[kept], target[kept], weight[kept]
        random = check_random_state(self.random_state)
        parts = self._split(X, target, weight, random)
        generator = torch.Generator().manual_seed(int(random.randint(MAX_SEED, dtype=np.int64)))
        layers = new_layers((X.shape[1], *sizes, len(self.classes_)), parts[0].features.dtype, generator)
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "dual focal loss with two classes")  # given above, at every fit
                trained = train_layers(layers, criterion, *parts, self._settings(len(parts[0])), generator)
        except FloatingPointError as error:
            raise ValueError(
                f"the training diverged: {error}; scale the features, for example with StandardScaler, or lower "
                f"learning_rate_init, which is {self.learning_rate_init!r}"
            ) from None
        if not trained.converged:
            warnings.warn(
                f"the training has not converged after max_iter={self.max_iter} epochs: raise max_iter or "
                f"learning_rate_init, which is {self.learning_rate_init!r}, or scale the features",
                ConvergenceWarning,
                stacklevel=2,
            )
        self._store(trained)
        return self

    def decision_function(self, X: Any) -> NDArray[np.floating]:
        """Return the logits, of shape ``(n_samples, n_classes)``; with two classes, the log-odds of ``classes_[1]``.

        Args:
            X: features, of shape ``(n_samples, n_features)``.
        """
        logits = self._logits(X)
        return logits if len(self.classes_) > 2 else logits[:, 1] - logits[:, 0]

    def predict_proba(self, X: Any) -> NDArray[np.floating]:
        """Return the probability of each class, of shape ``(n_samples, n_classes)``.

        Args:
            X: features, of shape ``(n_samples, n_features)``.
        """
        probs: NDArray[np.floating] = softmax(self._logits(X), axis=1)
        return probs

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the most probable class label of each sample.

        Args:
            X: features, of shape ``(n_samples, n_features)``.
        """
        numbers = self._logits(X).argmax(axis=1)
        labels: NDArray[Any] = self.classes_[numbers]
        return labels

    def _logits(self, X: Any) -> NDArray[np.floating]:
        check_is_fitted(self)
        values = validate_data(self, X, reset=False, dtype=DTYPES)
        values = values.astype(self.coefs_[0].dtype, copy=False)
        for weight, bias in zip(self.coefs_[:-1], self.intercepts_[:-1], strict=True):
            values = np.maximum(values @ weight + bias, 0)
        logits: NDArray[np.floating] = values @ self.coefs_[-1] + self.intercepts_[-1]
        return logits

    def _hidden_sizes(self) -> tuple[int, ...]:
        sizes = self.hidden_layer_sizes
        sizes = tuple(sizes) if isinstance(sizes, Sequence | np.ndarray) else (sizes,)
        for size in sizes:
            check_count("hidden_layer_sizes", size)
        return sizes

    def _criterion(self) -> nn.Module:
        """Return a new loss, with one value per sample if it has such a value."""
        if isinstance(self.loss, nn.Module):
            if self.gamma is not None:
                raise ValueError(
                    f"gamma={self.gamma!r} needs the name of a loss, but loss is {self.loss!r}; set it there"
                )
            criterion = copy.deepcopy(self.loss)
        elif isinstance(self.loss, str):
            check_known("loss", self.loss, LOSSES)
            criterion = make_loss(self.loss, {} if self.gamma is None else {"gamma": self.gamma})
        else:
            raise TypeError(f"loss must be a name of dualfocal.LOSSES or a torch.nn.Module, got {self.loss!r}")
        if hasattr(criterion, "reduction"):
            criterion.reduction = "none"  # type: ignore[assignment]
        if adapts(criterion) and not self.early_stopping:
            raise ValueError(f"{type(criterion).__name__} adapts to validation samples: set early_stopping=True")
        return criterion

    def _settings(self, num_samples: int) -> Settings:
        batch_size = min(200, num_samples) if self.batch_size == "auto" else self.batch_size
        if isinstance(batch_size, str):
            raise ValueError(f"batch_size must be an integer or 'auto', got {batch_size!r}")
        check_count("batch_size", batch_size)
        check_count("max_iter", self.max_iter)
        check_count("n_iter_no_change", self.n_iter_no_change)
        check_number("learning_rate_init", self.learning_rate_init)
        check_number("alpha", self.alpha)
        return Settings(batch_size, self.max_iter, self.learning_rate_init, self.alpha, self.n_iter_no_change)

    def _weights(self, y: NDArray[Any], target: NDArray[np.int64], sample_weight: Any) -> NDArray[np.float64] | None:
        """Return the product of sample and class weights; None if there are none."""
        if sample_weight is None and self.class_weight is None:
            return None
        weight: NDArray[np.float64] = np.ones(len(y))
        if sample_weight is not None:
            weight = check_array(sample_weight, ensure_2d=False, dtype=np.float64, input_name="sample_weight")
            if weight.ndim != 1:
                raise ValueError(f"sample_weight must have shape (n_samples,), got {weight.shape}")
            check_consistent_length(y, weight)
        if isinstance(self.class_weight, str) and self.class_weight == "balanced":
            weight = weight / np.bincount(target, weight)[target].clip(min=np.finfo(float).tiny)  # equal totals
        else:
            weight = weight * compute_sample_weight(self.class_weight, y)
        if weight.min() < 0 or weight.max() == 0:
            raise ValueError("sample_weight and class_weight must not be negative, and not zero for all samples")
        weight = weight / weight.max()  # otherwise the sum of large weights is infinite
        return weight

    def _split(
        self, X: NDArray[Any], target: NDArray[Any], weight: NDArray[Any] | None, random: np.random.RandomState
    ) -> tuple[Samples, Samples | None]:
        """Return training and validation samples; None without early stopping."""
        if weight is not None:
            weight = weight / weight.mean()
        if not self.early_stopping:
            return _samples(X, target, weight), None
        share = self.validation_fraction
        if not 0 < share < 1:
            raise ValueError(f"validation_fraction must be above 0 and below 1, got {share!r}")
        smallest = np.unique(target, return_counts=True)[1].min()
        stratify = target if smallest > 1 and min(share, 1 - share) * len(X) >= len(self.classes_) else None
        rows = train_test_split(np.arange(len(X)), test_size=share, stratify=stratify, random_state=random)
        first, second = (_samples(X[i], target[i], None if weight is None else weight[i]) for i in rows)
        return first, second

    def _store(self, trained: Trained) -> None:
        self.coefs_ = [weight.detach().numpy() for weight, _ in trained.layers]
        self.intercepts_ = [bias.detach().numpy() for _, bias in trained.layers]
        self.n_iter_ = trained.num_epochs
        self.loss_curve_ = trained.loss_curve
        if trained.validation_curve:
            self.validation_nll_ = trained.validation_curve
        elif hasattr(self, "validation_nll_"):  # of an earlier fit
            del self.validation_nll_


def _samples(X: NDArray[Any], target: NDArray[Any], weight: NDArray[Any] | None) -> Samples:
    features = torch.from_numpy(np.array(X, order="C"))  # a copy: torch refuses negative strides and read-only arrays
    weights = None if weight is None else torch.tensor(weight, dtype=features.dtype)
    return Samples(features, torch.tensor(target), weights)


def _jumps(criterion: nn.Module, num_classes: int) -> bool:
    """Return whether this is a dual focal loss, other than cross-entropy, for two classes."""
    if num_classes > 2 or not isinstance(criterion, DualFocalLoss | AdaDualFocalLoss):
        return False
    if isinstance(criterion, AdaDualFocalLoss):
        return True
    return isinstance(criterion.rival, str) and bool(criterion.gamma != 0)
