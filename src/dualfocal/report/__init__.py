"""Calibration reports as self-contained HTML pages."""
