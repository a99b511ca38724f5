"""The tables of the paper: what is exchanged, cut off or not the same elsewhere."""

from dualfocal.paper.errata._erratum import Erratum

TABLES: tuple[Erratum, ...] = (
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
