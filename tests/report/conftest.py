"""Pages that several files test."""

from report_pages import folder, pages, runs

__all__ = ["folder", "pages", "runs"]
