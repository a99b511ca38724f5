"""Custom data sets in folders of images."""

import io

import numpy as np
import pytest
import torch
from official import encoded, saying, write_folder
from PIL import Image

from dualfocal_lab.data import load_data


def flat(each=10, side=6, seed=0):
    """Pixels (N, height, width, 3) in the order in which they should be read, and files of two classes."""
    pixels = np.random.default_rng(seed).integers(0, 256, (2 * each, side, side, 3), dtype=np.uint8)
    names = [f"{label}/{i:02d}.png" for label in ("cat", "dog") for i in range(each)]
    return pixels, {name: encoded(image) for name, image in zip(names, pixels, strict=True)}


def by_part(parts):
    """One image of each class and part; its value is its place among all."""
    names = [f"{part}/{label}/x.png" for part in parts for label in ("cat", "dog")]
    return {name: encoded(np.full((6, 6, 3), i, np.uint8)) for i, name in enumerate(names)}


@pytest.fixture
def folder(tmp_path):
    """Folder of the images; decoded images go to the folder ``kept`` beside it."""
    return tmp_path / "pets"


def load(folder, **options):
    return load_data(str(folder), folder.parent / "kept", **options)


def values(data, part):
    """The values of images that have only one."""
    return data.part(part)[0][:, 0, 0, 0].tolist()


def channels_first(pixels):
    return torch.from_numpy(pixels.copy()).permute(0, 3, 1, 2)


# Files, classes and splits


def test_a_folder_by_class_gives_pixels_labels_and_names_whatever_its_spelling(folder, monkeypatch):
    pixels, files = flat()
    write_folder(folder, files | {"dog/._00.png": b"\0\5\x16\7\0\2\0\0Mac OS X"})  # which macOS leaves behind
    for name in (f"{folder}", f"{folder}/", f"{folder}/../pets", "pets", "./pets/", "."):
        monkeypatch.chdir(folder if name == "." else folder.parent)
        data = load_data(name, folder.parent / "kept")
        assert torch.equal(data.inputs, channels_first(pixels)), name
        assert data.target.tolist() == [0] * 10 + [1] * 10
        assert (data.name, data.class_names) == ("pets", ("cat", "dog")), name


def test_a_split_is_drawn_where_the_folder_has_none(folder):
    write_folder(folder, flat(each=50)[1])
    splits = load(folder).splits
    sizes = {part: len(indices) for part, indices in splits.items()}
    assert sizes == {"train": 72, "val": 8, "test": 20}  # 20 % of 100, then 10 % of the rest
    assert sorted(torch.cat(list(splits.values())).tolist()) == list(range(100))
    again, other, more = load(folder).splits, load(folder, split_seed=2).splits, load(folder, val2_size=5).splits
    assert all(torch.equal(again[part], splits[part]) for part in splits)
    assert not torch.equal(other["test"].sort().values, splits["test"].sort().values)
    assert torch.equal(more["val"], splits["val"])
    assert torch.equal(more["test"], splits["test"])
    assert len(more["val2"]) == 5
    assert set(load(folder, val_size=0, test_size=0).splits) == {"train"}


def test_folders_of_parts_are_the_split_and_other_parts_are_drawn_from_train(folder):
    for val in ("val", "valid", "validation"):
        write_folder(folder / val, by_part(["train", val, "test"]))
        data = load(folder / val)
        assert (values(data, "train"), values(data, "val"), values(data, "test")) == ([0, 1], [2, 3], [4, 5])
        assert data.target[data.splits["val"]].tolist() == [0, 1]
        assert data.class_names == ("cat", "dog")
        with pytest.raises(ValueError, match=r"val2_size .*validation split"):
            load(folder / val, val2_size=1)
    folder = folder.parent / "others"
    files = {f"{part}/{name}": content for part in ("train", "test") for name, content in flat(each=10)[1].items()}
    write_folder(folder, files)
    splits = load(folder, val_size=4).splits
    assert splits["test"].tolist() == list(range(20))  # "test" is read before "train"
    assert len(splits["val"]) == 4
    assert sorted([*splits["train"].tolist(), *splits["val"].tolist()]) == list(range(20, 40))


