"""Find the arrays or columns with logits, probabilities, labels and groups, by usual or given names."""

import csv
import re
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

from dualfocal.predictions._class_columns import (
    Values,
    class_columns,
    class_parts,
    hold_probabilities,
    in_class_order,
    listed,
    named_as_labels,
    unless_indices,
)
from dualfocal.predictions._formats.arrays import unnamed
from dualfocal.predictions._formats.interface import PredictionFile
from dualfocal.predictions._formats.readers import READERS, suffix_of
from dualfocal.predictions._questions import NameOptions, Questions

LOGITS = ("logits", "logit")
LOG_PROBS = ("log_probs", "log_prob", "logprobs", "logprob", "log_softmax")  # logits: their softmax is the same
PROBS = ("probs", "prob", "probabilities", "probability", "proba", "softmax", "y_prob", "y_proba", "y_pred_proba")
KINDS = {"logits": LOGITS + LOG_PROBS, "probs": PROBS}
VALUES = tuple(name for names in KINDS.values() for name in names)
SCORES = ("scores", "score", "y_score", "y_scores", "predictions", "preds", "outputs")  # of either kind
LABELS = ("target", "targets", "label", "labels", "y", "y_true", "y_test", "true_label", "true_labels", "label_ids")
OTHER_LABELS = ("answer", "answers", "gold", "ground_truth", "true_class")  # if there are none of the above
LOG = "log_?(prob|softmax)"  # how names of log-probabilities start
LOG_REMARK = ", log-probabilities: their softmax sums to 1 over these classes"
PREDICTED = ("prediction", "predictions", "predicted", "pred", "y_pred", "predicted_label", "predicted_class")
CONFIDENCES = ("confidence", "confidences", "conf", "score", "max_prob")  # beside a predicted class, or these:
CORRECT = ("correct", "is_correct", "correctness", "right")  # whether the prediction is right
# What a program writes: the names, and their kind. Trainer.predict of Hugging Face returns the model's logits.
PAIRS = {("predictions", "label_ids"): "logits"}
# Prefixes of class columns. "p" is only a prefix: a column "p" can be many things, but p0 and p1 are probabilities.
PREFIXES = {"logits": f"(?i:{'|'.join(KINDS['logits'])})", "probs": f"(?i:{'|'.join(PROBS)}|p)"}
# Prefixes of columns with the target of one label each, as in target_cat, target_dog; the longest first.
LABEL_PREFIX = f"(?i:{'|'.join(sorted(LABELS + OTHER_LABELS, key=len, reverse=True))})"


@dataclass(frozen=True)
class Roles:
    """The arrays or columns of predictions, labels, groups, clusters and weights."""

    values: Values
    label: str | None
    group: str | None
    cluster: str | None = None
    weight: str | None = None
    no_label: str = ""  # why there are no labels, in parentheses

    @property
    def others(self) -> list[str]:
        """Labels, groups, clusters, weights and predicted classes, as far as there are any; each once."""
        names = (self.label, self.group, self.cluster, self.weight, self.values.prediction)
        return list(dict.fromkeys(name for name in names if name is not None))


def find_names(source: PredictionFile, options: NameOptions, *, required: bool) -> Roles:
    """Find the values, the labels and the groups.

    Args:
        source: the file.
        options: the names that options give.
        required: whether labels are required.

    Raises:
        PredictionsError: names are missing or ambiguous; the message lists all questions, and options that answer
            them.
    """
    questions = Questions(source, options)
    split = _find_split(source, options, required, questions)
    target, group, cluster, weight = (
        None if name is None else _given_name(source, name, split)
        for name in (options.target, options.group, options.cluster, options.weight)
    )
    labels = [target] if target is not None else _find_labels(source, split, inferred=options.split is None)
    taken = (target, group, cluster, weight)
    values: Values | None
    if options.values is not None:
        values = _given_values(source, split, options.values, options.kind, taken)
    elif options.confidence is not None:
        confidence = _given_name(source, options.confidence, split)
        prediction = None if options.prediction is None else _given_name(source, options.prediction, split)
        values = Values("confidence", [confidence], ordered=True, prediction=prediction)
    else:
        values = _usual_values(source, split, taken, labels, questions)
    if target is None and values is not None and values.kind == "confidence" and values.prediction is None:
        labels = _usual(source.names, CORRECT, split)
    used = set() if values is None else values.all_names
    labels = [name for name in labels if name not in used or name == target]
    if required and len(labels) != 1:
        free = [name for name in source.names if name not in used] if source.is_table and not labels else []
        several = max(class_columns(free, LABEL_PREFIX), key=len, default={})
        questions.ask_for_labels(labels, values, list(several) if len(several) > 1 else [])
    if questions.problems or values is None:
        raise questions.error()
    if len(labels) == 1:
        return Roles(values, labels[0], group, cluster, weight)
    which = f" ({' or '.join(map(repr, labels))}: choose one with --target)" if labels else ""
    return Roles(values, None, group, cluster, weight, which)


