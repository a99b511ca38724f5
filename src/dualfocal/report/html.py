"""Write a calibration report as one self-contained HTML page.

Python computes the numbers in texts and tables from all samples; the interactive diagrams compute theirs from the
samples embedded in the page. All content that comes from data is JSON and is inserted as text, never as HTML. A
Content-Security-Policy allows only the scripts of the page, and no requests.
"""

import base64
import hashlib
import html
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

import dualfocal
from dualfocal._files import atomic_path, check_place
from dualfocal.metrics.arrays import Array
from dualfocal.metrics.monitor.verdict import monitor_verdict
from dualfocal.report import classes, figures, provenance, tables
from dualfocal.report.calibrated import DEFAULT, Calibration, calibrate
from dualfocal.report.decision import Decision, decide
from dualfocal.report.embedded import OCTAVES, STEPS, deal, embed
from dualfocal.report.evidence import evidence_figure
from dualfocal.report.groups import groups_figure
from dualfocal.report.images import RunData, mistakes_of
from dualfocal.report.inputs import Model, ReportInput, load_inputs, shortened
from dualfocal.report.methods import methods_text
from dualfocal.runs.monitor_file import MonitorState, read_monitor
from dualfocal.runs.source import Reading

MOST_BYTES = 3_900_000  # size limit of a page: under 4 MB, to fit in a mail
DESCRIPTION = 1500  # bytes of the description of the embedded data of one input
MOST_CLASSES = 1000  # in the class filter
FOLLOWS = (
    "Each label lies in one group. If the groups were made from the labels, ignore this section: among samples of one "
    "label, no model is calibrated."
)
SCRIPTS = (
    "vendor/d3.min.js",
    "vendor/plot.umd.min.js",
    "calibration.js",
    "tables.js",
    "terms.js",
    "frame.js",
    "readout.js",
    "charts.js",
    "sheet.js",
    "curves.js",
    "reliability.js",
    "confusion.js",
    "groups.js",
    "figures.js",
    "decision.js",
    "live.js",
    "page.js",
)

ReportProgress = Callable[[float, str], None]  # share of the work done, current task


def write_report(
    models: Sequence[str | os.PathLike[str]] | Mapping[str, Model],
    out: str | os.PathLike[str],
    *,
    input: str | None = None,
    class_names: Sequence[str] | None = None,
    clusters: Array | None = None,
    sample_weight: Array | None = None,
    groups: Array | None = None,
    title: str | None = None,
    calibrators: Sequence[str] = DEFAULT,
    reading: Reading | None = None,
    data_root: str | os.PathLike[str] | None = None,
    monitor: str | os.PathLike[str] | None = None,
    progress: ReportProgress | None = None,
) -> int:
    """Write a report on predictions or finished runs; the same models give the same bytes.

    Args:
        models: name on the page -> ``(logits, target)``, a file of predictions, or the folder of a finished run; or a
            list of files and folders, without duplicates, which are named by their paths.
        out: path of the page, ending in .html or .htm.
        input: ``"logits"`` or ``"probs"``: what the arrays hold, see :func:`~dualfocal.metrics.ece`.
        class_names: names of the classes of the arrays.
        clusters: cluster of each sample of the arrays, see :func:`~dualfocal.metrics.evaluate`; for files, see
            ``reading``.
        sample_weight: weight of each sample of the arrays, see :func:`~dualfocal.metrics.evaluate`; for files, see
            ``reading``.
        groups: group of each sample of the arrays: each group is evaluated; for files, see ``reading``.
        title: title of the page (default: made from the names of the inputs).
        calibrators: names from ``CALIBRATORS``; fitted on the validation split of a run, otherwise cross-validated.
        reading: which arrays of files to read, also ``cluster``, ``weight`` and ``group``, and how to score all
            models: ``num_bins``, ``ignore_index``, ``binary``, ``level``, ``seed``.
        data_root: folder of the data sets, for the images of mistakes. Nothing is downloaded.
        monitor: state file of ``dualfocal monitor``, whose verdict and history are shown.
        progress: called with the share of the work done and the current task.

    Returns:
        The size of the page in bytes.

    Raises:
        TypeError: a model is none of these.
        ValueError: a model cannot be read or scored, or the page cannot be written.

    >>> import tempfile, torch
    >>> logits = 3 * torch.randn(300, 3, generator=torch.Generator().manual_seed(0))
    >>> page = Path(tempfile.mkdtemp()) / "report.html"
    >>> size = write_report({"random": (logits, torch.arange(300) % 3)}, page, calibrators=["temperature"])
    >>> size == page.stat().st_size
    True
    """
    out = Path(out)
    if out.suffix.lower() not in (".html", ".htm"):  # protects other files from being overwritten
        raise ValueError(f"the name of a report must end in .html or .htm, got {out.name!r}")
    check_place(out)
    reading = reading or Reading()
    report_progress = progress or (lambda share, what: None)
    report_progress(0.0, "reading")
    run_data = RunData(None if data_root is None else Path(data_root), reading)
    given = models if isinstance(models, Mapping) else [Path(path) for path in models]
    state = None if monitor is None else read_monitor(Path(monitor))
    inputs = load_inputs(
        given,
        reading,
        input=input,
        class_names=class_names,
        clusters=clusters,
        sample_weight=sample_weight,
        groups=groups,
    )
    sources = [run_data.named(source) for source in inputs]

    def report_fit(done: int, share: float) -> None:
        report_progress(0.1 + 0.6 * (done + share) / len(sources), f"calibrating {sources[done].name}")

    calibrations = [calibrate(source, calibrators, reading, partial(report_fit, i)) for i, source in enumerate(sources)]
    decision = decide(
        sources, calibrations, reading, lambda share: report_progress(0.7 + 0.2 * share, "comparing models")
    )
    report_progress(0.9, "writing")
    name = sources[0].name if len(sources) == 1 else f"{len(sources)} models"
    contents = _contents(
        shortened(title or f"Calibration of {name}"), sources, calibrations, decision, reading, run_data
    )
    contents["monitor"] = None if state is None else monitor_contents(state)
    # The rest of the page is available for the embedded data.
    room = MOST_BYTES - len(_page(contents, []))
    limits = deal([source.rows for source in sources], room - DESCRIPTION * len(sources))
    blocks = [
        embed(
            source.rows,
            source.scanned,
            source.predicted,
            limit,
            fitted=calibration.temperature,
            effect=source.design_effect,
            seed=reading.seed,
        )
        for source, calibration, limit in zip(sources, calibrations, limits, strict=True)
    ]
    for record, (description, _) in zip(contents["runs"], blocks, strict=True):
        record["data"] = description
    page = _page(contents, [text for _, text in blocks])
    with atomic_path(out) as temporary:
        temporary.write_bytes(page)
    return len(page)


