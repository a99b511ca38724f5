"""What mkdocs does beyond its own: pages from other folders, generated pages, links between them, formulas."""

import html
import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).parent))

import generated
import links
import notebooks
import run_pages

# Pages outside docs/ that the navigation names. Files that a page links to are added by themselves.
OTHER_PAGES = (
    *("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "benchmarks/NOTES.md"),
    *("lab/REPLICATION.md", "lab/REPLICATION-20NEWSGROUPS.md", "lab/ERRATA.md", "lab/results/README.md"),
)
sources: dict[str, str] = {}  # path in the site -> path in the repository, of pages that are not generated


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of other folders, what they link to, generated pages and assets; complete the navigation."""
    sources.clear()
    for file in files.documentation_pages():
        sources[file.src_uri] = f"docs/{file.src_uri}"
    for place, text in generated.pages():
        files.append(File.generated(config, place, content=text))
        for path in links.targets(text, place):
            add_file(files, config, path, InclusionLevel.NOT_IN_NAV)
    for asset in sorted((Path(__file__).parent / "assets").iterdir()):
        files.append(File.generated(config, f"assets/{asset.name}", abs_src_path=str(asset)))
    examples = sorted(path for pattern in ("*.md", "*.ipynb") for path in links.ROOT.glob(f"examples/{pattern}"))
    for path in [*OTHER_PAGES, *(str(path.relative_to(links.ROOT)) for path in examples)]:
        add_file(files, config, path)
    waiting = set(sources.values())
    while waiting:  # what is linked is added, and what that links to
        page = waiting.pop()
        text = (links.ROOT / page).read_text(encoding="utf-8") if page.endswith(".md") else ""
        for path in sorted(links.targets(text, page)):
            if add_file(files, config, path, InclusionLevel.NOT_IN_NAV):
                waiting.add(path)
    config.nav = expand(config.nav, files)
    return files


def add_file(files: Files, config: MkDocsConfig, path: str, inclusion: Any = InclusionLevel.UNDEFINED) -> bool:
    """Add a file of the repository to the site, and a page that shows it; return whether it is a new Markdown page."""
    place, source = links.site_path(path), links.ROOT / path
    if source.is_dir() or path.startswith("docs/") or files.get_file_from_path(path) or place == "index.md":
        return False
    if path.endswith(".md"):
        files.append(File.generated(config, place, abs_src_path=str(source), inclusion=inclusion))
        sources[place] = path
        return True
    files.append(File.generated(config, path, abs_src_path=str(source)))
    if path.endswith(".ipynb"):
        for name, content in notebooks.pages(source, place):
            files.append(File.generated(config, name, content=content))
    elif place.endswith(".md") and not files.get_file_from_path(place):
        text = f"# {source.name}\n\n[Download]({source.name})\n\n```python\n{source.read_text(encoding='utf-8')}```\n"
        files.append(File.generated(config, place, content=text, inclusion=inclusion))
    return False


def expand(nav: Any, files: Files) -> Any:
    """Replace `folder/*` in the navigation by the pages of the folder, in the order in which they were added."""
    if isinstance(nav, list):
        return [expand(entry, files) for entry in nav]
    if isinstance(nav, dict):
        return {title: expand(entry, files) for title, entry in nav.items()}
    if not nav.endswith("/*"):
        return nav
    pages = [file for file in files.documentation_pages() if posixpath.dirname(file.src_uri) == nav[:-2]]
    return [file.src_uri for file in pages if file.inclusion != InclusionLevel.NOT_IN_NAV]


def on_page_markdown(markdown: str, page: Page, **kwargs: Any) -> str:
    """Return what readers of the site see: no marks of run_pages.py, and links between pages of the site."""
    source = sources.get(page.file.src_uri)
    if source is None:
        return markdown
    if source.startswith("docs/"):  # guides and concepts come first in the search
        page.meta.setdefault("search", {"boost": 3})
    return links.rewrite(run_pages.visible(markdown), source)


def on_page_content(html: str, page: Page, **kwargs: Any) -> str:
    """Turn formulas into MathML, which browsers show without a script."""
    try:
        return mathml(html)
    except Exception as error:
        raise PluginError(f"{page.file.src_uri}: {error}") from error


def mathml(page: str) -> str:
    r"""Replace what the arithmatex extension marks as a formula by MathML.

    >>> mathml('<span class="arithmatex">\\(p_k\\)</span>')[:48]
    '<math xmlns="http://www.w3.org/1998/Math/MathML"'
    """

    def formula(match: re.Match[str]) -> str:
        display = "block" if match[1] == "div" else "inline"
        result = convert(html.unescape(match[2]).strip(), display=display)
        # Spaces that TeX would set: thin ones around "log", none between a bar and what it encloses.
        space = '<mspace width="0.17em"/>'
        result = re.sub(r"(<mi>(?:log|ln|max|min)</mi>)(?=<m(?:i|sub|sup|row)\b)", rf"\1{space}", result)
        result = re.sub(r"(</m(?:i|sub|sup|row)>)(?=<mi>(?:log|ln|max|min)</mi>)", rf"\1{space}", result)
        return re.sub(r"<mo([^>]*)>(&#x0007C;|\|)</mo>", r'<mo\1 lspace="0" rspace="0">|</mo>', result)

    return re.sub(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', formula, page, flags=re.S)
