"""The calibrators as slow float64 transcriptions of their definitions, to be fitted by scipy or by a plain loop."""

import math
from itertools import pairwise

import metric_oracles
import numpy as np
from scipy import optimize, special

Array = np.ndarray
UNITS = 1 << 32  # the package counts confidences in multiples of 2^-32, so that equal errors are equal


# Temperature.


def nll(logits: Array, target: Array, temperature: float = 1.0) -> float:
    """Mean of -log softmax(z / T)_y."""
    z = np.asarray(logits, dtype=np.float64)
    z = (z - z.max(1, keepdims=True)) / temperature
    return float(np.mean(np.log(np.exp(z).sum(1)) - z[np.arange(len(z)), target]))


def doubtful_nll(logits: Array, target: Array, temperature: float) -> float:
    """Likewise, when each label is wrong with probability 1 / (N + 2), and then any other class alike."""
    z = np.asarray(logits, dtype=np.float64)
    n, num_classes = z.shape
    aim = np.full(z.shape, 1 / (n + 2) / (num_classes - 1))
    aim[np.arange(n), target] = 1 - 1 / (n + 2)
    z = (z - z.max(1, keepdims=True)) / temperature
    return float(np.mean(np.log(np.exp(z).sum(1)) - (aim * z).sum(1)))


def best_temperature(objective, logits: Array, target: Array, low: float, high: float) -> float:
    """Bounded search in log T."""
    optimum = optimize.minimize_scalar(
        lambda u: objective(logits, target, math.exp(u)), bounds=(low, high), method="bounded", options={"xatol": 1e-9}
    )
    return math.exp(optimum.x)


def ece_units(probs: list[list[float]], target: list[int], num_bins: int) -> int:
    """ECE times N, confidences rounded to units and all sums whole numbers; bins (lo, hi]."""
    confidence, correct = metric_oracles.top_label(probs, target)
    units = [round(c * UNITS) for c in confidence]
    edges = [round(k * UNITS / num_bins) for k in range(num_bins + 1)]
    members = metric_oracles.bin_members(units, edges)
    return sum(abs(sum(units[i] - UNITS * correct[i] for i in m)) for m in members)


def grid_temperature(logits: list[list[float]], target: list[int], num_bins: int = 15) -> float:
    """The first strict minimum of the ECE over T = 0.1, 0.2, ..., 10.0."""
    best, lowest = 0.0, math.inf
    for i in range(1, 101):
        probs = [metric_oracles.softmax([z / (i / 10) for z in row]) for row in logits]
        error = ece_units(probs, target, num_bins)
        if error < lowest:
            best, lowest = i / 10, error
    return best


def mixture_nll(weights: Array, logits: Array, target: Array, temperature: float) -> float:
    """Of w1 softmax(z / T) + w2 softmax(z) + w3 / C."""
    p = weights[0] * special.softmax(logits / temperature, axis=1) + weights[1] * special.softmax(logits, axis=1)
    p = p + weights[2] / logits.shape[1]
    return float(-np.mean(np.log(p[np.arange(len(p)), target])))


def mixture_weights(logits: Array, target: Array, temperature: float) -> Array:
    """On the simplex, by sequential quadratic programming from several starts."""
    starts = [(1 / 3, 1 / 3, 1 / 3), (0.8, 0.1, 0.1), (0.1, 0.8, 0.1), (0.1, 0.1, 0.8)]
    solutions = [
        optimize.minimize(
            lambda w: mixture_nll(w, logits, target, temperature),
            start,
            method="SLSQP",
            bounds=[(0, 1)] * 3,
            constraints={"type": "eq", "fun": lambda w: w.sum() - 1},
            options={"ftol": 1e-14, "maxiter": 300},
        )
        for start in starts
    ]
    return min(solutions, key=lambda solution: solution.fun).x


# Linear maps of all classes together.


