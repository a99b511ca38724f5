"""A user's own data: folders of images, and ``.npz`` files."""

import gc
import io
import os
import warnings

import numpy as np
import pytest
import torch
from official import encoded, saying, some_images, write_folder
from PIL import Image

from dualfocal.data import load_data


# ---- folders of images ---------------------------------------------------------------------------------------
def flat(each=10, side=6, seed=0):
    """Pixels (N, height, width, 3) in the order in which they should be read, and files of two classes."""
    pixels = np.random.default_rng(seed).integers(0, 256, (2 * each, side, side, 3), dtype=np.uint8)
    names = [f"{label}/{i:02d}.png" for label in ("cat", "dog") for i in range(each)]
    return pixels, {name: encoded(of) for name, of in zip(names, pixels, strict=True)}


def by_part(parts):
    """One image of each class and part, its value being its place among all."""
    names = [f"{part}/{label}/x.png" for part in parts for label in ("cat", "dog")]
    return {name: encoded(np.full((6, 6, 3), i, np.uint8)) for i, name in enumerate(names)}


@pytest.fixture
def folder(tmp_path):
    """Of the images; the folder ``kept`` beside it is for what is decoded."""
    return tmp_path / "pets"


def load(folder, **options):
    return load_data(str(folder), folder.parent / "kept", **options)


def values(data, part):
    """Of images of one value."""
    return data.part(part)[0][:, 0, 0, 0].tolist()


def test_a_folder_by_class_gives_the_pixels_the_labels_and_the_names(folder):
    pixels, files = flat()
    write_folder(folder, files)
    data = load(folder)
    assert torch.equal(data.inputs, torch.from_numpy(pixels).permute(0, 3, 1, 2))
    assert data.target.tolist() == [0] * 10 + [1] * 10
    assert (data.name, data.class_names) == ("pets", ("cat", "dog"))


@pytest.mark.parametrize("name", ["{}/", "{}/../pets", "pets", "./pets/", "."])
def test_a_folder_may_be_named_in_any_way(name, folder, monkeypatch):
    pixels, files = flat()
    write_folder(folder, files)
    monkeypatch.chdir(folder if name == "." else folder.parent)
    data = load_data(name.format(folder), folder.parent / "kept")
    assert torch.equal(data.inputs, torch.from_numpy(pixels).permute(0, 3, 1, 2))


def test_a_split_is_drawn_where_the_folder_has_none(folder):
    write_folder(folder, flat(each=50)[1])
    splits = load(folder).splits
    assert {part: len(of) for part, of in splits.items()} == {"train": 72, "val": 8, "test": 20}  # of 100: .2, then .1
    assert sorted(torch.cat(list(splits.values())).tolist()) == list(range(100))
    again, other, more = load(folder).splits, load(folder, split_seed=2).splits, load(folder, val2_size=5).splits
    assert all(torch.equal(again[part], splits[part]) for part in splits)
    assert not torch.equal(other["test"].sort().values, splits["test"].sort().values)
    assert torch.equal(more["val"], splits["val"])
    assert torch.equal(more["test"], splits["test"])
    assert len(more["val2"]) == 5
    assert set(load(folder, val_size=0, test_size=0).splits) == {"train"}


@pytest.mark.parametrize("val", ["val", "valid", "validation"])
def test_folders_of_parts_are_the_split(val, folder):
    write_folder(folder, by_part(["train", val, "test"]))
    data = load(folder)
    assert (values(data, "train"), values(data, "val"), values(data, "test")) == ([0, 1], [2, 3], [4, 5])
    assert data.target[data.splits["val"]].tolist() == [0, 1]
    assert data.class_names == ("cat", "dog")
    with pytest.raises(ValueError, match=r"val2_size .*validation split"):
        load(folder, val2_size=1)


