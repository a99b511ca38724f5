"""Write ERRATA.md, fill the generated parts of the pages about the replication, and draw its pictures.

python lab/tools/replication_pages.py

Run it after a new run was put into results/. A generated part stands between `<!-- generated: NAME -->` and
`<!-- end of NAME -->`; the text around it is written by hand, and tests/test_replication_report.py checks what it says.
"""

import re
from collections.abc import Callable
from pathlib import Path

import replication_tables as tables
import replication_texts as texts
from errata_page import errata_page
from replication_runs import runs_table
from replication_tables import ROOT, Report

from dualfocal_lab.paper.replication_figures import draw_replication

PICTURES = ROOT / "lab" / "replication"
PAGES = ("lab/REPLICATION.md", "lab/REPLICATION-20NEWSGROUPS.md", "lab/results/README.md", "README.md")
PARTS: dict[str, Callable[[Report], str]] = {
    "state": tables.state,
    "claims": tables.claims_table,
    "losses": tables.losses_table,
    "differences": tables.differences_table,
    "epochs": tables.epochs_table,
    "noise": tables.shift_table,
    "controls": lambda report: tables.markdown(report.decided.controls_table()),
    "precision": tables.precision_table,
    "verification": tables.verification,
    "cost": tables.cost,
    "numbers": tables.numbers_table,
    "missing": tables.missing,
    "headline": tables.headline,
    "runs": runs_table,
    "texts-claims": lambda report: texts.claims_table(),
    "texts-headline": lambda report: texts.headline(),
    "texts-row": lambda report: texts.row_table(),
    "texts-rules": lambda report: texts.rules_table(),
    "texts-spread": lambda report: texts.spread_table(),
    "texts-controls": lambda report: texts.controls_table(),
    "texts-numbers": lambda report: texts.numbers_table(),
}
MARKED = re.compile(r"(<!-- generated: (?P<name>[\w-]+) -->\n).*?(<!-- end of (?P=name) -->)", re.S)


def filled(text: str, report: Report) -> str:
    """Return a page with its generated parts.

    Raises:
        ValueError: a part is unknown, or its end is missing.
    """
    opened = re.findall(r"<!-- generated: ([\w-]+) -->", text)
    if opened != [part["name"] for part in MARKED.finditer(text)]:
        raise ValueError(f"each of {', '.join(opened)} must end with <!-- end of NAME -->")
    if unknown := sorted(set(opened) - PARTS.keys()):
        raise ValueError(f"unknown parts {', '.join(unknown)}; there are {', '.join(PARTS)}")
    return MARKED.sub(lambda part: f"{part[1]}{PARTS[part['name']](report)}\n{part[3]}", text)


def draw(report: Report, folder: Path) -> list[Path]:
    """Draw the pictures of the report into a folder."""
    return draw_replication(report.runs, report.decided, folder, logs=tables.LOGS, logits=tables.LOGITS)


def main() -> None:
    """Write the pages and the pictures."""
    (ROOT / "lab" / "ERRATA.md").write_text(errata_page(), encoding="utf-8")
    report = Report.read()
    for page in PAGES:
        path = ROOT / page
        path.write_text(filled(path.read_text(encoding="utf-8"), report), encoding="utf-8")
        print(page)
    for picture in [*draw(report, PICTURES), texts.draw()]:
        print(picture.relative_to(ROOT))


if __name__ == "__main__":
    main()
