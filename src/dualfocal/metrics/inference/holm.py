"""Holm's adjustment of p-values for multiple tests."""

from collections.abc import Sequence


def holm(p_values: Sequence[float], weights: Sequence[int] | None = None) -> list[float]:
    """Adjust p-values for multiple tests by Holm's method, which controls the family-wise error rate.

    Args:
        p_values: p-value of each test.
        weights: share of the significance that each test gets, relative to the others (None: equal shares).

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    >>> holm([0.02, 0.01, 0.04], weights=[2, 1, 1])  # the first test gets half of the significance
    [0.04, 0.04, 0.04]
    """
    shares = [1] * len(p_values) if weights is None else weights
    adjusted, largest, rest = [0.0] * len(p_values), 0.0, sum(shares)
    for i in sorted(range(len(p_values)), key=lambda i: p_values[i] / shares[i]):
        largest = max(largest, min(1.0, rest * p_values[i] / shares[i]))
        adjusted[i] = largest
        rest -= shares[i]
    return adjusted
