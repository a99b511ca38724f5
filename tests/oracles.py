"""Every loss as its equation reads: slow float64 loops over samples and classes, to compare the package with.

Nothing here is shared with the package. `logits` is an (N, C) float64 tensor; `target` holds N class indices,
or is an (N, C) float64 tensor of class probabilities. Unless said otherwise a function returns the losses of
the N samples, without weights or reduction, and autograd differentiates them. What is selected (a rival, a
bin, the correct samples) is selected on detached values. A class index outside 0..C-1 is an ignored sample, a
target of zeros; MMCE, the KDE error and the batch rivals couple the samples, and want the kept ones only.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

Floats = Sequence[float] | Tensor
Target = Sequence[int] | Tensor
Factor = Callable[[int, Tensor, int], Tensor | float]

ZERO = torch.tensor(0.0, dtype=torch.float64)
MINUS_INF = torch.tensor(-math.inf, dtype=torch.float64)
FLOAT32_TINY = torch.finfo(torch.float32).tiny  # 1.18e-38


def log_softmax_row(z: Tensor) -> Tensor:
    """log p_c = z_c - z_top - log1p(sum_{i != top} exp(z_i - z_top)); -inf stays -inf, with zero gradient."""
    values = z.detach().tolist()
    top = values.index(max(values))
    finite = [c for c in range(len(values)) if values[c] != -math.inf]
    rest = sum((torch.exp(z[c] - z[top]) for c in finite if c != top), start=z[:0].sum())
    log_p = {c: (z[c] - z[top] if c != top else 0.0) - torch.log1p(rest) for c in finite}
    return torch.stack([log_p.get(c, MINUS_INF) for c in range(len(values))])


def one_minus_p(p: Tensor, k: int) -> Tensor:
    """1 - p_k = sum_{c != k} p_c, which stays exact where p_k rounds to 1."""
    return sum((p[c] for c in range(len(p)) if c != k), start=ZERO)


def power(base: Tensor, gamma: float) -> Tensor:
    """base^gamma; a constant for gamma = 0 or base = 0, where autograd alone gives NaN for gamma < 1."""
    if gamma == 0:
        return torch.ones_like(base)
    if base.item() == 0 and gamma > 0:
        return torch.zeros_like(base)
    return base**gamma


def target_rows(target: Target, num_classes: int) -> Tensor:
    """The (N, C) class probabilities: y_c = [c = target] for class indices."""
    if isinstance(target, Tensor) and target.ndim == 2:
        return target
    rows = [[1.0 if c == int(t) else 0.0 for c in range(num_classes)] for t in target]
    return torch.tensor(rows, dtype=torch.float64).reshape(len(rows), num_classes)


def modulated_nll(logits: Tensor, target: Target, factor: Factor) -> Tensor:
    """-sum_i y_i factor(n, p, i) log p_i of each sample n; y_i = 0 contributes 0, even where p_i = 0."""
    losses = []
    for n, y in enumerate(target_rows(target, logits.shape[1])):
        log_p = log_softmax_row(logits[n])
        p = torch.exp(log_p)
        loss = logits[n, :0].sum()  # 0, and connected to the logits
        for i in range(len(p)):
            if y[i].item() != 0:
                loss = loss - y[i] * factor(n, p, i) * log_p[i]
        losses.append(loss)
    return torch.stack(losses) if losses else logits.new_zeros(0)


def smoothed(target: Target, num_classes: int, eps: float) -> Tensor:
    """Target of label smoothing: (1 - eps) y_i + eps / K for every class i."""
    return torch.stack(
        [torch.stack([(1 - eps) * y_i + eps / num_classes for y_i in y]) for y in target_rows(target, num_classes)]
    )


def cross_entropy(logits: Tensor, target: Target) -> Tensor:
    """-log p_k; soft: -sum_i y_i log p_i."""
    return modulated_nll(logits, target, lambda n, p, k: 1.0)


def label_smoothing(logits: Tensor, target: Target, alpha: float = 0.05, spread: str = "others") -> Tensor:
    """-sum_c y'_c log p_c, y' = sum_t y_t s(t).

    "others": s_t = 1 - alpha, s_c = alpha / (K - 1). "all": s_t = 1 - alpha + alpha / K, s_c = alpha / K.
    """
    num_classes = logits.shape[1]
    if num_classes == 1:
        return cross_entropy(logits, target)
    on_other = alpha / {"others": num_classes - 1, "all": num_classes}[spread]
    on_true = 1 - alpha + {"others": 0.0, "all": on_other}[spread]
    smoothed = logits.new_zeros(logits.shape)
    for n, y in enumerate(target_rows(target, num_classes)):
        for t in range(num_classes):
            for c in range(num_classes):
                smoothed[n, c] += y[t] * (on_true if c == t else on_other)
    return cross_entropy(logits, smoothed)


def brier(logits: Tensor, target: Target) -> Tensor:
    """sum_c (p_c - y_c)^2."""
    losses = []
    for z, y in zip(logits, target_rows(target, logits.shape[1]), strict=True):
        p = torch.exp(log_softmax_row(z))
        losses.append(sum(((p[c] - y[c]) ** 2 for c in range(len(p))), start=ZERO))
    return torch.stack(losses) if losses else logits.new_zeros(0)


def focal(logits: Tensor, target: Target, gamma: float) -> Tensor:
    """-(1 - p_k)^gamma log p_k."""
    return modulated_nll(logits, target, lambda n, p, k: power(one_minus_p(p, k), gamma))


def flsd(
    logits: Tensor, target: Target, gamma_low: float = 5.0, gamma_high: float = 3.0, threshold: float = 0.2
) -> Tensor:
    """-(1 - p_k)^gamma log p_k, gamma = gamma_low if p_k < threshold else gamma_high."""

    def factor(n: int, p: Tensor, k: int) -> Tensor:
        return power(one_minus_p(p, k), gamma_low if p[k].item() < threshold else gamma_high)

    return modulated_nll(logits, target, factor)


def inverse_focal(logits: Tensor, target: Target, gamma: float) -> Tensor:
    """-(1 + p_k)^gamma log p_k."""
    return modulated_nll(logits, target, lambda n, p, k: (1 + p[k]) ** gamma)


def rival(z: Tensor, k: int, kind: str | float) -> Tensor:
    """p_j of class k in one row, from the classes with z_c < z_k, by logit descending, lower index first.

    "next", "2nd", "3rd": the first, second, third of them, 0 if missing. "mean2", "mean3": the sum of the
    first 2, 3, over 2, 3. "mean_all": their mean, 0 if there are none. A float: that constant.
    """
    if not isinstance(kind, str):
        return torch.full((), float(kind), dtype=torch.float64)
    values = z.detach().tolist()
    below = sorted((c for c in range(len(values)) if values[c] < values[k]), key=lambda c: (-values[c], c))
    p = torch.exp(log_softmax_row(z))
    count = {"mean2": 2, "mean3": 3, "mean_all": len(below)}.get(kind)
    if count is not None:
        return sum((p[c] for c in below[:count]), start=ZERO) / max(count, 1)
    rank = {"next": 0, "2nd": 1, "3rd": 2}[kind]
    return p[below[rank]] if rank < len(below) else ZERO


def dual_focal(logits: Tensor, target: Target, gamma: float | Floats, rival_kind: str | float = "next") -> Tensor:
    """-(1 - p_k + p_j)^gamma log p_k, gamma one number or one a sample; soft: each class i has its own rival.

    "batch_next", "batch_2nd", ...: p_j is one scalar a batch, the mean over the samples of that rival.
    """
    gammas = torch.as_tensor(gamma, dtype=torch.float64).expand(len(logits)).tolist()
    batch_rival = None
    if isinstance(rival_kind, str) and rival_kind.startswith("batch_"):
        kind = rival_kind.removeprefix("batch_")
        rivals = [rival(z, int(t), kind) for z, t in zip(logits, target, strict=True)]
        batch_rival = sum(rivals, start=ZERO) / len(rivals)

    def factor(n: int, p: Tensor, k: int) -> Tensor:
        p_j = rival(logits[n], k, rival_kind) if batch_rival is None else batch_rival
        return power(one_minus_p(p, k) + p_j, gammas[n])

    return modulated_nll(logits, target, factor)


def adaptive(logits: Tensor, target: Target, bin_gamma: Floats, inner_edges: Floats, dual: bool) -> Tensor:
    """-(1 - s (p_k - p_j))^|gamma| log p_k, s = sign(gamma), p_j = 0 unless dual.

    gamma = bin_gamma[b], b the bin [lo, hi) of p_k - p_j: the number of inner edges <= p_k - p_j.
    """

    def factor(n: int, p: Tensor, k: int) -> Tensor:
        p_j = rival(logits[n], k, "next") if dual else ZERO
        x = p[k].item() - p_j.item()
        gamma = float(bin_gamma[sum(1 for edge in inner_edges if edge <= x)])
        base = one_minus_p(p, k) + p_j if gamma >= 0 else 1 + p[k] - p_j
        return power(base, abs(gamma))

    return modulated_nll(logits, target, factor)


def adaptive_update(
    bin_gamma: Floats,
    confidences: Floats,
    correct: Floats,
    scores: Floats,
    *,
    rate: float = 1.0,
    gamma_min: float = -2.0,
    gamma_max: float = 20.0,
    switch: float = 0.2,
    variant: str = "switch",
    drop_lowest: bool = False,
) -> tuple[list[float], list[float]]:
    """The new gammas and inner edges: equal-mass bins (lo, hi] of the scores, gap_b = confidence - accuracy.

    "switch": gamma <- gamma exp(rate gap) if gamma > 0 else gamma exp(-rate gap); if then |gamma| < switch,
    gamma <- -switch if it was positive else +switch; clipped to [gamma_min, gamma_max].
    "no_switch": gamma <- min(gamma exp(rate gap), gamma_max).
    drop_lowest: the lower edge of the first bin is the lowest score, which (lo, hi] excludes.
    """
    assert variant in ("switch", "no_switch")
    n, num_bins = len(scores), len(bin_gamma)
    edges = np.interp(np.linspace(0, n, num_bins + 1), np.arange(n), sorted(float(s) for s in scores))
    inner_edges = [float(edge) for edge in edges[1:-1]]
    bin_of = [sum(1 for edge in inner_edges if edge < float(score)) for score in scores]
    new_gamma = []
    for b in range(num_bins):
        inside = [i for i in range(n) if bin_of[i] == b and (float(scores[i]) > edges[0] or not drop_lowest)]
        confidence = sum(float(confidences[i]) for i in inside) / max(len(inside), 1)
        accuracy = sum(float(correct[i]) for i in inside) / max(len(inside), 1)
        gap = confidence - accuracy  # 0 for an empty bin
        old = float(bin_gamma[b])
        if variant == "no_switch":
            new = min(old * math.exp(rate * gap), gamma_max)
        else:
            new = old * math.exp(rate * gap if old > 0 else -rate * gap)
            if abs(new) < switch:
                new = -switch if old > 0 else switch
            new = min(max(new, gamma_min), gamma_max)
        new_gamma.append(new)
    return new_gamma, inner_edges


def mmce(
    logits: Tensor, target: Target, *, weighted: bool = True, as_published: bool = False, width: float = 0.4
) -> Tensor:
    """The scalar regulariser, r the top-1 confidence, c = y[argmax], k(r, r') = exp(-|r - r'| / width).

    Weighted: sqrt(mean_cc[(1-r)(1-r')k] + mean_ii[r r' k] - 2 mean_ci[(1-r) r' k]), weights c and 1 - c, 0 if
    all are correct or all wrong; as_published: the means again over m^2, n^2, m n (m = sum c, n = sum 1 - c).
    Unweighted: sum (c-r)(c'-r')k / B^2.
    """
    size, rows = len(logits), target_rows(target, logits.shape[1])
    top = [row.index(max(row)) for row in logits.detach().tolist()]
    r = [torch.exp(log_softmax_row(logits[i])[top[i]]) for i in range(size)]
    c = [rows[i, top[i]].item() for i in range(size)]
    m, n = sum(c), sum(1 - c_i for c_i in c)
    if size == 0 or (weighted and (m == 0 or n == 0)):
        return logits[:0].sum()  # 0, with zero gradient
    cc = ii = ci = unweighted = ZERO
    for a in range(size):
        for b in range(size):
            kernel = torch.exp(-torch.abs(r[a] - r[b]) / width)
            cc = cc + c[a] * c[b] * (1 - r[a]) * (1 - r[b]) * kernel
            ii = ii + (1 - c[a]) * (1 - c[b]) * r[a] * r[b] * kernel
            ci = ci + c[a] * (1 - c[b]) * (1 - r[a]) * r[b] * kernel
            unweighted = unweighted + (c[a] - r[a]) * (c[b] - r[b]) * kernel
    if not weighted:
        return unweighted / size**2
    mean_cc, mean_ii, mean_ci = cc / m**2, ii / n**2, ci / (m * n)
    if as_published:
        squared = mean_cc / (m**2 + 1e-5) + mean_ii / (n**2 + 1e-5) - 2 * mean_ci / (m * n + 1e-5)
        return torch.sqrt(squared + 1e-10)
    return torch.sqrt(torch.clamp(mean_cc + mean_ii - 2 * mean_ci, min=0) + 1e-10)


def kde_log_kernel(z_j: Tensor, z_i: Tensor, bandwidth: float) -> Tensor:
    """sum_c (alpha_c - 1) log z_jc - [sum_c lnGamma(alpha_c) - lnGamma(sum_c alpha_c)], alpha = z_i/h + 1."""
    alpha = [z_ic / bandwidth + 1 for z_ic in z_i]
    log_z = [torch.log(torch.clamp(z_jc, min=FLOAT32_TINY)) for z_jc in z_j]
    power_terms = sum(((a - 1) * log_z_c for a, log_z_c in zip(alpha, log_z, strict=True)), start=ZERO)
    log_beta = sum((torch.lgamma(a) for a in alpha), start=ZERO) - torch.lgamma(sum(alpha, start=ZERO))
    return power_terms - log_beta


def kde_error(logits: Tensor, target: Target, *, bandwidth: float, p: float = 1, as_published: bool = False) -> Tensor:
    """The scalar ECE_KDE = mean_j sum_c |ratio_jc - z_jc|^p, z = softmax(logits), 0 if N < 2.

    ratio_j = sum_{i != j} k_ji y_i / max(sum_{i != j} k_ji, floor), floor = 1e-10; as_published: 0 above 60 classes.
    """
    size, num_classes = logits.shape
    if size < 2:
        return logits[:0].sum()
    z = [torch.exp(log_softmax_row(row)) for row in logits]
    y = target_rows(target, num_classes)
    floor = 0.0 if as_published and num_classes > 60 else 1e-10
    error = ZERO
    for j in range(size):
        log_k = {i: kde_log_kernel(z[j], z[i], bandwidth) for i in range(size) if i != j}
        # exp(shift) cancels in the ratio; it only keeps exp from overflowing.
        shift = max(value.item() for value in log_k.values())
        if floor > 0:
            shift = max(0.0, shift)
        k = {i: torch.exp(value - shift) for i, value in log_k.items()}
        total = sum(k.values(), start=ZERO)
        if floor > 0:
            total = torch.clamp(total, min=floor * math.exp(-shift))
        for c in range(num_classes):
            ratio = sum((k[i] * y[i, c] for i in k), start=ZERO) / total
            error = error + torch.abs(ratio - z[j][c]) ** p
    return error / size


def kde_log_likelihood(logits: Tensor, bandwidth: float) -> float:
    """sum_j [log sum_{i != j} k_ji - log(N - 1)], N >= 2."""
    z = [torch.exp(log_softmax_row(row)) for row in logits.detach()]
    likelihood = 0.0
    for j in range(len(z)):
        log_k = torch.stack([kde_log_kernel(z[j], z[i], bandwidth) for i in range(len(z)) if i != j])
        likelihood += torch.logsumexp(log_k, dim=0).item() - math.log(len(z) - 1)
    return likelihood


def reduce(
    per_sample: Tensor,
    target: Target,
    weight: Floats | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    """w_n l_n, w_n = weight[target_n], 0 where ignored; mean: sum w_n l_n / sum w_n, 0 if sum w_n = 0."""
    assert reduction in ("none", "sum", "mean")
    zero = per_sample[:0].sum()  # with zero gradient
    kept = [n for n in range(len(per_sample)) if int(target[n]) != ignore_index]
    w = {n: 1.0 if weight is None else float(weight[int(target[n])]) for n in kept}
    losses = [w[n] * per_sample[n] if n in w else zero for n in range(len(per_sample))]
    if reduction == "none":
        return torch.stack(losses) if losses else per_sample
    if reduction == "sum":
        return sum(losses, start=zero)
    total = sum(w.values())
    return sum(losses, start=zero) / total if total != 0 else zero