def test_parts_that_have_no_folder_are_drawn_from_train(folder):
    files = {f"{part}/{name}": content for part in ("train", "test") for name, content in flat(each=10)[1].items()}
    write_folder(folder, files)
    splits = load(folder, val_size=4).splits
    assert splits["test"].tolist() == list(range(20))  # "test" is read before "train"
    assert len(splits["val"]) == 4
    assert sorted([*splits["train"].tolist(), *splits["val"].tolist()]) == list(range(20, 40))


def test_parts_without_train_are_refused(folder):
    write_folder(folder, by_part(["val", "test"]))
    with pytest.raises(ValueError, match=saying(folder, "train must have every class", "cat, dog")):
        load(folder)


@pytest.mark.parametrize("stray", ["cover.png", "extra/cat/x.png", "sorted/x.png"])
def test_an_image_beside_the_folders_of_parts_does_not_make_them_classes(stray, folder):
    write_folder(folder, by_part(["train", "test"]) | {stray: encoded(np.zeros((6, 6, 3), np.uint8))})
    with pytest.raises(ValueError, match=saying(folder, "must lie in train/CLASS, val/CLASS or test/CLASS", stray)):
        load(folder, val_size=0)


def test_an_image_beside_the_folders_of_classes_is_refused(folder):
    write_folder(folder, {"a.png": b"", "cat/a.png": b"", "dog/a.png": b""})
    with pytest.raises(ValueError, match=saying(folder, "must lie in the folder of a class", "a.png does not")):
        load(folder)


@pytest.mark.parametrize("files", [{}, {"cat/a.png": b""}, {"cat/a.txt": b"", "dog/b.doc": b""}])
def test_a_folder_without_two_classes_is_refused(files, folder):
    folder.mkdir()
    write_folder(folder, files)
    with pytest.raises(ValueError, match=saying(folder, "at least two classes", ".png")):
        load(folder)


def test_other_files_are_left_alone_and_deeper_folders_belong_to_their_class(folder):
    write_folder(folder, by_part(["a", "b"]) | {"a/cat/notes.txt": b"x", "labels.csv": b"x", "b/.DS_Store": b"x"})
    data = load(folder, test_size=0, val_size=0)
    assert data.class_names == ("a", "b")
    assert values(data, "train") == [0, 1, 2, 3]


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


@pytest.mark.parametrize("channels", [1, 3])
def test_grey_images_of_16_bits_are_refused(channels, folder):
    deep = [encoded(np.full((6, 6), value, np.uint16)) for value in (0, 10_000, 40_000, 65_535)]
    write_folder(folder, {f"{label}/{i}.png": of for label in "ab" for i, of in enumerate(deep)})
    with pytest.raises(ValueError, match="more than 8 bits"):
        load(folder, val_size=0, test_size=0, channels=channels)


def test_one_channel_is_grey_by_the_usual_weights(folder):
    colours = {"a/0": (255, 0, 0), "a/1": (0, 255, 0), "b/0": (0, 0, 255), "b/1": (90, 90, 90)}
    write_folder(folder, {f"{name}.png": encoded(np.full((4, 4, 3), of, np.uint8)) for name, of in colours.items()})
    data = load(folder, channels=1, val_size=0, test_size=0)
    assert data.inputs.shape == (4, 1, 4, 4)
    assert data.inputs[:, 0, 0, 0].tolist() == [76, 150, 29, 90]


def test_images_of_different_sizes_are_refused_with_both_sizes_and_the_way_out(folder):
    write_folder(folder, flat()[1] | {"dog/odd.png": encoded(np.zeros((7, 5, 3), np.uint8))})
    with pytest.raises(ValueError, match=saying(folder, "dog/odd.png has 7 x 5", "6 x 6", "size")):
        load(folder)


