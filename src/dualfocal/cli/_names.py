"""Names of the registries, for help texts: the registries themselves import torch. Tests compare both."""

CALIBRATORS = (
    "temperature",
    "temperature_ece",
    "ets",
    "vector",
    "platt",
    "beta",
    "histogram",
    "isotonic",
    "bbq",
    "dirichlet",
    "matrix",
)
LOSSES = (
    "cross_entropy",
    "label_smoothing",
    "brier",
    "mmce",
    "focal",
    "flsd",
    "inverse_focal",
    "dual_focal",
    "ada_focal",
    "ada_dual_focal",
    "kde_xe",
)
PAPER_LOSSES = ("cross_entropy", "brier", "mmce", "label_smoothing", "inverse_focal", "flsd", "dual_focal")
PRESETS = (
    "digits",
    "cifar10_resnet50",
    "cifar10_resnet110",
    "cifar10_wide_resnet26_10",
    "cifar10_densenet121",
    "cifar100_resnet50",
    "cifar100_resnet110",
    "cifar100_wide_resnet26_10",
    "cifar100_densenet121",
    "tiny_imagenet_resnet50",
    "20newsgroups_text_cnn",
)
CRITERIA = ("nll", "ece")  # of the choice of gamma
FIGURES = ("phi", "reliability", "corp", "metrics", "training", "logits", "rival")
FIELDS = ("dataset", "model", "method", "variant")  # of the trainings of a table
FIGURE_1 = (1.0, 0.3)  # gamma and C of the paper's figure
