"""What does not fit together in the paper and in the public code behind it, what this package does, and how to get
the published behaviour all the same.

Tables are called as :mod:`dualfocal.paper.published` calls them, "table1" to "table13", in the order of the paper;
"before" and "after" are before and after temperature scaling, and calibration errors are in percent. "The authors'
code" is what the paper's authors have published; "the older code" that of Mukhoti et al., which they built on.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from dualfocal.data.registry import did_you_mean


@dataclass(frozen=True)
class Erratum:
    """One inconsistency."""

    key: str
    """Short name, for the command line."""
    where: str
    """Table, section, lemma, or part of the code."""
    what: str
    """What is inconsistent."""
    ours: str
    """What this package does."""
    option: str
    """What gives the published behaviour: a command, or an expression of names that ``dualfocal`` exports from
    ``losses``, ``metrics``, ``calibrators``, ``models``, ``paper.recipes`` and ``paper.published``. Empty: nothing
    does."""


_TABLES = (
    Erratum(
        "adafocal-columns",
        "table3, Comparison with AdaFocal Loss",
        "DenseNet-121 and Wide-ResNet are exchanged in the columns FLSD-53 and DualFocal: for DualFocal they have 0.81 "
        "and 0.57 on CIFAR-10 and 1.79 and 1.81 on CIFAR-100, where table1 has 0.57 and 0.81, and 1.81 and 1.79.",
        "The cells are kept as printed; published('adafocal').as_meant() puts them right.",
        "published('adafocal')",
    ),
    Erratum(
        "robustness-headings",
        "table12, Robustness of DFL",
        "The headings MMCE and Brier Loss are exchanged: an ECE of 1.81 stands under MMCE and 4.51 under Brier Loss, "
        "where table1 has 4.56 for MMCE and 1.82 for Brier Loss.",
        "The cells are kept as printed; published('robustness').as_meant() puts them right.",
        "published('robustness')",
    ),
    Erratum(
        "rbs-root",
        "table11, Calibration Assessment with Metrics RBS",
        "RBS is the root of the Brier score, but the table has the score itself: cross-entropy with ResNet-50 on "
        "CIFAR-10 has 0.0922, near the 0.099 of a fully confident model with its error of 4.95 %; the root of 0.0922 "
        "is 0.30.",
        "brier_score is the score, and with root=True the RBS.",
        "brier_score(logits, target, root=False)",
    ),
    Erratum(
        "adaptive-temperature",
        "table5, Adaptive ECE",
        "Inverse focal loss with ResNet-50 on CIFAR-10 has the temperature 1.5; the other tables have 2.8 for the same "
        "model, and there is one temperature for all metrics.",
        "The cell is kept as printed, with a remark.",
        "published('adaptive_ece')",
    ),
    Erratum(
        "mce-repeated",
        "table7, MCE",
        "For DenseNet-121 on CIFAR-10 the number 52.11 stands under Inverse Focal Loss (before) and under Dual Focal "
        "(before and after); one of them may be a slip.",
        "The cells are kept as printed, with a remark; which one is wrong is not known.",
        "published('mce')",
    ),
    Erratum(
        "bold-print",
        "table4, table6, table7",
        "Four bold numbers of dual focal are not the lowest: MCE on CIFAR-10 26.27 (Wide-ResNet, before; label "
        "smoothing 24.89) and 24.24 (ResNet-50, after; cross-entropy 20.6), classwise ECE 0.20 (CIFAR-100, "
        "DenseNet-121, before; focal loss 0.19), and AdaECE 0.66 in the ablation (0.38 and 0.5).",
        "Bold print is kept as printed, with a remark; in the tables of `dualfocal study` the lowest of a column is "
        "bold, and all that are printed alike.",
        "",
    ),
    Erratum(
        "nll-unit",
        "table8, NLL",
        "The NLL is said to be in percent; the numbers are nats times 100: 17.02 is 0.1702 nats.",
        "The NLL is in nats; cells of table8 have the printed text and the value in nats.",
        "100 * nll(logits, target)",
    ),
    Erratum(
        "kde-unit",
        "table10, Comparison with KDE-XE",
        "The ECE is in percent (0.4 for dual focal with ResNet-110 on CIFAR-10) and ECE_KDE in the same table a "
        "fraction (0.153), which the table does not say.",
        "All metrics are fractions; cells of table10 have their unit.",
        "kde_ece(logits, target, bandwidth=0.001, norm=1.0)",
    ),
    Erratum(
        "ablation-columns",
        "table4, Ablation Study",
        "The text promises ECE, ECE after temperature scaling, adaptive and classwise ECE; the table has ECE and "
        "adaptive ECE only, and does not say at which stage.",
        "Every run has all four, before and after temperature scaling. The row of focal loss (1.55, 1.56) agrees with "
        "table1 and table5 before it.",
        "",
    ),
    Erratum(
        "ood-score",
        "table9, Robustness on Dataset Shift",
        "The AUROC is not said to be by entropy or by the largest probability; the public code computes both.",
        "ood_auroc takes the entropy; score='max_prob' takes the largest probability.",
        "",
    ),
    Erratum(
        "robustness-runs",
        "table12, Robustness of DFL",
        "The number of runs is not said. The mean AdaECE of dual focal is 0.47 with a standard error of 0.04, but 0.66 "
        "in table5; that of label smoothing is 2.99 with 0.09, but 3.89 in table5.",
        "`dualfocal study` says how many seeds it has and compares losses in pairs, seed by seed.",
        "",
    ),
    Erratum(
        "gamma-digits",
        "table13, Gamma Selection",
        "The same model has AdaECE 0.6694 and classwise ECE 0.3578 here, 0.66 in table5 and 0.35 in table6: digits "
        "seem to be cut off, not rounded.",
        "Numbers are rounded.",
        "",
    ),
)

_THEORY = (
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

_CLAIMS = (
    Erratum(
        "adadualfocal-claim",
        "Section 5.2 and table3",
        "AdaDualFocal is said to be a consistent enhancement, but on CIFAR-100 with DenseNet-121 1.8 stands beside a "
        "bold 1.79 of dual focal. That is Wide-ResNet's number: put right, dual focal has 1.81 there, AdaDualFocal is "
        "lower in all 8 rows, twice by 0.01, and the bold print is wrong.",
        "See adafocal-columns; and adadualfocal-frozen, as the column shows no adaptive loss.",
        "published('adafocal')",
    ),
    Erratum(
        "error-claim",
        "Section 5.1 and table2",
        "Dual focal is said to have a lower error than focal loss in almost all cases; it is higher in 3 of 10: "
        "CIFAR-100 ResNet-110 (22.59 against 22.51), CIFAR-10 ResNet-50 (5.17, 4.98), 20 Newsgroups (28.73, 27.98).",
        "`dualfocal study` prints the error beside every calibration error.",
        "",
    ),
    Erratum(
        "mce-claim",
        "Appendix and table7",
        "The MCE of dual focal is said to be the best in most cases, particularly before temperature scaling; it is "
        "the lowest in 3 of 9 before and in 4 of 9 after.",
        "The MCE has its floor beside it: one bin of few samples decides it.",
        "mce(logits, target, convention='published')",
    ),
    Erratum(
        "nll-claim",
        "Appendix and table8",
        "The NLL of dual focal is said to be better on complex data such as CIFAR-100; there focal loss is lower for "
        "Wide-ResNet (76.92 against 78.67 before, 78.14 against 78.67 after) and DenseNet-121 (85.47 against 85.82 "
        "before).",
        "`dualfocal study` has the NLL before and after, with paired differences.",
        "",
    ),
    Erratum(
        "adaptive-claim",
        "Appendix and table5",
        "The AdaECE of dual focal is said to be behind only on Tiny-ImageNet, by 0.1 (1.52 against 1.42); after "
        "temperature scaling focal loss is lower in 4 of 9, on CIFAR-100 with Wide-ResNet by 0.43 (2.03, 1.6).",
        "The result of every run has all metrics at both stages.",
        "",
    ),
    Erratum(
        "inverse-focal-claim",
        "Section 5.1 and table1",
        "Inverse focal loss is said to be the worst, above cross-entropy; before temperature scaling it has the "
        "highest ECE in 3 of 10 rows and is above cross-entropy in 6. Its gamma, tuned on validation data, is not "
        "given.",
        "inverse_focal has gamma = 2 unless told otherwise; `--gamma` of `dualfocal study` compares several.",
        "",
    ),
    Erratum(
        "sgd-for-all",
        "Section 5, Training Setup",
        "SGD with weight decay 5e-4 is said to be used for all experiments; the code for 20 Newsgroups has Adam, no "
        "decay and no clipping, and the comparison with KDE-XE has weight decay 1e-4.",
        "Presets follow the code.",
        "preset('20newsgroups_text_cnn')",
    ),
    Erratum(
        "seeds",
        "Section 5, Training Setup",
        "All seeds are said to be 1; the code of AdaFocal and of the comparison with KDE-XE has 0.",
        "Presets have seed 1; the seed that splits the data is another one, and 1 as well.",
        "preset('cifar10_resnet50', ['loss=ada_focal', 'seed=0'])",
    ),
    Erratum(
        "baselines",
        "Section 5, Training Setup",
        "Weights published by Mukhoti et al. are said to be used for some results; cross-entropy, Brier, MMCE, label "
        "smoothing and FLSD-53 are such weights, so that the main tables compare models that two groups have trained.",
        "Every loss is trained here; no weights are loaded.",
        "",
    ),
    Erratum(
        "kde-setting",
        "Appendix and table10",
        "The training setting of KDE-XE is said to be used; the authors' code trains 200 epochs with milestones left "
        "at 150 and 250, so that the learning rate falls once, gamma from 2 to 15, and a ResNet-110 of "
        "45.9 million weights.",
        "The nets of KDE-XE are resnet110_kde, resnet110_sd, wide_resnet34_10 and densenet40; there is no preset for "
        "this table, and loss.gamma is to be chosen.",
        "preset('cifar10_resnet110', ['weight_decay=1e-4', 'epochs=200', 'seed=0'])",
    ),
    Erratum(
        "resnet110-size",
        "Section 5, models",
        "ResNet-110 is cited as He's, which has 1.7 million weights for CIFAR-10; the code has bottlenecks "
        "(3, 4, 26, 3) and 45,864,522.",
        "resnet110 is the net of the code; resnet110_kde has the size of He's.",
        "make_model('resnet110', num_classes=10)",
    ),
    Erratum(
        "label-smoothing-mass",
        "Appendix, Comparison Methods",
        "Label smoothing is described as a mixture with the uniform distribution, alpha / K for every class; the older "
        "code gives alpha / (K - 1) to the other classes and 1 - alpha to the true one.",
        "As in the code; spread='all' is the form of the text, and torch's.",
        "LabelSmoothingLoss(0.05, spread='others')",
    ),
    Erratum(
        "gamma-choice",
        "Appendix, Gamma Value Selection",
        "Gamma is said to be chosen by cross-validation; no such code is published, and the values used, from 2.3 to "
        "6.1, stand only beside the code.",
        "Presets have those values; `dualfocal study --gamma` chooses by validation data.",
        "preset('cifar100_resnet110', ['loss=dual_focal', 'loss.gamma=6.1'])",
    ),
)

_CODE = (
    Erratum(
        "loss-defaults",
        "authors' code, loss",
        "The module's defaults are gamma = 0 and a sum, which is summed cross-entropy.",
        "The defaults are gamma = 5 and the mean.",
        "DualFocalLoss(gamma=0, reduction='sum')",
    ),
    Erratum(
        "small-gamma",
        "authors' code, loss",
        "For gamma below 1 the gradient is NaN where p_k = 1 and p_j = 0.",
        "Value and gradient are finite there.",
        "",
    ),
    Erratum(
        "tied-rivals",
        "authors' code, loss",
        "Where several classes tie for p_j, top-k sends the gradient to one of them, which one is not specified.",
        "The one of the lowest index receives it.",
        "",
    ),
    Erratum(
        "ablation-means",
        "authors' code, table4",
        "The rows mean(...) of the ablation have one number a batch in the place of p_j, not one a sample.",
        "rival='mean2', 'mean3' and 'mean_all' are means of each sample; with 'batch_' before the name they are as run "
        "by the authors.",
        "DualFocalLoss(gamma=5, rival='batch_mean2')",
    ),
    Erratum(
        "adadualfocal-frozen",
        "authors' code, table3",
        "The update of gamma is guarded by a test of names that is false for the dual variant, so gamma never changed: "
        "0.43, 0.69 and 0.5 on CIFAR-10 (ResNet-50, ResNet-110, DenseNet-121) are dual focal with gamma 6, 7 and 6. "
        "The only log for Wide-ResNet ends at an ECE of 3.46, not 0.54.",
        "AdaDualFocalLoss follows the validation data, with bins of the margin in training and in validation; presets "
        "have it frozen, as in the table.",
        "AdaDualFocalLoss(6.0, frozen=True)",
    ),
    Erratum(
        "adafocal-variant",
        "authors' code, table3",
        "The AdaFocal that was run is an older one, whose gamma is min(gamma exp(gap), 20) and never becomes negative; "
        "the published AdaFocal switches to inverse focal loss below 0.2.",
        "AdaFocalLoss is the published one; presets have the older.",
        "AdaFocalLoss(variant='no_switch')",
    ),
    Erratum(
        "adafocal-bins",
        "AdaFocal's code",
        "Bins are made of the confidence of the predicted class, as (lo, hi], and looked up in training with the "
        "probability of the true class, as [lo, hi).",
        "The same.",
        "AdaFocalLoss()",
    ),
    Erratum(
        "mmce-normalisation",
        "MMCE's original and the older code",
        "The three means over pairs are divided by the numbers of pairs once more, so that in most batches the penalty "
        "nearly vanishes: with 128 rows of random logits, half of them right, it falls to less than a twentieth.",
        "mmce is the intended form by default; presets have the published one.",
        "MMCELoss(as_published=True)",
    ),
    Erratum(
        "kde-bandwidth",
        "KDE-XE's code",
        "The likelihood that chooses the bandwidth has log h subtracted, although the kernel is normalised.",
        "It is not subtracted; losses have a fixed bandwidth unless told otherwise.",
        "kde_bandwidth(logits, as_published=True)",
    ),
    Erratum(
        "adaptive-ece-lowest",
        "older code, adaptive ECE",
        "Bins are (lo, hi] and the lowest edge is the lowest confidence, so that the samples that have it are dropped.",
        "Every sample is counted.",
        "adaptive_ece(logits, target, convention='published')",
    ),
    Erratum(
        "cifar100-normalisation",
        "older code, CIFAR-100",
        "Test images are normalised with ImageNet's mean and std, training and validation images with CIFAR's; every "
        "row on CIFAR-100 carries that.",
        "All parts are normalised alike, presets included.",
        "preset('cifar100_resnet50', ['data.published_test_mismatch=true'])",
    ),
    Erratum(
        "tiny-split",
        "older code, Tiny-ImageNet",
        "The official validation images serve for validation and for testing; the paper's authors validate on images "
        "450 to 499 of each class instead, so that rows from both are not alike.",
        "As the paper's authors: 450 of each class train, 50 validate, the official validation images test.",
        "",
    ),
    Erratum(
        "tiny-batch",
        "public scripts, Tiny-ImageNet",
        "Batches are said to be of 128 for all data; the scripts for Tiny-ImageNet have 64.",
        "128, as in the paper.",
        "preset('tiny_imagenet_resnet50', ['batch_size=64'])",
    ),
    Erratum(
        "sum-and-clip",
        "public code, training",
        "The loss is summed over the batch and the gradient clipped to a norm of 2, which the paper does not say; a "
        "mean with the same learning rate is another method.",
        "Recipes have both by default; the losses alone have the mean, as torch's do.",
        "preset('cifar10_resnet50', ['reduction=sum', 'clip_norm=2'])",
    ),
    Erratum(
        "brier-mean",
        "older code, Brier loss",
        "Of the image losses the Brier loss alone is averaged over the batch; it also has 550 epochs for Wide-ResNet "
        "on CIFAR-10, 430 for ResNet-110 on CIFAR-100, and a learning rate of .035 on Tiny-ImageNet.",
        "Presets have it so, also in a study of several losses; `--set` makes them alike.",
        "preset('cifar10_wide_resnet26_10', ['loss=brier'])",
    ),
    Erratum(
        "last-epoch",
        "public code, training",
        "Results on images are of the last epoch, those on 20 Newsgroups of the epoch with the best validation "
        "accuracy; the paper says neither.",
        "Presets follow the code.",
        "preset('cifar10_resnet50', ['weights=last'])",
    ),
    Erratum(
        "newsgroups-vocabulary",
        "public code, 20 Newsgroups",
        "The vocabulary is made of all texts, those for testing included.",
        "The same.",
        "preset('20newsgroups_text_cnn')",
    ),
)

_METHOD = (
    Erratum(
        "noise-floor",
        "table1 and others",
        "A perfectly calibrated model does not show an ECE of 0: by simulation 10,000 test images of CIFAR-10 show "
        "0.37 to 0.49 on average, of CIFAR-100 0.81 to 1.0. The 0.46 of dual focal cannot be told from perfect, nor "
        "from other numbers of that size.",
        "Every calibration error is printed beside its floor.",
        "",
    ),
    Erratum(
        "bootstrap-intervals",
        "Figure 3 and the code behind it",
        "The pivotal bootstrap of the ECE, 1000 resamples, does not hold its 90 %: it held the truth of calibrated "
        "models in 31 to 52 % of our simulations with 500 samples or more.",
        "The debiased error has an interval whose coverage is tested; see benchmarks/inference_coverage.py.",
        "evaluate(logits, target, inference=True, convention='published')",
    ),
    Erratum(
        "single-runs",
        "all tables but table12",
        "Each number is of one run, without a spread; table12 alone repeats runs.",
        "`dualfocal study` trains several seeds, and a difference has an interval paired by seed.",
        "",
    ),
    Erratum(
        "gamma-by-ece",
        "Appendix, Gamma Value Selection",
        "Models are judged by the ECE, and by what gamma was chosen is not said. On 5,000 validation images of "
        "CIFAR-10 a calibrated model itself shows 0.52 to 0.69 on average: the lowest ECE over gammas selects noise.",
        "`dualfocal study --gamma` chooses by the NLL, and lists what one standard error does not tell from the best; "
        "by the ECE on request.",
        "dualfocal study --gamma 2,3,4,5,10 --criterion ece",
    ),
    Erratum(
        "one-validation-part",
        "Section 5, Training Setup",
        "One validation part fits the temperature, is there to choose gamma, and moves the gammas of adaptive losses.",
        "The same by default, with a note in the result; data.val2_size=1000 makes a second part for what training "
        "looks at.",
        "preset('cifar10_resnet50', ['loss=ada_focal', 'data.val2_size=0'])",
    ),
    Erratum(
        "loss-jumps",
        "Eq. 3",
        "p_j jumps where the target passes a rival: with two classes and gamma = 5 the loss is 0.022 at p_k = .499 and "
        "0.684 at .501, so that its value neither compares models nor says when to stop.",
        "The loss is the published one; two classes raise a warning once, and epochs are chosen by NLL or error only.",
        "DualFocalLoss(gamma=5)",
    ),
    Erratum(
        "after-temperature",
        "table1 and table8",
        "Most of the distance to cross-entropy is gone after temperature scaling: for ResNet-50 on CIFAR-10 the ECE is "
        "4.35 against 0.46 before and 1.35 against 0.46 after, the NLL 41.21 against 17.02 and 20.38 against 17.02.",
        "`dualfocal study` compares both stages, and its reading says what is left after.",
        "",
    ),
)

GROUPS: dict[str, tuple[Erratum, ...]] = {
    "paper: tables": _TABLES,
    "paper: theory": _THEORY,
    "paper: claims": _CLAIMS,
    "code": _CODE,
    "method": _METHOD,
}
"""By kind."""

ERRATA: tuple[Erratum, ...] = tuple(erratum for group in GROUPS.values() for erratum in group)

OUT_OF_SCOPE: tuple[str, ...] = (
    "AvUC (Krishnan and Tickoo 2020), a loss term",
    "soft calibration objectives (Karandikar et al. 2021), loss terms",
    "meta-calibration (Bohdal et al. 2021), a loss term",
    "mixup (Thulasidasan et al. 2019) and AugMix (Hendrycks et al. 2019), augmentations; the losses here take the "
    "class probabilities that mixup needs",
    "ensembles (Lakshminarayanan et al. 2017, Zhang et al. 2020, Rahaman and Thiery 2021) and BatchEnsemble (Wen et "
    "al. 2020)",
    "margin losses other than focal (hinge, contrastive, triplet, margin ranking)",
)
"""What the paper only cites: it has no number of them, and this package has none of them."""


def find_errata(keys: Iterable[str] = ()) -> dict[str, list[Erratum]]:
    """The errata of these keys, or all of them, by kind; kinds without any are left out.

    >>> [erratum.where for erratum in find_errata(["rbs-root"])["paper: tables"]]
    ['table11, Calibration Assessment with Metrics RBS']

    Raises:
        ValueError: no such key, with the nearest.
    """
    wanted = list(keys)
    known = [erratum.key for erratum in ERRATA]
    for key in wanted:
        if key not in known:
            near = did_you_mean(key, known) or "; `dualfocal paper errata` lists them"
            raise ValueError(f"there is no erratum {key!r}{near}")
    found = {kind: [one for one in group if not wanted or one.key in wanted] for kind, group in GROUPS.items()}
    return {kind: some for kind, some in found.items() if some}
