"""Equations, definitions and proofs of the paper."""

from dualfocal.paper.errata._erratum import Erratum

THEORY: tuple[Erratum, ...] = (
    Erratum(
        "lemma1-appendix",
        "Lemma 1 and the proof of Theorem 1",
        "For i = j Lemma 1 has phi = 1, so that h(v) = v / phi(v) = v; the appendix has h(v) = v / (1 - gamma v log v) "
        "there.",
        "Neither is what phi stands for at a minimum: `dualfocal paper theory` says what is.",
        "",
    ),
    Erratum(
        "theorem1-stationarity",
        "Eqs. 7 to 9 and Theorem 1",
        "q_i is also the rival of the class above it, and the derivative lacks that term. With q in descending order "
        "and a_i = 1 - q_i + q_(i+1), phi_i = a_i^g - g a_i^(g-1) q_i log q_i, exact stationarity is eta_i = "
        "(q_i / phi_i) (lambda + g a_(i-1)^(g-1) |log q_(i-1)| eta_(i-1)), without the second term for i = 1.",
        "The gradient flows through p_k and p_j, as in the authors' code.",
        "",
    ),
    Erratum(
        "theorem1-order",
        "Theorem 1",
        "The minimiser is said to keep the order of eta strictly, but h is shown to increase for one C, and C differs "
        "from class to class. For eta = (.5, .3, .2) and gamma = 2 the least risk without ties is 0.70111 at q = "
        "(.5322, .2267, .2411), against 0.70298 where q is ordered as eta.",
        "The loss is the published one. Without exact ties no wrong top class was found in a numerical search, which "
        "is no proof (docs/theory.md).",
        "",
    ),
    Erratum(
        "underconfident-region",
        "Section 4.2 and Figure 1",
        "The minimiser is said to be under-confident for q_m from v^uc to 1. Of 156 posteriors on a grid 85 have such "
        "a minimiser for gamma = 1, and 54 of these are under-confident; part of the region no q_m can reach, as q_m "
        "is above its rival C and at most 1 - C.",
        "`dualfocal paper theory` counts for any gamma. Dual focal loss is under-confident less often than focal loss "
        "all the same.",
        "",
    ),
    Erratum(
        "theorem1-ties",
        "Eq. 3 and Theorem 1",
        "A class that ties with the target is not below it, so exact ties take the rival away and lower the risk: with "
        "two classes uniform predictions have the least risk while the larger eta is below .707, .774, .855, .905 and "
        ".958 for gamma = .5, 1, 2, 3 and 5.",
        "Ties are excluded as published, but told by the logits, so that the rounding of probabilities makes none.",
        "",
    ),
    Erratum(
        "theorem1-algebra",
        "Proof of Theorem 1",
        "What is called the denominator, t(v), is the numerator; and du/dv at v = 1 is -gamma - 2 C (1 - gamma), not "
        "-gamma, with the same sign.",
        "Nothing here rests on it.",
        "",
    ),
    Erratum(
        "bin-edges",
        "Section 3.1, definition of the ECE",
        "Bins are [m/M, (m+1)/M) for m = 1 to M, which leaves out [0, 1/M) and is closed on the left; the code has "
        "((m-1)/M, m/M].",
        "Bins are (lo, hi], as in the code. Its confidences are rounded to the dtype of the input, ours are float64.",
        "ece(logits, target, convention='published')",
    ),
    Erratum(
        "classwise-definition",
        "Appendix, definition of classwise ECE",
        "B_ij is said to hold the samples with class label j; in the code it holds all samples, binned by the "
        "probability of class j.",
        "All samples are binned by the probability of each class, as in the code.",
        "classwise_ece(logits, target)",
    ),
    Erratum(
        "temperature-zero",
        "Section 5, Training Setup",
        "The grid of temperatures starts at 0, which would divide by 0; the code starts at 0.1.",
        "The grid is 0.1, 0.2, ..., 10.0, and the first minimum of the ECE is taken.",
        "make_calibrator('temperature_ece')",
    ),
    Erratum(
        "temperature-criterion",
        "Section 2 and Section 5",
        "Related work has T chosen by the held-out NLL (and 'maximised'), the experiments choose the T with the lowest "
        "ECE on the validation set.",
        "`temperature` minimises the NLL, `temperature_ece` the ECE; the result of every run has both.",
        "make_calibrator('temperature_ece')",
    ),
)
