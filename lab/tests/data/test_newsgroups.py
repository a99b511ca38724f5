"""20 Newsgroups: texts without headers in a fixed order, splits, and word vectors."""

import numpy as np
import pytest
import torch
from official import message, newsgroup_files, saying, vector_lines, write_folder, write_tar, write_zip

from dualfocal_lab.data import DataNotFoundError, load_data
from dualfocal_lab.data.newsgroups import body

GROUPS = ("alt.atheism", "comp.graphics", "sci.space")
TOP = "20_newsgroups"
BY_DATE = ("20news-bydate-train", "20news-bydate-test")


def corpus(each=20):
    """Group -> {number: text}; each text has a word that no other has."""
    return {group: {1000 + i: f"word_{g}x{i} of all" for i in range(each)} for g, group in enumerate(GROUPS)}


def load(root, name="20newsgroups", **options):
    sizes = {"val_size": 6} | ({"test_size": 12} if name == "20newsgroups" else {})
    return load_data(name, root, **{"vectors": "none", "length": 5} | sizes | options)


# Texts


def test_a_header_ends_at_the_first_blank_line():
    cases = {
        b"From: x\nSubject: y\n\nthe text\n\nmore": "the text\n\nmore",
        b"From: x\r\n\r\nthe text\r\n\r\nmore": "the text\n\nmore",
        b"From: x\r\rthe text": "the text",
        b"From: x\n\n\n\nthe text": "the text",
        b"From: x\n \nstill header\n\nthe text": "the text",  # a line with a space is not blank
        b"no blank line at all\nhere": "no blank line at all\nhere",
        b"\n\nFrom: x\n\nthe text": "From: x\n\nthe text",  # a blank line at the start: all is text, as published
        b"From: x\n\n": "",
        b"": "",
        b"From: \xe9\n\ncaf\xe9 \xff": "caf\u00e9 \u00ff",  # Latin-1
    }
    for content, text in cases.items():
        assert body(content).strip("\n") == text, content


def test_words_of_headers_are_not_read(tmp_path):
    files = newsgroup_files(TOP, corpus()) | {f"{TOP}/sci.space/2000": b"headerword: only this, and no text\n\n"}
    path = write_folder(tmp_path, files)
    vectors = path / "v.txt"
    vectors.write_bytes(vector_lines({"headerword": [1, 1], "all": [2, 2]}))
    data = load(path, vectors=str(vectors))
    values = data.encoder(data.inputs).unique().tolist()
    assert values == [0, 2]
    assert not data.inputs[-1].any()


def test_every_layout_of_the_corpus_gives_the_same(tmp_path):
    layouts = [(TOP, ""), ("20_newsgroup", ""), (TOP, "20news-19997.tar.gz"), ("20_newsgroup", "news20.tar.gz")]
    layouts += [(TOP, "20_newsgroups.tar.gz")]
    for i, (top, archive) in enumerate(layouts):
        root = tmp_path / str(i)
        root.mkdir()
        files = newsgroup_files(top, {group: {7: f"{group[:3]} one", 8: "two two"} for group in GROUPS})
        write_tar(root / archive, files) if archive else write_folder(root, files)
        data = load(root, test_size=1, val_size=1, length=3)
        assert data.inputs.tolist() == [[0, 3, 2], [0, 1, 1], [0, 4, 2], [0, 1, 1], [0, 5, 2], [0, 1, 1]], top
        assert data.target.tolist() == [0, 0, 1, 1, 2, 2]
        assert data.class_names == GROUPS


