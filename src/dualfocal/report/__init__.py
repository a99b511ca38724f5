"""Calibration reports as self-contained HTML pages: :func:`write_report`."""

from dualfocal.report.html import write_report

__all__ = ["write_report"]
