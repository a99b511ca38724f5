"""Bars, histograms and curves of runs: their numbers, their axes, and what they refuse."""

import numpy as np
import pytest
import torch
from samples import draw_logits

from dualfocal.metrics import evaluate
from dualfocal_lab.plots import MetricBar, ece_over_training, max_logit_histogram, metric_bars, rival_boxplot
from dualfocal_lab.plots.metric_bars import t_interval


def evaluation(n: int = 50, seed: int = 0, **options):
    return evaluate(*draw_logits(n, 5, seed=seed), **options)


def test_a_bar_of_several_seeds() -> None:
    results = [evaluation(200, seed=seed, inference=True) for seed in range(3)]
    bar = MetricBar.from_evaluations(results, "mce")
    assert bar.values == tuple(result.mce for result in results)
    assert bar.interval == t_interval(bar.values)
    assert bar.floor == pytest.approx(np.mean([result.inference.floors["mce"].mean for result in results]))
    assert MetricBar.from_evaluations([results[0]], "nll") == MetricBar((results[0].nll,))


def test_diagrams_without_axes_make_a_pyplot_figure() -> None:
    import matplotlib.pyplot as plt

    logits, target = draw_logits(50, 3)
    before = plt.get_fignums()
    axes = [
        max_logit_histogram({"a": logits}),
        rival_boxplot({"a": (logits, target)}),
        metric_bars({"a": MetricBar((0.1,))}),
        ece_over_training({"a": [0.2, 0.1]}),
    ]
    made = [number for number in plt.get_fignums() if number not in before]
    try:
        assert [axis.figure.number for axis in axes] == made
        assert [bool(axis.figure.legends) for axis in axes] == [False, False, False, True]
    finally:
        for number in made:
            plt.close(number)


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: max_logit_histogram(torch.zeros(2, 2)), "dict.*Tensor"),
        (lambda: rival_boxplot({"a": torch.zeros(2, 2)}), r"\(logits, target\).*'a'"),
        (lambda: metric_bars([]), "MetricBar.*list"),
        (lambda: MetricBar.from_evaluations([evaluation()], "eces"), "'eces'.* ece"),
        (lambda: MetricBar.from_evaluations(evaluation()), "list.*Evaluation"),
        (lambda: ece_over_training({}), "method"),
    ],
)
def test_wrong_arguments_are_named(draw, message) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        draw()