def test_only_files_named_by_numbers_are_read_in_the_order_of_their_names_as_text(tmp_path):
    texts = {"b": {9: "nine", 10: "ten", 100: "hundred"}, "a": {"007": "seven", 5: "five"}}
    others = {f"{TOP}/{name}": message("nothing") for name in ("a/README", "a/5~", "b/.DS_Store", "b/9.txt", "index")}
    write_folder(tmp_path, newsgroup_files(TOP, texts) | others)
    data = load(tmp_path, test_size=1, val_size=1, length=1)
    assert data.inputs[:, 0].tolist() == [1, 2, 3, 4, 5]  # in the order in which words were first seen
    assert data.target.tolist() == [0, 0, 1, 1, 1]
    path = tmp_path / "v.txt"
    path.write_bytes(
        vector_lines({"seven": [7, 0], "five": [5, 0], "ten": [10, 0], "hundred": [100, 0], "nine": [9, 0]})
    )
    vectors = load(tmp_path, test_size=1, val_size=1, length=1, vectors=str(path))
    assert vectors.encoder(vectors.inputs)[:, 0, 0].tolist() == [7, 5, 10, 100, 9]


def test_a_number_beside_the_groups_is_no_text(tmp_path):
    for name, top in (("20newsgroups", TOP), ("20newsgroups_bydate", BY_DATE[0])):
        files = newsgroup_files(top, corpus()) | newsgroup_files(BY_DATE[1], corpus(2))
        write_folder(tmp_path, files | {f"{top}/1234": message("stray")})
        assert load(tmp_path, name).class_names == GROUPS


def test_the_vocabulary_is_of_all_texts_and_num_words_counts_the_padding(tmp_path):
    texts = {"a": {1: "x x x y y", 2: "z y x"}, "b": {1: "z w", 2: "v"}}
    write_folder(tmp_path, newsgroup_files(TOP, texts))
    data = load(tmp_path, test_size=1, val_size=1, num_words=4)  # x: 4 times, y: 3, z: 2
    assert data.inputs.tolist() == [[1, 1, 1, 2, 2], [0, 0, 3, 2, 1], [0, 0, 0, 0, 3], [0, 0, 0, 0, 0]]
    shorter = load(tmp_path, test_size=1, val_size=1, length=2)  # the last words
    assert shorter.inputs.tolist() == [[2, 2], [2, 1], [3, 4], [0, 5]]


def test_sizes_of_vocabulary_texts_and_test_part_are_checked(tmp_path):
    write_folder(tmp_path, newsgroup_files(TOP, corpus()))
    for name, value in (("num_words", 1), ("num_words", 2.5), ("length", 0), ("length", "10")):
        with pytest.raises((ValueError, TypeError), match=saying(name, "must be")):
            load(tmp_path, **{name: value})
    for test_size in (0, 60):
        with pytest.raises(ValueError, match=saying("test_size must be from 1 to 59, got", test_size)):
            load(tmp_path, test_size=test_size)
    assert len(load(tmp_path, test_size=0.2).splits["test"]) == 12


def test_options_are_cached_apart_and_a_changed_text_is_read_again(tmp_path):
    write_folder(tmp_path, newsgroup_files(TOP, corpus()))
    for _ in range(2):
        assert load(tmp_path, length=5).inputs.shape == (60, 5)
        assert load(tmp_path, length=3).inputs.shape == (60, 3)
        assert load(tmp_path, num_words=2).inputs.max() == 1
    before = load(tmp_path).inputs
    (tmp_path / TOP / "sci.space" / "1019").write_bytes(message("all all all all all all"))
    after = load(tmp_path).inputs
    assert after[-1].unique().numel() == 1
    assert after[-1, 0] != 0
    assert before[-1].unique().numel() > 1


# Splits


def published_order(count, seed=1):
    order = np.arange(count)
    np.random.RandomState(seed).shuffle(order)
    return order.tolist()


def test_the_last_shuffled_texts_are_for_testing_and_those_before_them_for_validation(tmp_path):
    write_folder(tmp_path, newsgroup_files(TOP, corpus()))
    order = published_order(60)
    splits = load(tmp_path, test_size=12, val_size=6).splits
    assert splits["test"].tolist() == order[-12:]
    assert splits["val"].tolist() == order[-18:-12]
    assert splits["train"].tolist() == order[:-18]
    both = load(tmp_path, test_size=12, val_size=6, val2_size=5).splits
    assert both["val"].tolist() == order[-18:-12]
    assert both["val2"].tolist() == order[-23:-18]
    assert both["train"].tolist() == order[:-23]
    none = load(tmp_path, test_size=12, val_size=0, split_seed=7).splits
    assert none["test"].tolist() == published_order(60, seed=7)[-12:]
    assert set(none) == {"train", "test"}