def test_size_scales_an_image_until_it_covers_the_square_and_keeps_its_middle(folder):
    rng = np.random.default_rng(0)
    wide, high = (rng.integers(0, 256, (*of, 3), dtype=np.uint8) for of in [(10, 20), (18, 10)])
    twice = np.kron(rng.integers(0, 256, (10, 10, 1), dtype=np.uint8), np.ones((2, 2, 3), np.uint8))
    files = {"a/wide.png": wide, "a/high.png": high, "b/twice.png": twice, "b/ones.png": np.ones((3, 3, 3), np.uint8)}
    write_folder(folder, {name: encoded(of) for name, of in files.items()})
    high_, wide_, ones_, twice_ = load(folder, size=10, val_size=0, test_size=0).inputs.permute(0, 2, 3, 1).numpy()
    assert np.array_equal(wide_, wide[:, 5:15])
    assert np.array_equal(high_, high[4:14])
    assert np.array_equal(ones_, np.ones((10, 10, 3)))
    inner, plain = twice_[1:-1, 1:-1].astype(int), twice[::2, ::2][1:-1, 1:-1].astype(int)
    assert np.corrcoef(inner.flatten(), plain.flatten())[0, 1] > 0.8


@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
def test_images_are_turned_as_the_camera_says(orientation, folder):
    pixels = np.random.default_rng(0).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    exif = Image.Exif()
    exif[0x0112] = orientation
    write_folder(folder, {"a/0.png": encoded(pixels, exif=exif), "b/0.png": encoded(pixels)})
    turned = np.rot90(pixels, {1: 0, 3: 2, 6: -1, 8: 1}[orientation])
    data = load(folder, val_size=0, test_size=0)
    assert torch.equal(data.inputs[0], torch.from_numpy(turned.transpose(2, 0, 1).copy()))
    assert torch.equal(data.inputs[1], torch.from_numpy(pixels.transpose(2, 0, 1).copy()))


@pytest.mark.parametrize("content", [b"", b"a text", encoded(np.zeros((6, 6, 3), np.uint8))[:-30]])
def test_a_file_that_is_no_image_is_named(content, folder):
    write_folder(folder, flat()[1] | {"dog/broken.png": content})
    with pytest.raises(ValueError, match=saying("pets/dog/broken.png", "cannot be read as an image")):
        load(folder)


def test_what_macos_leaves_behind_is_no_image(folder):
    pixels, files = flat()
    write_folder(folder, files | {"dog/._00.png": b"\0\5\x16\7\0\2\0\0Mac OS X"})
    assert len(load(folder).inputs) == len(pixels)


def test_normalisation_is_by_mean_and_std_of_the_training_part_only(folder):
    pixels, files = flat(each=20)
    write_folder(folder, files)
    data = load(folder)
    train = pixels[data.splits["train"].numpy()] / 255
    expected = (pixels / 255 - train.mean((0, 1, 2))) / train.std((0, 1, 2))
    torch.testing.assert_close(data.encoder(data.inputs), torch.from_numpy(expected).permute(0, 3, 1, 2).float())
    of_all = (pixels / 255).mean((0, 1, 2))
    assert not np.allclose(train.mean((0, 1, 2)), of_all, atol=1e-5)


def test_a_channel_that_never_changes_is_only_shifted(folder):
    pixels, _ = flat()
    pixels[..., 1] = 51
    names = [f"{label}/{i}.png" for label in "ab" for i in range(10)]
    write_folder(folder, {name: encoded(of) for name, of in zip(names, pixels, strict=True)})
    data = load(folder)
    assert data.encoder(data.inputs)[:, 1].abs().max() < 1e-5
    assert data.encoder(torch.full((1, 3, 6, 6), 102, dtype=torch.uint8))[:, 1].mean().item() == pytest.approx(0.2)


def test_training_images_are_varied_only_on_request(folder):
    write_folder(folder, flat()[1])
    assert load(folder).augment is None
    for options, expected in [
        ({"padding": 2}, (2, False)),
        ({"flip": True}, (0, True)),
        ({"padding": 1, "flip": True}, (1, True)),
    ]:
        augment = load(folder, **options).augment
        assert (augment.padding, augment.flip) == expected


