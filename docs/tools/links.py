"""Links between files of the repository, as GitHub shows them, and the same links between pages of the site.

In the repository, `docs/speed.md` links to `../benchmarks/results/loss_cpu.csv`. In the site, the files of `docs/` are
at the top, those of other folders in folders of the same name, and tables, notebooks and scripts are shown as pages.
"""

import posixpath
import re
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r'(?P<before>\]\(|(?:src|href|srcset)=")(?P<target>[^)"\s#]+)(?P<anchor>#[^)"\s]*)?')


def site_path(path: str) -> str:
    """Return where the site has a file or folder of the repository; with an anchor if it is a part of a page.

    >>> site_path("docs/speed.md"), site_path("benchmarks/results/loss_cpu.csv"), site_path("README.md")
    ('speed.md', 'benchmarks/results/loss_cpu.md', 'index.md')
    """
    special = {
        "README.md": "index.md",
        "LICENSE": "LICENSE.md",
        "benchmarks": "speed.md",
        "examples": "examples/README.md",
    }
    if path in special:
        return special[path]
    if path.startswith("lab/results/") and not posixpath.splitext(path)[1]:
        return f"lab/results/runs.md#{path.removeprefix('lab/results/').replace('/', '-').lower()}"
    if re.fullmatch(r"benchmarks/results/\w+\.csv|.*\.ipynb|examples/\w+\.py", path):
        return posixpath.splitext(path)[0] + ".md"
    return path.removeprefix("docs/")


def targets(markdown: str, page: str) -> set[str]:
    """Return the files and folders of the repository that a page links to. `page` is its path in the repository."""
    return {path for link in LINK.finditer(markdown) if (path := _repository_path(link, page))}


def rewrite(markdown: str, page: str) -> str:
    """Return the page with links that lead to the same places in the site."""

    def relative(link: re.Match[str]) -> str:
        path = _repository_path(link, page)
        if path is None:
            return link[0]
        place, _, anchor = site_path(path).partition("#")
        place = posixpath.relpath(place, posixpath.dirname(site_path(page)) or ".")
        if link["before"] != "](":  # mkdocs does not look into HTML
            place = re.sub(r"(README|index)\.md$", "index.html", place)
            place = re.sub(r"\.md$", ".html", place)
        return f"{link['before']}{place}{f'#{anchor}' if anchor else link['anchor'] or ''}"

    return outside_code(markdown, lambda text: LINK.sub(relative, text))


def outside_code(markdown: str, change: Callable[[str], str]) -> str:
    """Apply a change to the text of a page, but not to its fenced blocks and code spans."""
    parts = re.split(r"(^```.*?^```$|`[^`\n]+`)", markdown, flags=re.M | re.S)
    return "".join(part if i % 2 else change(part) for i, part in enumerate(parts))


def _repository_path(link: re.Match[str], page: str) -> str | None:
    target = link["target"]
    if "://" in target or target.startswith(("/", "mailto:")):
        return None
    path = posixpath.normpath(posixpath.join(posixpath.dirname(page), target))
    return path if (ROOT / path).exists() else None
