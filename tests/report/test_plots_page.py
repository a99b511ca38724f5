"""The code of docs/plots.md runs, and draws the pictures of that page."""

import re
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
from report_pages import png_size

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.slow
def test_the_page_draws_its_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (DOCS / "plots.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    before = plt.get_fignums()
    try:
        exec("\n".join(re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)), {})
    finally:
        for number in set(plt.get_fignums()) - set(before):
            plt.close(number)
    drawn = {file.name: png_size(file.read_bytes()) for file in tmp_path.glob("*.png")}
    assert drawn == {file: png_size((DOCS / file).read_bytes()) for file in re.findall(r'<img src="([^"]+)"', page)}