def test_by_default_3999_texts_are_for_testing_and_900_for_validation_as_published(tmp_path):
    texts = {"a": dict.fromkeys(range(2_500), "x"), "b": dict.fromkeys(range(2_500), "y")}
    write_tar(tmp_path / "20news-19997.tar.gz", newsgroup_files(TOP, texts))
    data = load_data("20newsgroups", tmp_path, vectors="none")
    order = published_order(5_000)
    assert data.inputs.shape == (5_000, 1_000)
    assert data.splits["test"].tolist() == order[-3_999:]
    assert data.splits["val"].tolist() == order[-4_899:-3_999]
    assert data.splits["train"].tolist() == order[:-4_899]


# The version by date


def by_date_files():
    test = {group: {i: f"late {i}" for i in range(500, 504)} for group in GROUPS}
    return newsgroup_files(BY_DATE[0], corpus()) | newsgroup_files(BY_DATE[1], test)


def write_by_date(root, layout):
    if layout == "archive":
        write_tar(root / "20news-bydate.tar.gz", by_date_files())
    else:
        write_folder(root / ("20news-bydate" if layout == "folder of both" else ""), by_date_files())


@pytest.mark.parametrize("layout", ["two folders", "folder of both", "archive"])
def test_every_layout_by_date_gives_training_texts_then_later_ones_to_test(layout, tmp_path):
    write_by_date(tmp_path, layout)
    data = load(tmp_path, "20newsgroups_bydate", val_size=6, val2_size=3)
    order = published_order(60)
    assert data.splits["val"].tolist() == order[:6]
    assert data.splits["val2"].tolist() == order[6:9]
    assert data.splits["train"].tolist() == order[9:]
    assert data.splits["test"].tolist() == list(range(60, 72))
    assert data.target.tolist() == [0] * 20 + [1] * 20 + [2] * 20 + [0] * 4 + [1] * 4 + [2] * 4
    assert data.class_names == GROUPS
    # By frequency: word, of, all (60 times), late (12), 500 to 503 (3), then the word that only one text has.
    assert data.inputs[:60].tolist() == [[0, 1, 9 + i, 2, 3] for i in range(60)]
    assert data.inputs[60:].tolist() == [[0, 0, 0, 4, 5 + i] for i in range(4)] * 3


def test_a_missing_part_by_date_is_refused(tmp_path):
    write_folder(tmp_path, newsgroup_files(BY_DATE[0], corpus()))
    with pytest.raises(ValueError, match=saying(tmp_path, BY_DATE[1], "beside 20news-bydate-train")):
        load(tmp_path, "20newsgroups_bydate")
    for top in BY_DATE:
        (tmp_path / f"only {top}").mkdir()
        path = write_tar(tmp_path / f"only {top}" / "20news-bydate.tar.gz", newsgroup_files(top, corpus()))
        with pytest.raises(ValueError, match=saying(path)):
            load(path.parent, "20newsgroups_bydate")


def test_missing_data_are_explained_and_a_folder_without_texts_is_refused(tmp_path):
    with pytest.raises(DataNotFoundError, match=saying("20news-bydate.tar.gz", tmp_path, "fetch 20newsgroups_bydate")):
        load(tmp_path, "20newsgroups_bydate")
    with pytest.raises(DataNotFoundError, match=saying(TOP, tmp_path, "get 20news-19997.tar.gz from qwone.com")):
        load(tmp_path)
    write_folder(tmp_path, {f"{TOP}/a/README": b"nothing"})
    with pytest.raises(ValueError, match=saying(tmp_path / TOP, "no texts GROUP/NUMBER")):
        load(tmp_path)


# Word vectors


def small_corpus(root):
    """Vocabulary: the, café, x, y; returns options that leave everything in."""
    texts = {"a": {1: "the the the", 2: "caf\u00e9 the"}, "b": {1: "caf\u00e9 x", 2: "y"}}
    write_folder(root, newsgroup_files(TOP, texts))
    return {"test_size": 1, "val_size": 1, "length": 3}


