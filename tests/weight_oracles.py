"""Metrics of weighted samples as slow loops in float64, each from its definition."""

import math

from metric_oracles import Probs, bin_members, equal_width, top_label


def weighted_gaps(
    confidence: list[float], correct: list[int], weight: list[float], members: list[list[int]]
) -> list[tuple[float, float, float]]:
    """(sum of weights, mean confidence, accuracy) of each bin that is not empty."""
    result = []
    for m in members:
        total = math.fsum(weight[i] for i in m)
        if m:
            means = [math.fsum(weight[i] * values[i] for i in m) / total for values in (confidence, correct)]
            result.append((total, *means))
    return result


def _ece(confidence: list[float], correct: list[int], weight: list[float], members: list[list[int]]) -> float:
    gaps = weighted_gaps(confidence, correct, weight, members)
    return math.fsum(total * abs(conf - acc) for total, conf, acc in gaps) / math.fsum(weight)


def equal_mass_members(confidence: list[float], weight: list[float], num_bins: int) -> list[list[int]]:
    """A confidence is in bin b if the weight of all smaller confidences is at most (b + 1) / B of the total."""
    members: list[list[int]] = [[] for _ in range(num_bins)]
    total = math.fsum(weight)
    for i, c in enumerate(confidence):
        below = math.fsum(w for other, w in zip(confidence, weight, strict=True) if other < c)
        bins = [b for b in range(num_bins) if below <= total * (b + 1) / num_bins + 1e-9 * total]
        members[bins[0]].append(i)
    return members


def squared_error(confidence: list[float], correct: list[int], weight: list[float], num_bins: int) -> float:
    """Squared gaps less the variance sum w^2 (y - acc)^2 / (1 - sum w^2 / (sum w)^2) of each weighted sum."""
    result = 0.0
    for m in bin_members(confidence, equal_width(num_bins)):
        if len(m) < 2:
            continue
        ((total, conf, acc),) = weighted_gaps(confidence, correct, weight, [m])
        squares = math.fsum(weight[i] ** 2 for i in m)
        noise = math.fsum((weight[i] * (correct[i] - acc)) ** 2 for i in m) / (1 - squares / total**2)
        result += ((total * (conf - acc)) ** 2 - noise) / total
    return result / math.fsum(weight)


def aurc(confidence: list[float], correct: list[int], weight: list[float]) -> float:
    """Weighted mean over all samples of the error among those before them; tied samples share weight and errors."""
    mass = wrong = area = 0.0
    for c in sorted(set(confidence), reverse=True):
        tied = [i for i, other in enumerate(confidence) if other == c]
        group = math.fsum(weight[i] for i in tied)
        errors = math.fsum(weight[i] * (1 - correct[i]) for i in tied)
        for _ in tied:
            mass, wrong = mass + group / len(tied), wrong + errors / len(tied)
            area += group / len(tied) * wrong / mass
    return area / mass


def weighted_metrics(probs: Probs, target: list[int], weight: list[float], num_bins: int) -> dict[str, float]:
    """Every metric by name."""
    confidence, correct = top_label(probs, target)
    total, classes = math.fsum(weight), range(len(probs[0]))
    members = bin_members(confidence, equal_width(num_bins))
    by_class = []
    for c in classes:
        p, hit = [row[c] for row in probs], [int(y == c) for y in target]
        by_class.append((p, hit, bin_members(p, equal_width(num_bins))))
    parts = [gap for p, hit, m in by_class for gap in weighted_gaps(p, hit, weight, m)]
    squares = [math.fsum((row[c] - (y == c)) ** 2 for c in classes) for row, y in zip(probs, target, strict=True)]
    logs = [-math.log(row[y]) for row, y in zip(probs, target, strict=True)]

    def mean(values: list[float]) -> float:
        return math.fsum(w * value for w, value in zip(weight, values, strict=True)) / total

    return {
        "ece": _ece(confidence, correct, weight, members),
        "mce": max(abs(conf - acc) for _, conf, acc in weighted_gaps(confidence, correct, weight, members)),
        "adaptive_ece": _ece(confidence, correct, weight, equal_mass_members(confidence, weight, num_bins)),
        "classwise_ece": math.fsum(_ece(p, hit, weight, m) for p, hit, m in by_class) / len(probs[0]),
        "debiased_ece": math.sqrt(max(squared_error(confidence, correct, weight, num_bins), 0.0)),
        "nll": mean(logs),
        "brier": mean(squares),
        "error": mean([1.0 - right for right in correct]),
        "aurc": aurc(confidence, correct, weight),
        "brier_calibration": math.fsum(n * (conf - acc) ** 2 for n, conf, acc in parts) / total,
        "brier_refinement": math.fsum(n * acc * (1 - acc) for n, _, acc in parts) / total,
    }
