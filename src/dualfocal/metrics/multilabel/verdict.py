"""The verdict of an evaluation of multi-label predictions, in words."""

from typing import TYPE_CHECKING

from dualfocal.metrics.inference_result import SIGNIFICANCE, ClusterSummary, Floor, Inference
from dualfocal.metrics.verdict import confidence_verdict, percent_text, points_text
from dualfocal.tables import printable, quantity

if TYPE_CHECKING:
    from dualfocal.metrics.multilabel.result import LabelEvaluation, MultilabelEvaluation

FEW = 10  # positive or negative samples of a label; with fewer, little can be said about it
MOST_NAMED = 5  # labels in a sentence


def multilabel_verdict(result: "MultilabelEvaluation", inference: Inference, macro_floor: Floor) -> str:
    """Say whether the probabilities of the labels are calibrated, and what is not known.

    Args:
        result: the evaluation.
        inference: inference of all entries pooled.
        macro_floor: noise floor of the macro ECE.
    """
    pooled = confidence_verdict(result.micro, inference, result.p_adjusted <= SIGNIFICANCE)
    pooled = pooled.replace("Probabilities of class 1", "probabilities")
    if not result.clusters_given:  # the clusters are the samples
        pooled = pooled.replace("too few clusters", "too few samples")
    ece, floor, q95 = (f"{100 * x:.2f}" for x in (result.macro_ece, macro_floor.mean, macro_floor.q95))
    sentences = [
        _labels_sentence(result),
        f"All entries pooled: {pooled[0].lower()}{pooled[1:]}",
        f"Macro ECE is {ece} points; calibrated labels would show {floor} by chance (95 % quantile {q95}).",
    ]
    if inference.clusters is not None:
        sentences.append(_dependence_sentence(result, inference.clusters))
    return " ".join(sentences + _unknown_sentences(result))


def _labels_sentence(result: "MultilabelEvaluation") -> str:
    number, wrong = quantity(result.num_labels, "label"), result.miscalibrated
    if not wrong:
        return f"No miscalibration detectable in any of {number} (p-values adjusted for all of them, Holm)."
    worst = wrong[0]
    gap = f"predicted {percent_text(worst.evaluation.confidence)} %, occurs {percent_text(worst.base_rate)} %"
    ece = f"ECE {points_text(worst.evaluation.ece)} points"
    return (
        f"{len(wrong):,} of {number} {'is' if len(wrong) == 1 else 'are'} miscalibrated (family-wise "
        f"{100 * SIGNIFICANCE:g} %, Holm); worst: {printable(worst.name)!r}, {ece}, {gap}."
    )


def _dependence_sentence(result: "MultilabelEvaluation", clusters: ClusterSummary) -> str:
    unit = "cluster" if result.clusters_given else "sample"
    number, effect = result.num_entries, f"(design effect {clusters.design_effect:.1f})"
    text = (
        f"The entries of a {unit} depend on each other {effect}: the {number:,} entries carry the information of "
        f"{round(clusters.information(number)):,} independent ones."
    )
    if clusters.negligible:
        text = f"The entries of a {unit} hardly depend on each other {effect}."
    if clusters.reliable:
        return text
    return (
        f"{text} Most of the noise of the pooled entries comes from so few {unit}s that they count as "
        f"{clusters.effective:.0f} equal ones: their p-value and interval are not reliable."
    )


def _unknown_sentences(result: "MultilabelEvaluation") -> list[str]:
    """Say of which labels little or nothing is known."""
    never = [label for label in result.labels if label.num_positive == 0]
    rare = [label for label in result.labels if label.is_rare and label.num_positive]
    sentences = []
    if never:
        bound = ""
        if not result.clusters_given:
            least = min(label.evaluation.num_samples for label in never)
            bound = f"; each is true for at most {percent_text(3 / least)} % of samples (95 % confidence)"
        noticed = "and only probabilities that are too high could be noticed."
        sentences.append(f"{_counted(never, 'never occurs', 'never occur')}{bound}, {noticed}")
    if rare:
        few = f"fewer than {FEW} positive or negative samples: only large errors could be noticed."
        sentences.append(f"{_counted(rare, 'has', 'have')} {few}")
    if result.left_out:
        name, reason = next(iter(result.left_out.items()))
        sentences.append(f"{len(result.left_out)} left out, such as {printable(name)!r}: {reason}.")
    return sentences


def _counted(labels: "list[LabelEvaluation]", singular: str, plural: str) -> str:
    """Return "2 labels (cat, dog) never occur"."""
    names = ", ".join(printable(label.name) for label in labels[:MOST_NAMED])
    more = ", ..." if len(labels) > MOST_NAMED else ""
    if len(labels) == 1:
        return f"1 label ({names}) {singular}"
    return f"{len(labels):,} labels ({names}{more}) {plural}"