def test_decoded_images_are_kept_by_options_and_read_anew_when_a_file_changes(folder):
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


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"channels": 2}, "channels must be 1 or 3, got 2"),
        ({"size": 0}, "size must be an integer from 1 to 8192, got 0"),
        ({"size": 2.5}, "size must be an integer from 1 to 8192, got 2.5"),
        ({"test_size": 20}, "test_size must leave some of the 20 samples"),
        ({"val_size": 16}, "val2_size must leave some of the 16"),
        ({"val_size": -1}, "val_size must be a number of samples"),
        ({"padding": -1}, "padding must be"),
        ({"layout": "NHWC"}, "has the options size, channels"),
    ],
)
def test_options_of_a_folder_are_checked(options, words, folder):
    write_folder(folder, flat()[1])
    with pytest.raises(ValueError, match=saying(words)):
        load(folder, **options)


def test_a_name_that_is_neither_data_set_nor_folder_is_refused_with_what_was_meant(folder):
    for name, words in [("cifar11", "did you mean cifar10?"), (f"{folder}/gone", "a folder of images by class")]:
        with pytest.raises(ValueError, match=saying(words)):
            load_data(name)


# ---- npz -----------------------------------------------------------------------------------------------------
@pytest.fixture
def file(tmp_path):
    return tmp_path / "mine.npz"


IMAGES, LABELS = some_images(40, 4, side=5)
FEATURES = np.random.default_rng(2).normal(size=(40, 7))


def save(file, **arrays):
    np.savez_compressed(file, **arrays)
    return file


def load_npz(file, **options):
    return load_data(str(file), **options)


def parts(x, y):
    return {
        "x_train": x[:24],
        "y_train": y[:24],
        "x_val": x[24:30],
        "y_val": y[24:30],
        "x_test": x[30:],
        "y_test": y[30:],
    }


def test_arrays_of_parts_are_the_split(file):
    data = load_npz(save(file, **parts(IMAGES, LABELS)), layout="NCHW")
    assert torch.equal(data.inputs, torch.from_numpy(IMAGES))
    assert data.target.tolist() == LABELS.tolist()
    assert {part: of.tolist() for part, of in data.splits.items()} == {
        "train": list(range(24)),
        "val": list(range(24, 30)),
        "test": list(range(30, 40)),
    }
    assert (data.name, data.class_names) == ("mine", ("0", "1", "2", "3"))


def test_what_the_file_does_not_split_is_drawn(file):
    whole = load_npz(save(file, x=FEATURES, y=LABELS), val_size=5).splits
    assert {part: len(index) for part, index in whole.items()} == {"train": 27, "val": 5, "test": 8}
    assert sorted(torch.cat(list(whole.values())).tolist()) == list(range(40))
    arrays = parts(FEATURES, LABELS)
    del arrays["x_val"], arrays["y_val"]
    tested = load_npz(save(file, **arrays), val_size=5).splits
    assert tested["test"].tolist() == list(range(24, 34))
    assert sorted([*tested["train"].tolist(), *tested["val"].tolist()]) == list(range(24))
    assert len(tested["val"]) == 5


def test_nhwc_and_nchw_give_the_same_images(file, tmp_path):
    first = load_npz(save(file, x=IMAGES, y=LABELS), layout="NCHW")
    last = load_npz(save(tmp_path / "last.npz", x=IMAGES.transpose(0, 2, 3, 1), y=LABELS), layout="NHWC")
    assert torch.equal(first.inputs, torch.from_numpy(IMAGES))
    assert torch.equal(last.inputs, first.inputs)
    torch.testing.assert_close(last.encoder(last.inputs), first.encoder(first.inputs))


@pytest.mark.parametrize("x", [IMAGES, IMAGES / 255.0], ids=["bytes", "floats"])
def test_the_layout_of_four_dimensions_is_not_guessed(x, file):
    with pytest.raises(ValueError, match=saying(file, "x is (40, 3, 5, 5)", "layout", "NHWC, NCHW")):
        load_npz(save(file, x=x, y=LABELS))
    with pytest.raises(ValueError, match=saying("layout must be one of 'NHWC', 'NCHW', 'NHW', got 'CHWN'")):
        load_npz(file, layout="CHWN")


