"""The public code behind the paper."""

from dualfocal.paper.errata._erratum import Erratum

CODE: tuple[Erratum, ...] = (
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