def linear_scaling(
    x: Array, target: Array, temperature: float, prior: float, *, full: bool, damped: bool
) -> tuple[Array, Array]:
    """W and b of softmax(W x + b) by likelihood and a Gaussian prior of that precision around x / T.

    The prior is of the weights of centred features in units of T: diagonal around 1, the rest around 0. If
    ``damped``, the mean of each row of features is divided by sqrt(C) before.
    """
    n, num_classes = x.shape
    damp = np.eye(num_classes) - ((1 - num_classes**-0.5) / num_classes if damped else 0)
    mean = x.mean(0) @ damp
    unit = (x @ damp - mean) / temperature
    at_one = np.eye(num_classes) if full else np.ones(num_classes)

    def parts(theta: Array) -> tuple[Array, Array]:
        return theta[:-num_classes].reshape(at_one.shape), theta[-num_classes:]

    start = np.concatenate([at_one.ravel(), mean / temperature])
    one_hot = np.eye(num_classes)[target]

    def objective(theta: Array) -> tuple[float, Array]:
        a, b = parts(theta)
        eta = (unit @ a.T if full else unit * a) + b
        away = theta - start
        value = np.mean(special.logsumexp(eta, axis=1) - eta[np.arange(n), target]) + prior / (2 * n) * away @ away
        miss = (special.softmax(eta, axis=1) - one_hot) / n
        slope = miss.T @ unit if full else (miss * unit).sum(0)
        return value, np.concatenate([slope.ravel(), miss.sum(0)]) + prior / n * away

    optimum = optimize.minimize(objective, start, jac=True, method="BFGS", options={"gtol": 1e-10, "maxiter": 5000})
    a, b = parts(optimum.x)
    weight = a / temperature
    bias = b - (weight @ mean if full else weight * mean)
    # A constant added to a whole W changes no probability: it is such that W = I for A = I.
    return (weight @ damp + (1 - num_classes**-0.5) * weight.mean() if damped else weight), bias


# One class against the rest.


def one_vs_rest(features: list[Array], hit: Array, bounds: list[tuple[float | None, float | None]]) -> Array:
    """Coefficients of a logistic regression with a weak prior on those of standardised features; last, the constant."""
    mean, deviation = np.mean(features, axis=1), np.std(features, axis=1)
    x = np.append((np.stack(features, axis=1) - mean) / deviation, np.ones((len(hit), 1)), axis=1)

    def objective(c: Array) -> tuple[float, Array]:
        eta = x @ c
        value = np.mean(np.logaddexp(0, eta) - hit * eta) + 0.03 / 2 / len(hit) * c @ c
        return float(value), x.T @ (special.expit(eta) - hit) / len(hit) + 0.03 / len(hit) * c

    start = np.append(np.ones(len(features)), 0.0)
    options = {"ftol": 1e-16, "gtol": 1e-11, "maxiter": 10_000, "maxfun": 100_000}
    c = optimize.minimize(objective, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options).x
    slopes = c[:-1] / deviation
    return np.append(slopes, c[-1] - slopes @ mean)


def normalised(q: Array) -> Array:
    return q / q.sum(1, keepdims=True)


# Functions of each class's probability.


def pool_adjacent_violators(values: list[float], weights: list[float]) -> list[tuple[int, int, float]]:
    """Blocks (first, last, value) of the best non-decreasing fit."""
    blocks: list[list[float]] = []  # first, last, weight, mean
    for i, (value, weight) in enumerate(zip(values, weights, strict=True)):
        blocks.append([i, i, weight, value])
        while len(blocks) > 1 and blocks[-2][3] >= blocks[-1][3]:
            _, last, w, mean = blocks.pop()
            before = blocks[-1]
            total = before[2] + w
            before[1], before[3], before[2] = last, (before[2] * before[3] + w * mean) / total, total
    return [(int(first), int(last), mean) for first, last, _, mean in blocks]


def by_value(p: Array, hit: Array) -> list[tuple[float, int, int]]:
    """(probability, samples that have it, how many of them are of the class), ascending."""
    return [(v, int((p == v).sum()), int(hit[p == v].sum())) for v in sorted(set(p.tolist()))]


