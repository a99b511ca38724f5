"""The documentation that `make docs` has built into site/: its links, and every page in a browser, opened from disk."""

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from chromium import FLAGS, find_chromium

SITE = Path(__file__).parents[2] / "site"
# The report is tested in tests/browser; links of the page for missing pages start at the root of a server.
PAGES = sorted(page for page in SITE.rglob("*.html") if page.name not in ("404.html", "cifar10-report.html"))
pytestmark = pytest.mark.skipif(not PAGES, reason="no site/: run make docs")


class Links(HTMLParser):
    """The ids of a page, and all that it links to."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.targets: set[str] = set()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name == "id" and value:
                self.ids.add(value)
            elif name in ("href", "src") and value:
                self.targets.add(value)


def test_links_and_anchors_lead_somewhere() -> None:
    links = {page: Links(page) for page in PAGES}
    broken = []
    for page, linked in links.items():
        for target in linked.targets:
            parts = urlsplit(target)
            if parts.scheme in ("http", "https", "mailto", "data"):
                continue
            other = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            exists = other.is_file() if other.suffix else (other / "index.html").is_file()
            anchor = unquote(parts.fragment)
            missing = anchor and other in links and anchor not in links[other].ids | {"__consent", "__search"}
            if not exists or missing:
                broken.append(f"{page.relative_to(SITE)}: {target}")
    assert broken == []


def test_pages_load_nothing_from_another_host() -> None:
    loaded = re.compile(r"<(?:script|img|iframe|source)[^>]+src=\"(?:https?:)?//|<link[^>]+href=\"(?:https?:)?//")
    assert [page.name for page in PAGES if loaded.search(page.read_text(encoding="utf-8"))] == []


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    executable = find_chromium()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=executable, headless=True, args=FLAGS)
        yield started
        started.close()


class Tab:
    """A tab without network, and what went wrong in it."""

    def __init__(self, browser: Any) -> None:
        self.page = browser.new_context(offline=True).new_page()
        self.page.set_default_timeout(20_000)
        self.problems: list[str] = []
        self.page.on("console", lambda message: self.problems.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.problems.append(f"thrown: {error}"))
        self.page.on("requestfailed", lambda request: self.problems.append(f"failed: {request.url}"))
        self.page.on("request", self._note_host)

    def _note_host(self, request: Any) -> None:
        if not request.url.startswith((SITE.as_uri(), "data:", "about:", "blob:")):
            self.problems.append(f"asked for: {request.url}")

    def show(self, width: int, scheme: str) -> None:
        self.page.set_viewport_size({"width": width, "height": 900})
        self.page.emulate_media(color_scheme=scheme)


IMAGES_WITHOUT_TEXT_OR_CONTENT = """
async () => {
    const images = [...document.querySelectorAll(".md-content img")]
    images.forEach((image) => (image.loading = "eager"))
    await Promise.all(images.map((image) => image.decode().catch(() => null)))
    return images.filter((image) => !image.alt || !image.naturalWidth).map((image) => image.src)
}
"""
WIDER_THAN_THE_WINDOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


def test_every_page_opens_on_a_desk_and_on_a_phone_light_and_dark(browser: Any) -> None:
    tab = Tab(browser)
    problems = {}
    for page in PAGES:
        tab.problems = []
        tab.show(1280, "light")
        tab.page.goto(page.as_uri())
        tab.problems += [
            f"no picture or no text: {image}" for image in tab.page.evaluate(IMAGES_WITHOUT_TEXT_OR_CONTENT)
        ]
        for width, scheme, name in ((1280, "light", "default"), (390, "light", "default"), (390, "dark", "slate")):
            tab.show(width, scheme)
            tab.page.wait_for_selector(f'body[data-md-color-scheme="{name}"]')
            if (excess := tab.page.evaluate(WIDER_THAN_THE_WINDOW)) > 0:
                tab.problems.append(f"{excess} pixels wider than {width}")
        if not tab.page.inner_text("h1"):
            tab.problems.append("no heading")
        if tab.problems:
            problems[str(page.relative_to(SITE))] = tab.problems
    assert problems == {}


def test_formulas_are_mathml_that_the_browser_lays_out(browser: Any) -> None:
    tab = Tab(browser)
    tab.page.goto((SITE / "api" / "losses.html").as_uri())
    heights = tab.page.evaluate(
        "[...document.querySelectorAll('math')].map((math) => math.getBoundingClientRect().height)"
    )
    assert len(heights) >= 8
    assert min(heights) > 4  # a single "r" is 8 pixels high, or a little more, depending on the font
    assert not any("arithmatex" in page.read_text(encoding="utf-8") for page in PAGES)


@pytest.mark.parametrize(
    ("query", "place"),
    [
        ("noise floor", r"(concepts/.*|evaluate)\.html"),
        ("DualFocalLoss", r"api/losses\.html(#dualfocal\.losses\.DualFocalLoss)?"),
        ("temperature scaling", r"(calibrate|concepts/.*|api/calibrators)\.html"),
    ],
)
def test_search_finds_the_page(browser: Any, query: str, place: str) -> None:
    tab = Tab(browser)
    tab.show(1280, "light")
    tab.page.goto((SITE / "index.html").as_uri())
    tab.page.click("input.md-search__input")
    tab.page.wait_for_selector(".md-search-result__meta:has-text('Type to start')")
    tab.page.locator("input.md-search__input").press_sequentially(query)
    tab.page.wait_for_selector(".md-search-result__item a")
    targets = tab.page.eval_on_selector_all(
        ".md-search-result__item a", "links => links.slice(0, 4).map((a) => a.href)"
    )
    places = [target.removeprefix(f"{SITE.as_uri()}/").split("?")[0] for target in targets]
    assert [one for one in places if re.match(place, one)], places
    assert tab.problems == []
