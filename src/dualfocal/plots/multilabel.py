"""Reliability diagrams of multi-label predictions: all entries, and the worst labels."""

from matplotlib.figure import Figure

from dualfocal.metrics import MultilabelEvaluation
from dualfocal.plots.reliability import reliability_figure

MOST = 7  # labels: with the pooled entries, two rows of four


def multilabel_figure(evaluation: MultilabelEvaluation, *, most: int = MOST, title: str = "") -> Figure:
    """Draw reliability diagrams of all entries pooled and of the worst labels.

    Args:
        evaluation: result of :func:`~dualfocal.metrics.evaluate` with ``task="multilabel"``.
        most: number of labels.
        title: title of the figure.

    >>> import torch
    >>> from dualfocal.metrics import evaluate
    >>> generator = torch.Generator().manual_seed(0)
    >>> logits = torch.randn(300, 2, generator=generator)
    >>> target = torch.rand(300, 2, generator=generator) < logits.sigmoid()
    >>> figure = multilabel_figure(evaluate(logits, target, task="multilabel", class_names=["cat", "dog"]))
    >>> [axis.get_title() for axis in figure.axes][:3]
    ['all labels, N = 600', 'dog, N = 300', 'cat, N = 300']
    """
    diagrams = {"all labels": evaluation.micro}
    for label in evaluation.ranked[:most]:
        diagrams[label.name if label.name not in diagrams else f"label {label.name!r}"] = label.evaluation
    number = evaluation.num_labels
    remark = f"The worst {most} of {number} labels." if number > most else ""
    remark += " Probability of the label, and its frequency among the samples."
    return reliability_figure(diagrams, title=title, remark=remark.strip())