BLACK = encoded(np.zeros((6, 6, 3), np.uint8))


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (by_part(["val", "test"]), ("train must have every class", "cat, dog")),
        (by_part(["train", "test"]) | {"cover.png": BLACK}, ("train/CLASS, val/CLASS or test/CLASS", "cover.png")),
        (by_part(["train", "test"]) | {"extra/cat/x.png": BLACK}, ("train/CLASS", "extra/cat/x.png")),
        (by_part(["train", "test"]) | {"sorted/x.png": BLACK}, ("train/CLASS", "sorted/x.png")),
        ({"a.png": b"", "cat/a.png": b"", "dog/a.png": b""}, ("must lie in the folder of a class", "a.png")),
        ({}, ("at least two classes", ".png")),
        ({"cat/a.png": b""}, ("at least two classes", ".png")),
        ({"cat/a.txt": b"", "dog/b.doc": b""}, ("at least two classes", ".png")),
        (
            flat()[1] | {"dog/odd.png": encoded(np.zeros((7, 5, 3), np.uint8))},
            ("dog/odd.png has 7 x 5", "6 x 6", "size"),
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_a_folder_that_is_no_data_set_is_refused(files, words, folder):
    folder.mkdir()
    write_folder(folder, files)
    with pytest.raises(ValueError, match=saying(folder, *words)):
        load(folder)


def test_a_damaged_image_is_named(folder):
    for content in (b"", b"a text", BLACK[:-30]):
        write_folder(folder, flat()[1] | {"dog/bad.png": content})
        with pytest.raises(ValueError, match=saying("pets/dog/bad.png", "cannot be read as an image")):
            load(folder)


def test_other_files_are_ignored_and_deeper_folders_belong_to_their_class(folder):
    write_folder(folder, by_part(["a", "b"]) | {"a/cat/notes.txt": b"x", "labels.csv": b"x", "b/.DS_Store": b"x"})
    data = load(folder, test_size=0, val_size=0)
    assert data.class_names == ("a", "b")
    assert values(data, "train") == [0, 1, 2, 3]


# Pixels


def test_images_of_all_formats_and_modes_become_colours(folder):
    colours = np.zeros((6, 6, 3), np.uint8)
    colours[..., 0], colours[..., 1], colours[..., 2] = 200, 100, 50
    alpha = np.dstack([colours, np.full((6, 6), 128, np.uint8)])
    palette = io.BytesIO()
    Image.fromarray(colours).convert("P", palette=Image.Palette.ADAPTIVE).save(palette, "PNG")
    files = {f"a/{i}{suffix}": encoded(colours, suffix) for i, suffix in enumerate([".bmp", ".tif", ".ppm", ".png"])}
    files |= {"a/4.PNG": encoded(colours), "a/5.webp": encoded(colours, ".webp", lossless=True)}
    files |= {"b/0.png": encoded(alpha), "b/1.png": palette.getvalue(), "b/2.png": encoded(colours[..., 1])}
    write_folder(folder, files)
    images = load(folder, val_size=0, test_size=0).inputs
    expected = torch.tensor([[200, 100, 50]] * 8 + [[100, 100, 100]], dtype=torch.uint8)
    assert torch.equal(images, expected[..., None, None].expand(-1, 3, 6, 6))


def test_grey_images_of_16_bits_are_refused(folder):
    deep = [encoded(np.full((6, 6), value, np.uint16)) for value in (0, 10_000, 40_000, 65_535)]
    write_folder(folder, {f"{label}/{i}.png": content for label in "ab" for i, content in enumerate(deep)})
    for channels in (1, 3):
        with pytest.raises(ValueError, match="more than 8 bits"):
            load(folder, val_size=0, test_size=0, channels=channels)


def test_one_channel_is_grey_by_the_usual_weights(folder):
    colours = {"a/0": (255, 0, 0), "a/1": (0, 255, 0), "b/0": (0, 0, 255), "b/1": (90, 90, 90)}
    files = {f"{name}.png": encoded(np.full((4, 4, 3), colour, np.uint8)) for name, colour in colours.items()}
    data = load(write_folder(folder, files), channels=1, val_size=0, test_size=0)
    assert data.inputs.shape == (4, 1, 4, 4)
    assert data.inputs[:, 0, 0, 0].tolist() == [76, 150, 29, 90]


def test_size_scales_an_image_until_it_covers_the_square_and_keeps_its_middle(folder):
    rng = np.random.default_rng(0)
    wide, high = (rng.integers(0, 256, (*shape, 3), dtype=np.uint8) for shape in [(10, 20), (18, 10)])
    twice = np.kron(rng.integers(0, 256, (10, 10, 1), dtype=np.uint8), np.ones((2, 2, 3), np.uint8))
    files = {"a/wide.png": wide, "a/high.png": high, "b/twice.png": twice, "b/ones.png": np.ones((3, 3, 3), np.uint8)}
    write_folder(folder, {name: encoded(image) for name, image in files.items()})
    high_, wide_, ones_, twice_ = load(folder, size=10, val_size=0, test_size=0).inputs.permute(0, 2, 3, 1).numpy()
    assert np.array_equal(wide_, wide[:, 5:15])
    assert np.array_equal(high_, high[4:14])
    assert np.array_equal(ones_, np.ones((10, 10, 3)))
    inner, plain = twice_[1:-1, 1:-1].astype(int), twice[::2, ::2][1:-1, 1:-1].astype(int)
    assert np.corrcoef(inner.flatten(), plain.flatten())[0, 1] > 0.8


def test_images_are_turned_by_their_exif_orientation(folder):
    pixels = np.random.default_rng(0).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    turns = {1: 0, 3: 2, 6: -1, 8: 1}
    files = {"b/0.png": encoded(pixels)}
    for orientation in turns:
        exif = Image.Exif()
        exif[0x0112] = orientation
        files[f"a/{orientation}.png"] = encoded(pixels, exif=exif)
    data = load(write_folder(folder, files), val_size=0, test_size=0)
    expected = np.stack([*(np.rot90(pixels, turn) for turn in turns.values()), pixels])
    assert torch.equal(data.inputs, channels_first(expected))


def test_normalisation_is_by_mean_and_std_of_the_training_part_only(folder):
    pixels, files = flat(each=20)
    write_folder(folder, files)
    data = load(folder)
    train = pixels[data.splits["train"].numpy()] / 255
    expected = (pixels / 255 - train.mean((0, 1, 2))) / train.std((0, 1, 2))
    torch.testing.assert_close(data.encoder(data.inputs), channels_first(expected).float())
    assert not np.allclose(train.mean((0, 1, 2)), (pixels / 255).mean((0, 1, 2)), atol=1e-5)


def test_a_constant_channel_is_only_shifted(folder):
    pixels, _ = flat()
    pixels[..., 1] = 51
    names = [f"{label}/{i}.png" for label in "ab" for i in range(10)]
    write_folder(folder, {name: encoded(image) for name, image in zip(names, pixels, strict=True)})
    data = load(folder)
    assert data.encoder(data.inputs)[:, 1].abs().max() < 1e-5
    assert data.encoder(torch.full((1, 3, 6, 6), 102, dtype=torch.uint8))[:, 1].mean().item() == pytest.approx(0.2)


# Options and the cache


def test_training_images_are_augmented_only_on_request(folder):
    write_folder(folder, flat()[1])
    assert load(folder).augment is None
    cases = [
        ({"padding": 2}, (2, False)),
        ({"flip": True}, (0, True)),
        ({"padding": 1, "flip": True}, (1, True)),
    ]
    for options, expected in cases:
        augment = load(folder, **options).augment
        assert (augment.padding, augment.flip) == expected, options


def test_decoded_images_are_cached_by_options_and_read_anew_when_a_file_changes(folder):
    pixels, files = flat()
    write_folder(folder, files)
    shares = []
    for _ in range(2):
        assert load(folder, progress=shares.append).inputs.shape == (20, 3, 6, 6)
        assert load(folder, size=3, progress=shares.append).inputs.shape == (20, 3, 3, 3)
        assert load(folder, channels=1, progress=shares.append).inputs.shape == (20, 1, 6, 6)
    assert shares == [1.0] * 3
    (folder / "cat/00.png").rename(folder / "dog/99.png")
    data = load(folder)
    assert torch.equal(data.inputs[-1], torch.from_numpy(pixels[0]).permute(2, 0, 1))
    assert data.target.tolist() == [0] * 9 + [1] * 11
    assert len(list((folder.parent / "kept" / "decoded").iterdir())) == 3
    assert {file.name for file in folder.iterdir()} == {"cat", "dog"}


def test_wrong_options_are_refused(folder):
    write_folder(folder, flat()[1])
    cases = [
        ({"channels": 2}, "channels must be 1 or 3, got 2"),
        ({"size": 0}, "size must be an integer from 1 to 8192, got 0"),
        ({"size": 2.5}, "size must be an integer from 1 to 8192, got 2.5"),
        ({"test_size": 20}, "test_size must leave some of the 20 samples"),
        ({"val_size": 16}, "val2_size must leave some of the 16"),
        ({"val_size": -1}, "val_size must be a number of samples"),
        ({"padding": -1}, "padding must be"),
        ({"layout": "NHWC"}, "has the options size, channels"),
    ]
    for options, words in cases:
        with pytest.raises(ValueError, match=words):
            load(folder, **options)
