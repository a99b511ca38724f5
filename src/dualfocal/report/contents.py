"""The contents of a page: texts, tables and numbers of the figures of all models."""

from collections.abc import Sequence
from typing import Any

import dualfocal
from dualfocal.metrics.monitor.state_file import MonitorState
from dualfocal.metrics.monitor.verdict import monitor_verdict
from dualfocal.predictions import Reading
from dualfocal.report import classes, figures, tables
from dualfocal.report.calibrated import Calibration
from dualfocal.report.curves import coverage_table
from dualfocal.report.decision import Decision
from dualfocal.report.embedded import OCTAVES, STEPS
from dualfocal.report.evidence import evidence_figure
from dualfocal.report.groups import groups_figure
from dualfocal.report.inputs import ReportInput
from dualfocal.report.methods import methods_text
from dualfocal.report.mistakes import mistakes_of
from dualfocal.report.names import shortened

MOST_CLASSES = 1000  # in the class filter
LONGEST_TEXT = 600  # characters of a text that comes from data
FOLLOWS = (
    "Each label lies in one group. If the groups were made from the labels, ignore this section: among samples of one "
    "label, no model is calibrated."
)


def report_contents(
    title: str,
    sources: Sequence[ReportInput],
    calibrations: Sequence[Calibration],
    decision: Decision,
    reading: Reading,
    monitor: MonitorState | None,
) -> dict[str, Any]:
    """Return all texts, tables and figures of a page, for JSON."""
    class_rows = max(10, classes.MOST_ROWS // len(sources))
    positive = sources[0].samples.positive  # the same for all inputs: it follows from the options
    runs: list[dict[str, Any]] = [
        {
            "name": source.name,
            "verdict": source.evaluation.verdict(source.class_names),
            "metrics": tables.calibrated_tables(source, calibration),
            "calibrators": tables.calibrator_table(calibration.comparison),
            "how": calibration.how,
            "advice": calibration.advice,
            "remarks": [shortened(remark, LONGEST_TEXT) for remark in calibration.remarks],
            "temperature": calibration.temperature,
            "temperatureFrom": calibration.temperature_from,
            **classes.class_table(source, class_rows),
            "mistakes": mistakes_of(source),
            "origin": shortened(source.taken, LONGEST_TEXT),
            "groupsNote": FOLLOWS if source.groups_follow_labels else "",
            "groups": groups_figure(source.group_by, source.groups, len(sources)) if source.groups else None,
            "figures": figures.model_figures(source, calibration, len(sources), reading.level),
        }
        for source, calibration in zip(sources, calibrations, strict=True)
    ]
    names = {source.class_names for source in sources}
    shared = names.pop() if len(names) == 1 else ()
    no_filter = "the inputs have different classes" if not shared else f"there are more than {MOST_CLASSES:,} classes"
    return {
        "title": title,
        "headline": decision.headline,
        "decision": decision.contents(),
        "methods": methods_text(sources, calibrations, decision, reading),
        "version": dualfocal.__version__,
        "classNames": list(shared) if len(shared) <= MOST_CLASSES else [],
        "noFilter": no_filter,
        "positive": positive,
        "settings": {
            "numBins": reading.num_bins,
            "level": reading.level,
            "seed": reading.seed,
            "octaves": OCTAVES,
            "steps": STEPS,
        },
        "metrics": tables.model_tables(sources, calibrations),
        "glossary": tables.glossary(positive),
        "selective": coverage_table(sources, [run["figures"]["coverage"] for run in runs]),
        "results": results(title, sources, calibrations, decision),
        "monitor": None if monitor is None else monitor_contents(monitor),
        "runs": runs,
    }


def results(
    title: str, sources: Sequence[ReportInput], calibrations: Sequence[Calibration], decision: Decision
) -> dict[str, Any]:
    """Return the numbers of the page for other programs: fractions, as in :meth:`Evaluation.to_dict`."""
    return {
        "schema": 1,
        "title": title,
        "version": dualfocal.__version__,
        "comparison": None if decision.choice is None else decision.choice.to_dict(),
        "models": [
            {
                "name": source.name,
                "evaluation": source.evaluation.to_dict(),
                "calibrators": None if calibration.comparison is None else calibration.comparison.to_dict(),
                "calibrated": {name: result.to_dict() for name, result in calibration.evaluations.items()},
                "groups": [group.to_dict() for group in source.groups],
            }
            for source, calibration in zip(sources, calibrations, strict=True)
        ],
    }


def monitor_contents(state: MonitorState) -> dict[str, Any]:
    """Return verdict and evidence of a monitor."""
    names = None if state.class_names is None else [shortened(name) for name in state.class_names]
    return {"verdict": monitor_verdict(state.monitor, names), **evidence_figure(state.monitor)}
