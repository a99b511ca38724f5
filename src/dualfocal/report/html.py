"""A calibration report: one HTML page that needs nothing but itself.

Numbers in text and tables come from here, from all samples; what the page computes itself comes from the samples it
carries. Everything that comes from data travels as JSON and is set as text, never as HTML; a Content-Security-Policy
lets no script run but ours, and forbids every request.
"""

import base64
import hashlib
import html
import json
import os
import re
from collections.abc import Callable, Sequence
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

import dualfocal
from dualfocal._files import atomic_path, check_place
from dualfocal.calibrators.comparison import UNCALIBRATED
from dualfocal.report import classes, provenance, tables
from dualfocal.report.calibrated import DEFAULT, Calibration, calibrate
from dualfocal.report.embedded import OCTAVES, STEPS, deal, embed
from dualfocal.report.images import RunData, mistakes_of
from dualfocal.report.inputs import ReportInput, load_inputs, shortened
from dualfocal.runs.source import Reading

MOST_BYTES = 3_900_000  # of a page: under 4 MB, to go by mail
DESCRIPTION = 1500  # bytes that tell how to read the numbers of one subject
MOST_CLASSES = 1000  # in the class filter
SCRIPTS = (
    "vendor/d3.min.js",
    "vendor/plot.umd.min.js",
    "calibration.js",
    "tables.js",
    "charts.js",
    "live.js",
    "page.js",
)

Progress = Callable[[float, str], None]


def write_report(
    inputs: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    title: str | None = None,
    calibrators: Sequence[str] = DEFAULT,
    reading: Reading | None = None,
    data_root: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> int:
    """Write a report on predictions or finished runs; the same input gives the same bytes.

    Args:
        inputs: files of predictions or run folders, each once.
        out: the page.
        title: of the page; by default made of the inputs' names.
        calibrators: names from ``CALIBRATORS``; fitted on the validation part of a run, otherwise cross-fitted.
        reading: which arrays to read, and how to score them.
        data_root: where data sets lie, for the images of mistakes. Nothing is downloaded.
        progress: called with the share of the work done, and what is being done.

    Returns:
        The size of the page in bytes.

    Raises:
        ValueError: an input cannot be read or scored, or the page cannot be written.
    """
    out = Path(out)
    if out.suffix.lower() not in (".html", ".htm"):  # so that nothing else is ever written over
        raise ValueError(f"a report must be called .html or .htm, got {out.name!r}")
    check_place(out)
    reading = reading or Reading()
    tell = progress or (lambda share, what: None)
    tell(0.0, "reading")
    run_data = RunData(None if data_root is None else Path(data_root), reading)
    subjects = [run_data.named(subject) for subject in load_inputs([Path(path) for path in inputs], reading)]

    def tell_fit(done: int, share: float) -> None:
        tell(0.1 + 0.8 * (done + share) / len(subjects), f"calibrating {subjects[done].name}")

    found = [calibrate(subject, calibrators, reading, partial(tell_fit, i)) for i, subject in enumerate(subjects)]
    tell(0.9, "writing")
    name = subjects[0].name if len(subjects) == 1 else f"{len(subjects)} models"
    contents = _contents(shortened(title or f"Calibration of {name}"), subjects, found, reading, run_data)
    # What is written so far has its size; the rest of the page is for the numbers that it computes from.
    room = MOST_BYTES - len(_page(subjects, contents, []))
    limits = deal([subject.rows for subject in subjects], room - DESCRIPTION * len(subjects))
    blocks = [
        embed(subject.rows, subject.seen, subject.predicted, limit, fitted=of.temperature, seed=reading.seed)
        for subject, of, limit in zip(subjects, found, limits, strict=True)
    ]
    for record, (description, _) in zip(contents["runs"], blocks, strict=True):
        record["data"] = description
    page = _page(subjects, contents, [text for _, text in blocks])
    with atomic_path(out) as temporary:
        temporary.write_bytes(page)
    return len(page)


def _contents(
    title: str, subjects: list[ReportInput], found: list[Calibration], reading: Reading, run_data: RunData
) -> dict[str, Any]:
    images: dict[str, str] = {}  # by key, each once
    class_rows = max(10, classes.MOST_ROWS // len(subjects))
    points = provenance.MOST_POINTS // len(subjects)
    positive = subjects[0].rows.positive  # of all of them, or of none: it follows from the options
    runs = [
        {
            "name": subject.name,
            "verdict": subject.evaluation.verdict(),
            "metrics": tables.metric_tables({UNCALIBRATED: subject.evaluation, **of.evaluations}, positive),
            "calibrators": tables.calibrator_table(of.comparison),
            "how": of.how,
            "advice": of.advice,
            "remarks": [shortened(remark, provenance.LONGEST_VALUE) for remark in of.remarks],
            "temperature": of.temperature,
            "temperatureFrom": of.temperature_from,
            **classes.class_table(subject, class_rows),
            "mistakes": mistakes_of(subject, run_data, images),
            "curves": provenance.curves(subject, points),
            "about": provenance.about(subject),
        }
        for subject, of in zip(subjects, found, strict=True)
    ]
    names = {subject.class_names for subject in subjects}
    shared = names.pop() if len(names) == 1 else ()
    why_none = "the inputs have different classes" if not shared else f"there are more than {MOST_CLASSES:,} classes"
    return {
        "title": title,
        "version": dualfocal.__version__,
        "classNames": list(shared) if len(shared) <= MOST_CLASSES else [],
        "noFilter": why_none,
        "positive": positive,
        "settings": {
            "numBins": reading.num_bins,
            "level": reading.level,
            "seed": reading.seed,
            "octaves": OCTAVES,
            "steps": STEPS,
        },
        "summary": tables.summary_table(subjects, found) if len(subjects) > 1 else None,
        "recipes": provenance.differences(subjects),
        "runs": runs,
        "images": images,
    }


def headline(subjects: Sequence[ReportInput]) -> str:
    """The finding: of one model its verdict, of several how many are found miscalibrated."""
    if len(subjects) == 1:
        return subjects[0].evaluation.verdict()
    inferences = [subject.evaluation.inference for subject in subjects]
    count = sum(inference is not None and inference.p_value <= 0.05 for inference in inferences)
    return (
        f"{count} of {len(subjects)} models are found miscalibrated at 5 % (p-values not adjusted for their number); "
        "the verdict on each is below."
    )


def _page(subjects: list[ReportInput], contents: dict[str, Any], values: list[str]) -> bytes:
    asked = contents["settings"]
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
        "headline": html.escape(headline(subjects)),
        "settings": f"{asked['numBins']} bins, intervals of {100 * asked['level']:.4g} %, seed {asked['seed']}",
        "style": _resource("style.css"),
        "contents": as_inert_json(contents),
        "values": "\n".join(
            f'<script type="text/plain" id="values-{i}">{text}</script>' for i, text in enumerate(values)
        ),
        "scripts": "\n".join(f"<script>{script}</script>" for script in scripts),
    }
    # One pass, so that nothing within a part is taken for a place to fill in.
    page = re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _resource("template.html"))
    return page.encode("utf-8", "replace")  # a lone surrogate, of a file name perhaps, has no UTF-8


def as_inert_json(contents: object) -> str:
    """JSON that no HTML parser can see an end of script, a comment or an entity in.

    >>> as_inert_json("</script><!-- &")
    '"\\\\u003c/script\\\\u003e\\\\u003c!-- \\\\u0026"'
    """
    text = json.dumps(contents, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _resource(name: str) -> str:
    return resources.files("dualfocal.report").joinpath("page", *name.split("/")).read_text(encoding="utf-8")
