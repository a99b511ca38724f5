"""A browser, and pages for it to open."""

from collections.abc import Iterator

import pytest
from chromium import Tab, running
from report_pages import folder, pages, runs

__all__ = ["browser", "folder", "pages", "runs"]


@pytest.fixture(scope="module")  # not longer: its event loop would be in the way of other tests
def browser() -> Iterator[Tab]:
    with running() as tab:
        yield tab
