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
from typing import Any, Unpack

from dualfocal.calibrators import CALIBRATORS
from dualfocal.files import atomic_path, check_place
from dualfocal.metrics.arrays import Array
from dualfocal.metrics.monitor.state_file import read_monitor
from dualfocal.metrics.samples import SampleOptions
from dualfocal.predictions import Reading
from dualfocal.report.calibrated import calibrate
from dualfocal.report.contents import report_contents
from dualfocal.report.decision import decide
from dualfocal.report.embedded import deal, embed
from dualfocal.report.inputs import Model, load_inputs
from dualfocal.report.names import shortened
from dualfocal.tables import quantity

MOST_BYTES = 3_900_000  # size limit of a page: under 4 MB, to fit in a mail
DESCRIPTION = 1500  # bytes of the description of the embedded data of one input
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
    "evidence.js",
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
    groups: Array | None = None,
    title: str | None = None,
    calibrators: Sequence[str] = tuple(CALIBRATORS),
    reading: Reading | None = None,
    monitor: str | os.PathLike[str] | None = None,
    progress: ReportProgress | None = None,
    **options: Unpack[SampleOptions],
) -> int:
    """Write a report on predictions or finished runs; the same models give the same bytes.

    Args:
        models: name on the page -> ``(logits, target)``, :class:`~dualfocal.metrics.Samples`, a file of predictions, or
            the folder of a finished run; or a list of files and folders, without duplicates, which are named by their
            paths.
        out: path of the page, ending in .html or .htm.
        groups: group of each sample of the arrays: each group is evaluated; for files, see ``reading``.
        title: title of the page (default: made from the names of the inputs).
        calibrators: names from ``CALIBRATORS``; fitted on the validation split of a run, otherwise cross-validated.
        reading: which arrays of files to read, also ``cluster``, ``weight`` and ``group``, and how to score all
            models: ``num_bins``, ``ignore_index``, ``binary``, ``level``, ``seed``.
        monitor: state file of ``dualfocal monitor``, whose verdict and history are shown.
        progress: called with the share of the work done and the current task.
        **options: what arrays mean, see :meth:`~dualfocal.metrics.Samples.from_arrays`; for files, see ``reading``.

    Returns:
        The size of the page in bytes.

    Raises:
        TypeError: a model is none of these.
        ValueError: a model cannot be read or scored, or the page cannot be written.
        IndexError: a target is not a class index.

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
    given = models if isinstance(models, Mapping) else [Path(path) for path in models]
    state = None if monitor is None else read_monitor(Path(monitor))
    if state is not None and not state.monitor.history:
        raise ValueError(f"{monitor}: has no samples yet: add some with dualfocal monitor {monitor} FILE")
    sources = load_inputs(given, reading, groups=groups, options=options)

    def report_fit(done: int, share: float) -> None:
        report_progress(0.1 + 0.6 * (done + share) / len(sources), f"calibrating {sources[done].name}")

    calibrations = [calibrate(source, calibrators, reading, partial(report_fit, i)) for i, source in enumerate(sources)]
    decision = decide(
        sources, calibrations, reading, lambda share: report_progress(0.7 + 0.2 * share, "comparing models")
    )
    report_progress(0.9, "writing")
    name = sources[0].name if len(sources) == 1 else f"{len(sources)} models"
    contents = report_contents(
        shortened(title or f"Calibration of {name}"), sources, calibrations, decision, reading, state
    )
    # The rest of the page is available for the embedded data.
    room = MOST_BYTES - len(_page(contents, []))
    limits = deal([source.samples for source in sources], room - DESCRIPTION * len(sources))
    blocks = [
        embed(
            source.samples,
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


def _page(contents: dict[str, Any], values: list[str]) -> bytes:
    settings = contents["settings"]
    bins = quantity(settings["numBins"], "bin")
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
        "settings": f"{bins}, {100 * settings['level']:.4g} % intervals, seed {settings['seed']}",
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
