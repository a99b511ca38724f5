"""The pictures of docs/concepts: each is drawn by docs/tools/figures.py, shown on a page, and described in words."""

import re
import sys
from pathlib import Path

import pytest
from matplotlib.figure import Figure

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs" / "tools"))

import figures  # noqa: E402

PAGES = "\n".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "concepts").glob("*.md"))


def test_every_picture_is_drawn_by_the_script_and_shown_on_a_page() -> None:
    shown = re.findall(r'<img src="([\w-]+)\.png"', PAGES)
    assert sorted(shown) == sorted(figures.FIGURES) == sorted(file.stem for file in figures.FOLDER.glob("*.png"))


def test_every_picture_has_an_alternative_text_of_a_sentence() -> None:
    texts = re.findall(r'<img src=.*? alt="(.*?)"', PAGES)
    assert len(texts) == len(figures.FIGURES)
    assert all(len(text.split()) >= 10 for text in texts)


def test_a_named_picture_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "FOLDER", tmp_path)
    monkeypatch.setitem(figures.FIGURES, "empty", Figure)
    figures.main(["empty", "why-rival"])
    assert sorted(file.name for file in tmp_path.iterdir()) == ["empty.png", "why-rival.png"]


def test_an_unknown_picture_is_an_error_that_lists_the_others() -> None:
    with pytest.raises(SystemExit, match="no picture mine; there are five-meaning, "):
        figures.main(["mine"])
