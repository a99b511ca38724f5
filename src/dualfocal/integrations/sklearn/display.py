"""Reliability diagrams in the manner of scikit-learn's displays."""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_array

from dualfocal.checks import check_choice
from dualfocal.integrations.sklearn._labels import classes_and_target
from dualfocal.metrics import Evaluation, evaluate
from dualfocal.metrics.samples import Samples

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class ReliabilityDisplay:
    """Reliability diagram of a classifier with any number of classes, with the range of a calibrated model.

    Create it with :meth:`from_estimator` or :meth:`from_predictions`. Unlike scikit-learn's ``CalibrationDisplay``,
    which needs two classes, it shows the confidence of the predicted class, unless ``pos_label`` is given.

    Args:
        evaluation: the numbers to draw, from :func:`dualfocal.evaluate`.
        estimator_name: name of the model, the title of the diagram.
        pos_label: class whose probability was evaluated; None: the confidence of the predicted class.

    Attributes:
        ax_: the axes, after :meth:`plot`.
        figure_: the figure, after :meth:`plot`.
    """

    ax_: "Axes"
    figure_: "Figure"

    def __init__(self, evaluation: Evaluation, *, estimator_name: str | None = None, pos_label: Any = None) -> None:
        self.evaluation = evaluation
        self.estimator_name = estimator_name
        self.pos_label = pos_label

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any,
        y: Any,
        *,
        n_bins: int = 15,
        strategy: str = "uniform",
        pos_label: Any = None,
        inference: bool = True,
        name: str | None = None,
        ax: "Axes | None" = None,
    ) -> Self:
        """Draw the reliability diagram of a fitted classifier on held-out data.

        Args:
            estimator: a fitted classifier, or a pipeline that ends in one, with ``predict_proba``.
            X: features, as the classifier takes them.
            y: class labels.
            n_bins: number of bins.
            strategy: ``"uniform"`` for bins of equal width, or ``"quantile"`` for bins with equally many samples.
            pos_label: one of two classes: draw its frequency over its probability. None (default): draw the accuracy
                over the confidence of the predicted class, for two classes, too.
            inference: also compute the noise floors and p-values of the evaluation, and show the floor of the ECE.
            name: title of the diagram; None: name of the class of the estimator.
            ax: axes to draw on; None: those of a new figure.

        Returns:
            The display; ``display.evaluation`` has all metrics.

        Raises:
            ValueError: the estimator has no ``predict_proba``, or y does not fit it.

        >>> from matplotlib.figure import Figure
        >>> from sklearn.datasets import load_iris
        >>> from sklearn.naive_bayes import GaussianNB
        >>> X, y = load_iris(return_X_y=True)
        >>> model = GaussianNB().fit(X[::2], y[::2])
        >>> display = ReliabilityDisplay.from_estimator(model, X[1::2], y[1::2], ax=Figure().subplots())
        >>> display.ax_.get_title(), round(display.evaluation.accuracy, 2)
        ('GaussianNB', 0.96)
        """
        if not hasattr(estimator, "predict_proba"):
            raise ValueError(
                f"{type(estimator).__name__} has no predict_proba: pass a fitted classifier that has it, or wrap it in "
                "sklearn.calibration.CalibratedClassifierCV"
            )
        return cls.from_predictions(
            y,
            estimator.predict_proba(X),
            labels=getattr(estimator, "classes_", None),
            n_bins=n_bins,
            strategy=strategy,
            pos_label=pos_label,
            inference=inference,
            name=type(estimator).__name__ if name is None else name,
            ax=ax,
        )

    @classmethod
    def from_predictions(
        cls,
        y_true: Any,
        y_prob: Any,
        *,
        labels: Sequence[Any] | None = None,
        n_bins: int = 15,
        strategy: str = "uniform",
        pos_label: Any = None,
        inference: bool = True,
        name: str | None = None,
        ax: "Axes | None" = None,
    ) -> Self:
        """Draw the reliability diagram of predicted probabilities.

        Args:
            y_true: class labels, numbers or texts, of shape ``(n_samples,)``.
            y_prob: probabilities of shape ``(n_samples, n_classes)``; with two classes also ``(n_samples,)``, the
                probability of ``pos_label``, or of the second label if ``pos_label`` is None.
            labels: class label of each column. None (default): the columns of a data frame that is named by class, or
                the sorted labels of ``y_true``, which must contain each class.
            n_bins: number of bins.
            strategy: ``"uniform"`` for bins of equal width, or ``"quantile"`` for bins with equally many samples.
            pos_label: one of two classes: draw its frequency over its probability. None (default): draw the accuracy
                over the confidence of the predicted class, for two classes, too.
            inference: also compute the noise floors and p-values of the evaluation, and show the floor of the ECE.
            name: title of the diagram.
            ax: axes to draw on; None: those of a new figure.

        Returns:
            The display; ``display.evaluation`` has all metrics.

        Raises:
            ValueError: the values are not probabilities, or the labels do not fit them.

        >>> import numpy as np
        >>> from matplotlib.figure import Figure
        >>> rng = np.random.default_rng(0)
        >>> p = rng.random(1000)
        >>> spam = np.where(rng.random(1000) < p, "yes", "no")
        >>> display = ReliabilityDisplay.from_predictions(spam, p, pos_label="yes", ax=Figure().subplots())
        >>> display.evaluation.verdict().partition(":")[0]
        'No miscalibration detectable at N = 1,000'
        """
        for value in np.asarray(y_prob).ravel()[:1]:
            if isinstance(value, str):
                raise ValueError(
                    f"y_prob must hold probabilities, as predict_proba returns them, got the text {str(value)!r}"
                )
        values = check_array(y_prob, dtype=(np.float64, np.float32), ensure_2d=False)
        num_columns = 1 if values.ndim == 1 else values.shape[1]
        classes, target = classes_and_target("labels", labels, y_prob, y_true, num_columns)
        if pos_label is None:
            binary = "top_label" if num_columns == 1 else None
        else:
            values, target = _positive(values, target, classes, pos_label)
            binary = "positive"
        evaluation = evaluate(values, target, input="probs", num_bins=n_bins, inference=inference, binary=binary)
        check_choice("strategy", strategy, ("uniform", "quantile"))
        if strategy == "quantile":
            from dualfocal.plots.quantiles import Outcomes, QuantileEvaluation

            outcomes = Outcomes.from_samples(Samples.from_arrays(values, target, input="probs", binary=binary))
            evaluation = QuantileEvaluation.of(evaluation, outcomes)
        return cls(evaluation, estimator_name=name, pos_label=pos_label).plot(ax=ax)

    def plot(self, *, ax: "Axes | None" = None, name: str | None = None) -> Self:
        """Draw the diagram. A new figure has a legend; on axes of the caller, add it with ``display.ax_.legend()``.

        Args:
            ax: axes to draw on; None: those of a new figure.
            name: title; None: ``estimator_name``.

        Returns:
            The display, with ``ax_`` and ``figure_``.
        """
        from dualfocal.plots import reliability_diagram, styled  # matplotlib takes a second to import
        from dualfocal.plots.style import plain

        self.ax_ = reliability_diagram(self.evaluation, ax=ax)
        figure = self.ax_.get_figure(root=True)
        assert figure is not None
        self.figure_ = figure
        title = self.estimator_name if name is None else name
        with styled() if ax is None else nullcontext():
            if title is not None:
                self.ax_.set_title(plain(title))
            if self.pos_label is not None:
                label = plain(str(self.pos_label))
                self.ax_.set(xlabel=f"probability of {label}", ylabel=f"frequency of {label}")
        return self


def _positive(
    values: NDArray[Any], target: NDArray[np.int64], classes: NDArray[Any], pos_label: Any
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the probability of the positive class, (N,), and 1 where it is the true class, otherwise 0."""
    if len(classes) != 2:
        raise ValueError(f"pos_label={pos_label!r} needs two classes, but the predictions are for {len(classes)}")
    labels = classes.tolist()
    if pos_label not in labels:
        raise ValueError(f"pos_label={pos_label!r} must be one of {', '.join(map(repr, labels))}")
    index = labels.index(pos_label)
    if values.ndim == 2:
        values = values[:, index] if values.shape[1] == 2 else values[:, 0]
    return values, (target == index).astype(np.int64)