# Splits


def splits(names: list[str], usual: tuple[str, ...] = VALUES + LABELS) -> list[str]:
    """Return the split prefixes of names, sorted: "val" for val_y_prob. A usual name such as y_prob has no prefix."""
    pattern = re.compile(f"(.+?)_(?:{'|'.join(usual)})")
    unprefixed = set(_usual(names, VALUES + SCORES + LABELS + OTHER_LABELS + PREDICTED + CONFIDENCES, None))
    matches = [pattern.fullmatch(name.lower()) for name in names if name not in unprefixed]
    return sorted({match[1] for match in matches if match})


def _find_split(source: PredictionFile, options: NameOptions, required: bool, questions: Questions) -> str | None:
    """Return the split to read: the one of the options, or the only one among the names to find; None: no prefix."""
    split = options.split
    if split is None:
        usual: tuple[str, ...] = ()  # names to find, which may have a prefix
        if options.values is None:
            usual = VALUES
        elif options.target is None:
            usual = LABELS + OTHER_LABELS
        unprefixed = source.is_table or not usual or _usual(source.names, usual, None)
        prefixes = [] if unprefixed else splits(source.names, usual)
        if len(prefixes) > 1 and (required or options.values is None):
            example = "test" if "test" in prefixes else prefixes[0]
            questions.add(f"holds several splits ({', '.join(prefixes)}): choose one with --split", split=example)
            return example
        return prefixes[0] if len(prefixes) == 1 else None
    if source.is_table:
        raise source.error(f"a table has no splits, got --split {split}")
    if not any(name.lower().startswith(f"{split.lower()}_") for name in source.names):
        prefixes = splits(source.names)
        content = f"(it holds the splits {', '.join(prefixes)})" if prefixes else source.holds()
        raise source.error(f"has no split {split!r} {content}")
    return split


def _usual(names: list[str], usual: tuple[str, ...], split: str | None) -> list[str]:
    start = "" if split is None else f"{split.lower()}_"
    words = {start + word for word in usual}
    return [name for name in names if name.lower() in words]


# Names that options give


def _given_name(source: PredictionFile, name: str, split: str | None) -> str:
    """Return the array or column that an option names, within the split if there is one."""
    if split is not None and f"{split}_{name}" in source.name_set:
        return f"{split}_{name}"
    if name not in source.name_set:
        no_file = ", and there is no such file" if suffix_of(Path(name)) in READERS else ""
        raise source.error(f"has no {source.noun} {name!r}{no_file} {source.holds()}")
    if split is not None and not name.lower().startswith(f"{split.lower()}_"):
        for other in splits(source.names):
            if name.lower().startswith(f"{other}_"):
                raise source.error(f"{name!r} belongs to the split {other!r}, but the split to read is {split!r}")
    return name


def _given_values(
    source: PredictionFile, split: str | None, text: str, kind: str, taken: tuple[str | None, ...]
) -> Values:
    """Return the values that an option names; ``taken`` are the names of labels, groups, clusters and weights."""
    if not text.strip():
        raise source.error(f"--{kind} must name an array or column, got {text!r}")
    several = source.is_table and text not in source.names and "," in text
    if source.is_table and text not in source.names and not several:
        free = [name for name in source.names if name not in taken]
        if by_class := class_columns(free, re.escape(text.rstrip("_. -"))):
            return in_class_order(source, kind, {name: label for group in by_class for name, label in group.items()})
    parts = [part.strip() for part in next(csv.reader([text], skipinitialspace=True))] if several else [text]
    names = [_given_name(source, part, split) for part in parts]
    for name, count in Counter(names).items():
        if count > 1:
            raise source.error(f"--{kind} must name each column once, got {name!r} twice")
        if name in taken:
            raise source.error(f"{name!r} cannot hold both {kind} and labels, groups, clusters or weights")
    if several:
        return Values(kind, names, class_parts(names), ordered=True)
    # One score per sample is the score of class 1: a column named like class 0 would invert every prediction.
    if source.is_table and re.fullmatch(rf"{PREFIXES[kind]}[_. -]*0", text):
        how = f"give --{kind} {text[:-1]}1, or rename {text!r} if it is the score of class 1"
        raise source.error(f"{text!r} is named like class 0, but one score per sample must be that of class 1: {how}")
    return Values(kind, names)