def test_bytes_are_images_normalised_by_the_training_part_and_grey_ones_get_a_channel(file):
    data = load_npz(save(file, x=IMAGES[:, 0], y=LABELS))
    assert torch.equal(data.inputs, torch.from_numpy(IMAGES[:, :1]))
    train = IMAGES[data.splits["train"].numpy(), 0] / 255
    expected = torch.from_numpy((IMAGES[:, :1] / 255 - train.mean()) / train.std()).float()
    torch.testing.assert_close(data.encoder(data.inputs), expected)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, np.int32, np.bool_])
def test_other_numbers_are_handed_on_as_float32(dtype, file):
    x = (10 * FEATURES).astype(dtype)
    data = load_npz(save(file, x=x, y=LABELS))
    assert data.inputs.dtype == torch.float32
    assert torch.equal(data.inputs, torch.from_numpy(x.astype(np.float32)))
    assert torch.equal(data.encoder(data.inputs), data.inputs)


def test_class_names_of_the_file_are_taken_also_where_a_class_has_no_samples(file):
    names = np.array(["ant", "bee", "cat", "dog", "eel"])
    assert load_npz(save(file, x=FEATURES, y=LABELS[:, None], class_names=names)).class_names == tuple(names)
    with pytest.raises(ValueError, match="labels must be from 0 to 1, got 0 to 3"):
        load_npz(save(file, x=FEATURES, y=LABELS, class_names=names[:2]))


def test_class_names_of_bytes_are_texts(file):
    names = np.array([b"ant", b"bee", b"cat", b"dog"])
    assert load_npz(save(file, x=FEATURES, y=LABELS, class_names=names)).class_names == ("ant", "bee", "cat", "dog")


def test_variation_is_for_images(file):
    augment = load_npz(save(file, x=IMAGES, y=LABELS), layout="NCHW", padding=1, flip=True).augment
    assert (augment.padding, augment.flip) == (1, True)
    with pytest.raises(ValueError, match=saying("padding and flip need images", file)):
        load_npz(save(file, x=FEATURES, y=LABELS), flip=True)


class Evil:
    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


@pytest.mark.parametrize("name", ["x", "y", "class_names"])
def test_pickled_objects_are_refused_and_run_nothing(name, file, tmp_path):
    marker = tmp_path / "it ran"
    evil = np.array([Evil(f"touch '{marker}'")], dtype=object)
    save(file, **{"x": FEATURES, "y": LABELS} | {name: evil})
    with pytest.raises(ValueError, match=saying(file, "cannot be read")):
        load_npz(file)
    assert not marker.exists()