def frequency(hit: Array) -> float:
    """Share of a class, with half a sample more of it and half a sample more of the rest."""
    return (hit.sum() + 0.5) / (len(hit) + 1)


def isotonic(p: Array, hit: Array, smoothing: float) -> tuple[list[float], list[float]]:
    """Knots and values of the broken line of one class."""
    groups = by_value(p, hit)
    blocks = pool_adjacent_violators([h / c for _, c, h in groups], [c for _, c, _ in groups])
    values, weights = [], []
    for first, last, _ in blocks:
        mine = groups[first : last + 1]
        count, hits = sum(c for _, c, _ in mine), sum(h for _, _, h in mine)
        weights.append(count + smoothing)
        values.append((hits + smoothing * frequency(hit)) / weights[-1])
    again = pool_adjacent_violators(values, weights)
    for first, last, value in again:
        values[first : last + 1] = [value] * (last + 1 - first)
    knots = [groups[end][0] for first, last, _ in blocks for end in (first, last)]
    return knots, [v for v in values for _ in range(2)]


def equal_mass_edges(p: Array, num_bins: int) -> list[float]:
    """Halfway between the last value of a bin and the next, once a bin has its share; equal values share a bin."""
    groups = by_value(p, np.zeros(len(p)))
    edges: list[float] = []
    for k in range(1, num_bins):
        upto = 0
        for i, (value, count, _) in enumerate(groups):
            upto += count
            if upto >= k * len(p) / num_bins:
                if i + 1 < len(groups):
                    edges.append((value + groups[i + 1][0]) / 2)
                break
    return sorted(set(edges))


def members(p: Array, edges: list[float]) -> list[Array]:
    """Which samples lie in each bin (lo, hi] between the inner edges."""
    ends = [-math.inf, *edges, math.inf]
    return [(p > lo) & (p <= hi) for lo, hi in pairwise(ends)]


def histogram(p: Array, hit: Array, edges: list[float], smoothing: float) -> list[float]:
    """Frequency of each bin, with so many samples more of the class's overall frequency."""
    ends = [0.0, *edges, 1.0]
    values = []
    for b, inside in enumerate(members(p, edges)):
        count = int(inside.sum())
        if count == 0:  # nothing but the middle to go by
            values.append((ends[b] + ends[b + 1]) / 2)
        else:
            values.append((hit[inside].sum() + smoothing * frequency(hit)) / (count + smoothing))
    return values


def bbq(p: Array, hit: Array, at: Array, *, equivalent: float = 2.0, window: float = 20.0) -> Array:
    """Average over equal-mass binnings by evidence, those 20 times less probable left out; its values at ``at``."""
    n = len(p)
    root = n ** (1 / 3)
    most = max(1, min(math.ceil(10 * root), math.ceil(n / 5)))
    models = []
    for size in range(max(1, int(root / 10)), most + 1):
        edges = equal_mass_edges(p, size)
        ends = [0.0, *edges, 1.0]
        evidence, values = 0.0, []
        for b, inside in enumerate(members(p, edges)):
            count, hits = int(inside.sum()), int(hit[inside].sum())
            middle = min(max((ends[b] + ends[b + 1]) / 2, 1e-9), 1 - 1e-9)
            worth = equivalent / (len(edges) + 1)
            a, c = worth * middle, worth * (1 - middle)
            evidence += math.lgamma(worth) - math.lgamma(count + worth)
            evidence += math.lgamma(hits + a) - math.lgamma(a) + math.lgamma(count - hits + c) - math.lgamma(c)
            values.append((hits + a) / (count + worth))
        models.append((evidence, sum(v * inside for v, inside in zip(values, members(at, edges), strict=True))))
    top = max(evidence for evidence, _ in models)
    kept = [(math.exp(evidence - top), value) for evidence, value in models if math.exp(evidence - top) >= 1 / window]
    return sum(w * value for w, value in kept) / sum(w for w, _ in kept)