def test_the_encoder_gives_vectors_with_zeros_for_padding_and_for_words_without_one(tmp_path):
    options = small_corpus(tmp_path)
    path = tmp_path / "mine.txt"
    path.write_bytes(vector_lines({"the": [1, 2], "caf\u00e9": [3, 4], "y": [5, 6], "other": [7, 8]}))
    data = load(tmp_path, vectors=str(path), **options)
    assert data.encoder(data.inputs).transpose(1, 2).tolist() == [
        [[1, 2], [1, 2], [1, 2]],
        [[0, 0], [3, 4], [1, 2]],
        [[0, 0], [3, 4], [0, 0]],
        [[0, 0], [0, 0], [5, 6]],
    ]
    assert data.input_shape == (2, 3)
    assert data.notes == ("3 of 4 words have a vector in mine.txt, 2 wide",)
    assert not any(parameter.requires_grad for parameter in data.encoder.parameters())


@pytest.mark.parametrize("zipped", [False, True])
def test_glove_in_the_root_is_chosen_by_width(zipped, tmp_path):
    options = small_corpus(tmp_path)
    files = {f"glove.6B.{n}d.txt": vector_lines({"the": [n] * n, "x": [1] * n}) for n in (50, 100, 200, 300)}
    write_zip(tmp_path / "glove.6B.zip", files) if zipped else write_folder(tmp_path / "glove", files)
    for width in (50, 100, 200):
        data = load(tmp_path, vectors=None, width=width, **options)
        assert data.encoder(data.inputs[:1]).unique().tolist() == [width]
        assert data.in_channels == width
        file = "glove.6B.zip" if zipped else f"glove.6B.{width}d.txt"
        assert data.notes == (f"2 of 4 words have a vector in {file}, {width} wide",)


def test_the_width_by_default_is_100_and_a_text_file_comes_before_the_zip(tmp_path):
    options = small_corpus(tmp_path)
    write_zip(tmp_path / "glove.6B.zip", {"glove.6B.100d.txt": vector_lines({"the": [7] * 100})})
    assert load(tmp_path, vectors=None, **options).encoder(torch.tensor([[1]])).flatten().tolist() == [7] * 100
    (tmp_path / "glove.6B.100d.txt").write_bytes(vector_lines({"the": [8] * 100}))
    assert load(tmp_path, vectors=None, **options).encoder(torch.tensor([[1]])).flatten().tolist() == [8] * 100


def test_without_vectors_words_stay_numbers(tmp_path):
    data = load(tmp_path, vectors="none", **small_corpus(tmp_path))
    assert torch.equal(data.encoder(data.inputs), data.inputs)
    assert data.inputs.tolist() == [[1, 1, 1], [0, 2, 1], [0, 2, 3], [0, 0, 4]]
    assert data.notes == ()


def test_missing_vectors_are_explained(tmp_path):
    options = small_corpus(tmp_path)
    with pytest.raises(
        DataNotFoundError, match=saying("glove.6B.300d.txt or glove.6B.zip", "dualfocal data fetch glove")
    ):
        load(tmp_path, vectors=None, width=300, **options)
    with pytest.raises(ValueError, match=saying("vectors: there is no file", tmp_path / "gone.txt")):
        load(tmp_path, vectors=str(tmp_path / "gone.txt"), **options)
    lines = vector_lines({"the": [1] * 50})
    write_zip(tmp_path / "glove.6B.zip", {"glove.6B.50d.txt": lines})
    with pytest.raises(ValueError, match=saying(tmp_path / "glove.6B.zip", "width 100, got 50")):
        load(tmp_path, vectors=None, **options)


def test_vectors_of_other_words_only_are_refused(tmp_path):
    options = small_corpus(tmp_path)
    path = tmp_path / "mine.txt"
    path.write_text("The 1 2\n")
    with pytest.raises(ValueError, match=saying(path, "no vector for any", "lower case")):
        load(tmp_path, vectors=str(path), **options)
