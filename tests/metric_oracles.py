"""The metrics as slow loops over samples, in float64, to be laid beside their definitions."""

import math
from itertools import pairwise

import numpy as np

Probs = list[list[float]]


def softmax(row: list[float]) -> list[float]:
    top = max(row)
    exps = [math.exp(z - top) for z in row]
    total = math.fsum(exps)
    return [e / total for e in exps]


def top_label(probs: Probs, target: list[int]) -> tuple[list[float], list[int]]:
    """Confidence of the predicted class, the first of the largest, and whether it is the true one."""
    confidence = [max(p) for p in probs]
    return confidence, [int(p.index(max(p)) == y) for p, y in zip(probs, target, strict=True)]


def bin_members(confidence: list[float], edges: list[float]) -> list[list[int]]:
    """Samples in ``(lo, hi]``; the lowest edge belongs to the first bin."""
    members: list[list[int]] = []
    for b, (lo, hi) in enumerate(pairwise(edges)):
        members.append([i for i, c in enumerate(confidence) if lo < c <= hi or (b == 0 and c == lo)])
    return members


def equal_width(num_bins: int) -> list[float]:
    return [k / num_bins for k in range(num_bins + 1)]


def gaps(confidence: list[float], correct: list[int], edges: list[float]) -> list[tuple[int, float, float]]:
    """(size, mean confidence, accuracy) of each bin that is not empty."""
    return [
        (len(m), math.fsum(confidence[i] for i in m) / len(m), sum(correct[i] for i in m) / len(m))
        for m in bin_members(confidence, edges)
        if m
    ]


def ece(confidence: list[float], correct: list[int], edges: list[float]) -> float:
    return math.fsum(n / len(confidence) * abs(acc - conf) for n, conf, acc in gaps(confidence, correct, edges))


def mce(confidence: list[float], correct: list[int], edges: list[float]) -> float:
    return max(abs(acc - conf) for _, conf, acc in gaps(confidence, correct, edges))


def squared_error(confidence: list[float], correct: list[int], edges: list[float]) -> float:
    return math.fsum(
        n / len(confidence) * ((acc - conf) ** 2 - acc * (1 - acc) / (n - 1))
        for n, conf, acc in gaps(confidence, correct, edges)
        if n > 1
    )


def equal_mass(confidence: list[float], num_bins: int) -> list[float]:
    n = len(confidence)
    return np.interp(np.linspace(0, n, num_bins + 1), np.arange(n), np.sort(confidence)).tolist()


def classwise(probs: Probs, target: list[int], num_bins: int) -> float:
    num_classes = len(probs[0])
    of_class = [
        ece([p[c] for p in probs], [int(y == c) for y in target], equal_width(num_bins)) for c in range(num_classes)
    ]
    return math.fsum(of_class) / num_classes


def nll(probs: Probs, target: list[int]) -> float:
    return -math.fsum(math.log(p[y]) for p, y in zip(probs, target, strict=True)) / len(target)


def brier(probs: Probs, target: list[int]) -> float:
    squares = [(p[c] - (c == y)) ** 2 for p, y in zip(probs, target, strict=True) for c in range(len(p))]
    return math.fsum(squares) / len(target)


def brier_parts(probs: Probs, target: list[int], num_bins: int) -> tuple[float, float]:
    """(calibration, refinement), summed over classes."""
    calibration = refinement = 0.0
    for c in range(len(probs[0])):
        of_class = gaps([p[c] for p in probs], [int(y == c) for y in target], equal_width(num_bins))
        calibration += math.fsum(n / len(target) * (conf - freq) ** 2 for n, conf, freq in of_class)
        refinement += math.fsum(n / len(target) * freq * (1 - freq) for n, _, freq in of_class)
    return calibration, refinement


def aurc(confidence: list[float], correct: list[int]) -> float:
    """Mean over k of the expected error among the k most confident, equal ones in random order."""
    n = len(confidence)
    risks = []
    for k in range(1, n + 1):
        threshold = sorted(confidence, reverse=True)[k - 1]
        above = [1 - y for c, y in zip(confidence, correct, strict=True) if c > threshold]
        at = [1 - y for c, y in zip(confidence, correct, strict=True) if c == threshold]
        risks.append((sum(above) + (k - len(above)) * sum(at) / len(at)) / k)
    return math.fsum(risks) / n


def auroc(known: list[float], foreign: list[float]) -> float:
    wins = [(f > k) + 0.5 * (f == k) for f in foreign for k in known]
    return math.fsum(wins) / len(wins)


def monitor_evidence(
    days: list[tuple[list[float], list[int]]], num_bins: int, tolerance: float = 0.0, cluster_size: int = 1
) -> float:
    """Evidence of a monitor after some days of (confidences, outcomes), where every investment is kept on its own."""
    places = [(0.0, 1.0), *pairwise(equal_width(num_bins))]  # all samples, then the bins
    evidence = 1 / (1 + math.log(1 + len(days) + 1))  # the cash that is left
    for place in range(len(places)):
        share = 0.5 if place == 0 else 0.5 / num_bins
        for theta in [sign * 2.0**k for sign in (-1, 1) for k in range(-5, 3)]:
            factors = [_day_factor(day, num_bins, place, theta, tolerance, cluster_size) for day in days]
            for start in range(len(days) + 1):
                invested = 1 / (1 + math.log(1 + start)) - 1 / (1 + math.log(2 + start))
                evidence += share / 16 * invested * math.prod(factors[start:])
    return evidence


def _day_factor(
    day: tuple[list[float], list[int]], num_bins: int, place: int, theta: float, tolerance: float, cluster_size: int
) -> float:
    """Factor of the wealth of a gambler: of the bin number ``place``, from 1; 0: of all bins."""
    confidence, outcomes = day
    log_factor = 0.0
    for b, members in enumerate(bin_members(confidence, equal_width(num_bins)), start=1):
        if members and place in (0, b):
            mean = math.fsum(confidence[i] for i in members) / len(members)
            slack = math.copysign(tolerance + 2.0**-20, theta)
            stated = min(1.0, max(0.0, mean + slack))
            log_factor += theta * sum(outcomes[i] for i in members)
            log_factor -= len(members) * math.log(1 + stated * (math.exp(theta) - 1))
    return math.exp(log_factor / cluster_size)