def _contents(
    title: str,
    sources: list[ReportInput],
    calibrations: list[Calibration],
    decision: Decision,
    reading: Reading,
    run_data: RunData,
) -> dict[str, Any]:
    images: dict[str, str] = {}  # key -> data URI
    class_rows = max(10, classes.MOST_ROWS // len(sources))
    points = provenance.MOST_POINTS // len(sources)
    positive = sources[0].rows.positive  # the same for all inputs: it follows from the options
    runs: list[dict[str, Any]] = [
        {
            "name": source.name,
            "verdict": source.evaluation.verdict(source.class_names),
            "metrics": tables.calibrated_tables(source, calibration),
            "calibrators": tables.calibrator_table(calibration.comparison),
            "how": calibration.how,
            "advice": calibration.advice,
            "remarks": [shortened(remark, provenance.LONGEST_VALUE) for remark in calibration.remarks],
            "temperature": calibration.temperature,
            "temperatureFrom": calibration.temperature_from,
            **classes.class_table(source, class_rows),
            "mistakes": mistakes_of(source, run_data, images),
            "curves": provenance.curves(source, points),
            "about": provenance.about(source),
            "recipe": provenance.recipe(source),
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
        "glossary": tables.glossary(),
        "selective": figures.selective_table(sources, [run["figures"] for run in runs]),
        "results": results(title, sources, calibrations, decision),
        "recipes": provenance.differences(sources),
        "runs": runs,
        "images": images,
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


def _page(contents: dict[str, Any], values: list[str]) -> bytes:
    settings = contents["settings"]
    scripts = [_resource(name) for name in SCRIPTS]
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    hashes = " ".join(f"'sha256-{digest}'" for digest in digests)
    policy = (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    parts = {
        "policy": html.escape(policy),
        "title": html.escape(contents["title"]),
        "headline": html.escape(contents["headline"]),
        "settings": f"{settings['numBins']} bins, {100 * settings['level']:.4g} % intervals, seed {settings['seed']}",
        "style": _resource("style.css"),
        "contents": as_inert_json(contents),
        "values": "\n".join(
            f'<script type="text/plain" id="values-{i}">{text}</script>' for i, text in enumerate(values)
        ),
        "scripts": "\n".join(f"<script>{script}</script>" for script in scripts),
    }
    # One pass, so that placeholders inside a part are not filled in.
    page = re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _resource("template.html"))
    return page.encode("utf-8", "replace")  # file names may have lone surrogates, which UTF-8 cannot encode


def as_inert_json(contents: object) -> str:
    """Return JSON that is safe inside an HTML script element: no tags, comments or entities.

    >>> as_inert_json("</script><!-- &")
    '"\\\\u003c/script\\\\u003e\\\\u003c!-- \\\\u0026"'
    """
    text = json.dumps(contents, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _resource(name: str) -> str:
    return resources.files("dualfocal.report").joinpath("page", *name.split("/")).read_text(encoding="utf-8")
