"""Calibrators of this package as transformers and classifiers of scikit-learn."""

import copy
import warnings
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from dualfocal.calibrators import Calibrator, make_calibrator
from dualfocal.checks import check_choice
from dualfocal.integrations.sklearn._labels import classes_and_target
from dualfocal.metrics.inputs import INPUTS


class ProbabilityCalibrator(ClassifierMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Calibrate predicted probabilities: a transformer and classifier whose features are the output of a classifier.

    Behind a fitted model, use a pipeline; to train and calibrate on the same data without a held-out part, let
    ``StackingClassifier`` cross-fit::

        make_pipeline(FunctionTransformer(model.predict_proba), ProbabilityCalibrator(classes=model.classes_))
        StackingClassifier([("model", model)], ProbabilityCalibrator(), stack_method="predict_proba")

    Args:
        method: a name of ``dualfocal.CALIBRATORS``, several joined by ``+``, or a calibrator, which is copied.
        input: ``"probs"`` for the output of ``predict_proba``, ``"logits"`` for that of ``decision_function``.
        classes: class label of each column, such as ``model.classes_``. None (default): the columns of a data frame
            that is named by class, or the sorted labels of y, which must contain each class. Leave it out in a
            ``StackingClassifier``, which numbers the labels itself.

    Attributes:
        classes_: class labels, in the order of the columns of ``predict_proba``.
        calibrator_: the fitted calibrator, with its ``report``; ``save_calibrator`` writes it to a file.
        n_features_in_: number of columns of the input.
        feature_names_in_: names of the columns, if X was a data frame with texts as column names.

    >>> from sklearn.datasets import load_iris
    >>> from sklearn.naive_bayes import GaussianNB
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import FunctionTransformer
    >>> X, y = load_iris(return_X_y=True)
    >>> model = GaussianNB().fit(X[::2], y[::2])
    >>> calibrated = make_pipeline(FunctionTransformer(model.predict_proba), ProbabilityCalibrator())
    >>> calibrated.fit(X[1::2], y[1::2]).predict_proba(X[:1]).round(2)
    array([[1., 0., 0.]])
    """

    def __init__(
        self, method: str | Calibrator = "temperature", *, input: str = "probs", classes: Sequence[Any] | None = None
    ) -> None:
        self.method = method
        self.input = input
        self.classes = classes

    def fit(self, X: Any, y: Any) -> Self:
        """Fit the calibrator to held-out predictions (not those of the training data, which are over-confident).

        Args:
            X: predictions of shape ``(n_samples, n_classes)``; with two classes also one column or ``(n_samples,)``,
                the probability or the log-odds of the second class.
            y: class labels, numbers or texts, of shape ``(n_samples,)``.

        Returns:
            The fitted estimator.

        Raises:
            ValueError: the values are not probabilities, or the labels do not fit them.
        """
        check_choice("input", self.input, INPUTS)
        values = self._values(X, reset=True)
        num_columns = 1 if values.ndim == 1 else values.shape[1]
        classes, target = classes_and_target("classes", self.classes, X, y, num_columns)
        if isinstance(self.method, Calibrator):
            calibrator = copy.deepcopy(self.method)
        elif isinstance(self.method, str):
            calibrator = make_calibrator(self.method)
        else:
            raise TypeError(f"method must be a name of dualfocal.CALIBRATORS or a Calibrator, got {self.method!r}")
        calibrator.fit(values, target, input=self.input)
        if calibrator.report is not None and (caution := calibrator.report.caution()):
            warnings.warn(caution, stacklevel=2)
        names = tuple(str(label) for label in classes.tolist())
        calibrator.class_names = None if list(names) == [str(k) for k in range(len(names))] else names
        self.classes_, self.calibrator_, self.n_features_in_ = classes, calibrator, num_columns
        return self

    def predict_proba(self, X: Any) -> NDArray[np.floating]:
        """Return the calibrated probabilities, of shape ``(n_samples, n_classes)``.

        Args:
            X: predictions, as for :meth:`fit`.
        """
        check_is_fitted(self)
        values = self._values(X, reset=False)
        num_columns = 1 if values.ndim == 1 else values.shape[1]
        if num_columns != self.n_features_in_:
            raise ValueError(f"X has {num_columns} columns, but this calibrator was fitted on {self.n_features_in_}")
        with torch.no_grad():
            logits = self.calibrator_(values, input=self.input)
        if logits.ndim == 1:
            logits = torch.stack([torch.zeros_like(logits), logits], dim=1)
        probs: NDArray[np.floating] = logits.softmax(1).numpy()
        return probs

    def transform(self, X: Any) -> NDArray[np.floating]:
        """Return the calibrated probabilities, see :meth:`predict_proba`.

        Args:
            X: predictions, as for :meth:`fit`.
        """
        return self.predict_proba(X)

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the most probable class label of each sample.

        Args:
            X: predictions, as for :meth:`fit`.
        """
        labels: NDArray[Any] = self.classes_[self.predict_proba(X).argmax(axis=1)]
        return labels

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[Any]:
        """Return the class labels as texts: the names of the columns of :meth:`transform`.

        Args:
            input_features: not used; for scikit-learn's interface.
        """
        check_is_fitted(self)
        return np.array([str(label) for label in self.classes_.tolist()], dtype=object)

    def _values(self, X: Any, *, reset: bool) -> NDArray[Any]:
        """Return predictions as (n_samples, n_classes), or (n_samples,) for one column.

        The names of the columns of a data frame are stored (``reset``), or compared with those of the fit.
        """
        values: NDArray[Any] = validate_data(self, X, reset=reset, dtype=(np.float64, np.float32), ensure_2d=False)
        if values.ndim == 2 and values.shape[1] == 1:
            return values[:, 0]
        return values
