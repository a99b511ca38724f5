"""Sheets of images: every pixel is in its row, column and block."""

import io

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image

from dualfocal_lab.plots.samples import sample_sheet


def images(number: int, channels: int = 3, height: int = 4, width: int = 6, seed: int = 0) -> torch.Tensor:
    """Random bytes with 0 and 255, so that the contrast is not stretched."""
    rng = torch.Generator().manual_seed(seed)
    made = torch.randint(256, (number, channels, height, width), dtype=torch.uint8, generator=rng)
    if number:
        made.view(-1)[:2] = torch.tensor([0, 255])
    return made


def sheets(figure: Figure) -> list[np.ndarray]:
    """What is drawn in each block, from 0 to 1."""
    return [np.asarray(axis.images[0].get_array()) for axis in figure.axes]


def cell(sheet: np.ndarray, row: int, column: int, height: int = 4, width: int = 6) -> np.ndarray:
    """One image without its rim, as bytes."""
    top, left = row * (height + 2) + 1, column * (width + 2) + 1
    return 255 * sheet[top : top + height, left : left + width]


def png(figure: Figure, dpi: int = 100) -> np.ndarray:
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=dpi)
    with Image.open(file) as image:
        return np.asarray(image.convert("RGB"))


def test_each_image_is_in_its_row_and_column():
    rows = [images(3, seed=seed) for seed in range(2)]
    [sheet] = sheets(sample_sheet({"": rows}, ["a", "b"]))
    assert sheet.shape == (2 * 6, 3 * 8, 3)
    for row, of_row in enumerate(rows):
        for column, image in enumerate(of_row):
            np.testing.assert_allclose(cell(sheet, row, column), image.permute(1, 2, 0).numpy(), atol=1e-9)


def test_a_rim_of_white_is_around_each_image():
    [sheet] = sheets(sample_sheet({"": [torch.zeros(3, 3, 4, 6)] * 2}, ["a", "b"]))
    assert (sheet[::6] == 1).all()
    assert (sheet[5::6] == 1).all()
    assert (sheet[:, ::8] == 1).all()
    assert (sheet[:, 7::8] == 1).all()
    assert (sheet == 1).mean() == pytest.approx(1 - 4 * 6 / (6 * 8))


def test_blocks_are_side_by_side_each_with_its_title():
    blocks = {"as stored": [images(2, seed=1)], "varied": [images(2, seed=2)]}
    figure = sample_sheet(blocks, ["a"])
    assert [axis.get_title() for axis in figure.axes] == list(blocks)
    for sheet, (of_row,) in zip(sheets(figure), blocks.values(), strict=True):
        np.testing.assert_allclose(cell(sheet, 0, 1), of_row[1].permute(1, 2, 0).numpy(), atol=1e-9)
    figure.draw_without_rendering()
    left, right = (axis.get_position() for axis in figure.axes)
    assert left.x1 < right.x0
    assert (left.y0, left.y1) == pytest.approx((right.y0, right.y1))


def test_one_channel_is_grey():
    [sheet] = sheets(figure := sample_sheet({"": [images(2, channels=1)]}, ["a"]))
    assert sheet.shape == (6, 16)
    np.testing.assert_allclose(cell(sheet, 0, 1), images(2, channels=1)[1, 0].numpy(), atol=1e-9)
    drawn = png(figure)
    assert (drawn == drawn[..., :1]).all()
    assert drawn.min() == 0
    assert len(np.unique(drawn)) > 30


def test_the_darkest_value_is_black_and_the_brightest_white_in_each_block():
    faint = torch.tensor([16.0, 4.0, 7.0, 10.0]).view(1, 1, 1, 4).expand(1, 3, 1, 4)
    blocks = {"faint": [faint, faint[:0]], "negative": [faint - 20, faint[:0]], "flat": [faint * 0 + 9, faint[:0]]}
    faint_sheet, negative, flat = sheets(sample_sheet(blocks, ["a", "b"]))
    for sheet in (faint_sheet, negative):
        np.testing.assert_allclose(sheet[1, 1:5], np.repeat([[1], [0], [0.25], [0.5]], 3, axis=1), atol=1e-6)
    assert np.unique(flat[1, 1:5]).size == 1


def test_a_row_with_fewer_images_ends_in_white():
    for numbers in ((3, 1, 2), (0, 3, 0), (1, 0, 3)):
        rows = [images(number, seed=row) for row, number in enumerate(numbers)]
        [sheet] = sheets(sample_sheet({"": rows}, ["a", "b", "c"]))
        assert sheet.shape == (3 * 6, 3 * 8, 3)
        for row, number in enumerate(numbers):
            empty = [bool((cell(sheet, row, column) == 255).all()) for column in range(3)]
            assert empty == [column >= number for column in range(3)], numbers


def test_blocks_may_have_rows_of_other_lengths():
    first, second = sheets(sample_sheet({"a": [images(1)], "b": [images(4)]}, ["row"]))
    assert first.shape == second.shape == (6, 4 * 8, 3)
    assert (first[:, 8:] == 1).all()


def test_names_stand_beside_their_rows_once():
    figure = sample_sheet({"a": [images(2)] * 3, "b": [images(2)] * 3}, ["one", "two", "three"])
    figure.draw_without_rendering()
    left, right = figure.axes
    assert [label.get_text() for label in left.get_yticklabels()] == ["one", "two", "three"]
    assert [label.get_text() for label in right.get_yticklabels()] == []
    for row, place in enumerate(left.get_yticks()):
        assert row * 6 < place < (row + 1) * 6
    top, middle, bottom = (label.get_window_extent().y0 for label in left.get_yticklabels())
    assert top > middle > bottom  # as the rows are drawn


def test_a_name_is_drawn_verbatim():
    """Not as a formula: matplotlib draws the same picture when it is told not to look for formulas."""
    for name in ("a_b", "$5", "$x_1$", "a^{b", r"a\b", "100 %"):
        figure = sample_sheet({"": [images(2)]}, [name])
        drawn = png(figure, dpi=60)
        figure.axes[0].set_yticklabels([name], fontsize=9, parse_math=False)
        np.testing.assert_array_equal(png(figure, dpi=60), drawn, err_msg=name)


def test_the_picture_has_the_colours_where_they_belong():
    colours = np.array([[255, 0, 0], [0, 255, 0], [0, 0, 255]])
    rows = [torch.tensor(colour).view(1, 3, 1, 1).expand(4, 3, 8, 8) for colour in colours]
    drawn = png(sample_sheet({"left": rows, "right": rows[::-1]}, ["r", "g", "b"]), dpi=60)
    height, width, _ = drawn.shape
    assert (width, height) == (round(60 * (0.55 * 8 + 1.6)), round(60 * (0.55 * 3 + 0.5)))
    left, right = (
        [np.median((half == colour).all(axis=2).nonzero()[0]) for colour in colours]
        for half in (drawn[:, : width // 2], drawn[:, width // 2 + 12 :])
    )
    assert left == sorted(left)
    assert right == left[::-1]
    assert len(set(left)) == 3