WITHOUT = np.where(np.arange(7) == 3, np.nan, FEATURES)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        pytest.param({"x": FEATURES, "y": LABELS[:39]}, "y must be 40 class numbers", id="a label too few"),
        pytest.param({"x": FEATURES, "y": LABELS - 1}, "y must be class numbers from 0", id="label -1"),
        pytest.param({"x": FEATURES, "y": LABELS / 1.0}, "y must be 40 class numbers from 0, got float64", id="floats"),
        pytest.param({"x": FEATURES, "y": np.eye(4)[LABELS]}, "y must be 40 class numbers", id="one-hot"),
        pytest.param({"x": FEATURES, "y": LABELS.astype(str)}, "y must be 40 class numbers", id="labels are texts"),
        pytest.param({"x": FEATURES}, "y must be 40 class numbers from 0, got none", id="no labels"),
        pytest.param({"x": FEATURES[:, 0], "y": LABELS}, "x must hold numbers, (N, ...)", id="one dimension"),
        pytest.param({"x": FEATURES[:0], "y": LABELS[:0]}, "x must hold numbers, (N, ...)", id="nothing"),
        pytest.param({"x": FEATURES.astype(str), "y": LABELS}, "x must hold numbers", id="texts"),
        pytest.param({"x": FEATURES * 1j, "y": LABELS}, "x must hold numbers", id="complex"),
        pytest.param({"x": WITHOUT, "y": LABELS}, "x has values that are not finite", id="nan"),
        pytest.param({"x": IMAGES.reshape(40, -1), "y": LABELS}, "x is uint8, so it must", id="bytes in rows"),
        pytest.param({"logits": FEATURES}, "must have arrays x_train and y_train", id="others"),
        pytest.param({"x_test": FEATURES, "y_test": LABELS}, "must have arrays x_train", id="no training part"),
        pytest.param(
            {"x": FEATURES, "y": LABELS} | parts(FEATURES, LABELS),
            "or only x and y; got x, x_train",
            id="both ways at once",
        ),
        pytest.param(
            parts(FEATURES, LABELS) | {"x_test": FEATURES[30:, :5]}, "x_test must be like x_train", id="other features"
        ),
        pytest.param(
            parts(FEATURES, LABELS) | {"y_val": LABELS[:5]},
            "y_val must be 6 class numbers",
            id="a label of val too few",
        ),
    ],
)
def test_other_arrays_are_refused(arrays, words, file):
    with pytest.raises(ValueError, match=saying(file, words)):
        load_npz(save(file, **arrays))


@pytest.mark.parametrize("part", ["val", "test"])
def test_a_part_beside_x_is_refused_not_ignored(part, file):
    save(file, x=FEATURES[:30], y=LABELS[:30], **{f"x_{part}": FEATURES[30:], f"y_{part}": LABELS[30:]})
    with pytest.raises(ValueError, match=saying(file, f"or only x and y; got x, x_{part}")):
        load_npz(file)


def test_labels_that_cannot_be_class_numbers_are_refused(file):
    with pytest.raises(ValueError, match=saying(file, "y")):
        load_npz(save(file, x=FEATURES, y=np.full(40, 2**50)))


def test_a_second_validation_part_without_a_first_is_refused(file):
    save(file, x=FEATURES, y=LABELS)
    with pytest.raises(ValueError, match="val2_size"):
        load_npz(file, val_size=0, val2_size=5)


def as_npy():
    content = io.BytesIO()
    np.save(content, FEATURES)
    return content.getvalue()


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda _: b"", id="empty"),
        pytest.param(lambda _: b"no arrays", id="text"),
        pytest.param(
            lambda content: content[:60] + b"\xff" * 20 + content[80:],
            id="bytes changed",
        ),
        pytest.param(lambda _: as_npy(), id="npy"),
    ],
)
def test_a_file_that_is_damaged_or_something_else_is_refused(damage, file):
    save(file, x=FEATURES, y=LABELS)
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(ValueError, match=saying(file, "cannot be read")):
        load_npz(file)


def test_a_file_that_is_cut_off_is_refused_and_closed(file):
    save(file, x=FEATURES, y=LABELS)
    file.write_bytes(file.read_bytes()[:1_000])
    gc.collect()  # files that earlier tests left open
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        message = ""
        try:
            load_npz(file)
        except ValueError as error:
            message = str(error)
        gc.collect()
    assert message.startswith(f"{file}: cannot be read")
    assert not caught


def test_a_file_that_is_not_there_is_named_and_no_folder_of_data_is_made(file, tmp_path, monkeypatch):
    monkeypatch.setenv("DUALFOCAL_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match=saying(file, "there is no such file")):
        load_npz(file)
    monkeypatch.chdir(tmp_path)
    save(file, x=FEATURES, y=LABELS)
    assert torch.equal(load_npz("mine.npz").inputs, torch.from_numpy(FEATURES).float())
    assert {path.name for path in tmp_path.iterdir()} == {"mine.npz"}