# Usual names


def _usual_values(
    source: PredictionFile,
    split: str | None,
    taken: tuple[str | None, ...],
    labels: list[str],
    questions: Questions,
) -> Values | None:
    """Return the values with a usual name that is not taken by labels, groups, ...; asks if it is not clear."""
    names = [name for name in source.names if name not in taken]
    candidates: list[tuple[str, dict[str, str]]] = []  # kind, and the class of each column
    for kind, usual in KINDS.items():
        candidates += [(kind, {name: ""}) for name in _usual(names, usual, split)]
        if source.is_table:
            candidates += [(kind, columns) for columns in class_columns(names, PREFIXES[kind])]
    if len(candidates) > 1:
        both = " and ".join(repr(next(iter(columns))) for _, columns in candidates)
        kind, columns = candidates[0]
        questions.value_names = list(columns)
        questions.add(f"holds both {both}: choose one with --logits or --probs", **{kind: listed(list(columns))})
        return None
    if candidates:
        kind, columns = candidates[0]
        values = Values(kind, list(columns)) if "" in columns.values() else in_class_order(source, kind, columns)
        logs = re.match(LOG, values.names[0].removeprefix(f"{split}_"), re.IGNORECASE)
        return replace(values, why=LOG_REMARK) if logs else values
    for pair, kind in PAIRS.items():
        of_values, of_labels = ([name for name in names if name.lower() == word] for word in pair)
        if len(of_values) == len(of_labels) == 1:
            return Values(kind, of_values, why=f" beside {pair[1]!r}")
    columns_of_labels = named_as_labels(source, labels[0], taken) if source.is_table and len(labels) == 1 else []
    if columns_of_labels and hold_probabilities(source, columns_of_labels):
        return Values("probs", columns_of_labels, unless_indices(columns_of_labels), why=", named like the labels")
    free = [name for name in names if name not in labels]
    predicted, confidences = _usual(free, PREDICTED, split), _usual(free, CONFIDENCES, split)
    right = _usual(free, CORRECT, split)
    if len(predicted) == len(confidences) == 1 and (labels or not right):
        return Values("confidence", confidences, prediction=predicted[0])
    if len(confidences) == len(right) == 1:
        return Values("confidence", confidences)
    scores = _usual(free, SCORES, split) or list(_unnamed_pair(source)[:1]) or free
    questions.ask_for_values(scores if len(scores) == 1 else [], free)
    return None


def _find_labels(source: PredictionFile, split: str | None, inferred: bool) -> list[str]:
    """Return the arrays or columns with a usual name of labels."""
    for usual in (LABELS, OTHER_LABELS):
        # The prefix "x" of x_probs may not be a split: y_true can hold its labels.
        for prefix in (split, None) if inferred else (split,):
            if labels := _usual(source.names, usual, prefix):
                return labels
    return list(_unnamed_pair(source)[1:])


def _unnamed_pair(source: PredictionFile) -> tuple[str, ...]:
    """Return the values and the labels of two arrays without names, if their shapes leave no doubt."""
    names = (unnamed(0), unnamed(1))
    if set(source.names) != set(names):
        return ()
    looks = source.looks()
    for values, labels in (names, names[::-1]):
        of_values, of_labels = looks.get(values), looks.get(labels)
        if of_values is None or of_labels is None or of_values.length != of_labels.length:
            continue
        if (of_values.kind, of_values.ndim, of_labels.kind, of_labels.ndim) == ("float", 2, "integer", 1):
            return values, labels
    return ()


def only_name(source: PredictionFile, option: str) -> str:
    """Return the one array or column of a file that an option names, or the one with a usual name."""
    usual = {"target": LABELS + OTHER_LABELS, "group": (), "cluster": (), "weight": ()}.get(option, VALUES)
    names = source.names if len(source.names) == 1 else _usual(source.names, usual, None)
    if len(names) != 1:
        raise source.error(
            f"a file for --{option} must hold one {source.noun}, or one with a usual name {source.holds()}"
        )
    return names[0]
