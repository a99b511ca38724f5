"""Words to numbers as the published pipeline counts them, and vectors from GloVe's text files."""

import zipfile

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from official import saying, vector_lines

from dualfocal_lab.data.newsgroups import numbers, read_vectors, tokens, vocabulary

LATIN = st.text(st.characters(max_codepoint=255), max_size=60)
TEXTS = st.lists(st.lists(st.sampled_from("abcdefgh"), max_size=12), max_size=8)


# Oracles: the rule of the tokenizer of the published pipeline, word by word


def words_of(text):
    plain = ""
    for character in text.lower():
        plain += " " if character in '!"#$%&()*+,-./:;<=>?@[\\]^_`{|}~\t\n' else character
    words = plain.split(" ")
    while "" in words:
        words.remove("")
    return words


def ranks_of(texts):
    """Word -> number, commonest first, of equals the one seen first."""
    words, counts = [], {}
    for text in texts:
        for word in text:
            if word not in counts:
                words.append(word)
            counts[word] = counts.get(word, 0) + 1
    ranked = sorted(words, key=lambda word: (-counts[word], words.index(word)))
    return {word: number + 1 for number, word in enumerate(ranked)}


def padded(text, ranks, num_words, length):
    row = [ranks[word] for word in text if ranks[word] < num_words]
    while len(row) > length:
        row.pop(0)
    while len(row) < length:
        row.insert(0, 0)
    return row


# Tokens and numbers


@given(LATIN)
def test_tokens_follow_the_rule(text):
    assert tokens(text) == words_of(text)


def test_tokens_of_hard_texts():
    cases = {
        "I'm what's-his-name's  friend": ["i'm", "what's", "his", "name's", "friend"],
        "a_b\\c[d]e{f}g|h~i^j`k": [*"abcdefghijk"],
        "x\ty\nz": ["x", "y", "z"],
        "one\xa0word\x0bstill\rone": ["one\xa0word\x0bstill\rone"],  # only spaces, tabs and newlines separate
        "CAFÉ 3.14 Ünder": ["café", "3", "14", "ünder"],
        " .,;!? ": [],
        "": [],
    }
    for text, words in cases.items():
        assert tokens(text) == words


@given(TEXTS, st.integers(2, 10))
def test_the_vocabulary_is_by_count_then_by_first_appearance_and_counts_the_padding(texts, num_words):
    expected = [word for word, number in ranks_of(texts).items() if number < num_words]
    assert list(vocabulary(texts, num_words)) == expected


@given(TEXTS, st.integers(2, 10), st.integers(1, 6))
def test_texts_keep_their_last_known_words_with_padding_on_the_left(texts, num_words, length):
    result = numbers(texts, vocabulary(texts, num_words), length)
    expected = [padded(text, ranks_of(texts), num_words, length) for text in texts]
    assert result.dtype == torch.int32
    assert result.shape == (len(texts), length)
    assert result.tolist() == expected


# Vectors

VECTORS = {"the": [0.5, -1.25, 3.0], "of": [1e-3, 2.0, -0.0], "café": [7.0, 8.0, 9.0], "don't": [0.1, 0.2, 0.3]}


def write(path, content):
    path.write_bytes(content)
    return path


def test_vectors_go_to_the_rows_of_their_words_and_the_rest_is_zero(tmp_path):
    path = write(tmp_path / "v.txt", vector_lines(VECTORS))
    matrix, num_words = read_vectors(path, ["café", "unknown", "the"])
    assert matrix.dtype == torch.float32
    assert matrix.tolist() == [[0, 0, 0], [7, 8, 9], [0, 0, 0], [0.5, -1.25, 3]]
    assert num_words == 2


def test_a_file_may_have_any_width(tmp_path):
    for width in (2, 50, 300):
        values = np.random.default_rng(0).normal(size=width)
        path = write(tmp_path / "v.txt", vector_lines({"x": np.zeros(width), "w": values}))
        matrix, num_words = read_vectors(path, ["w"])
        assert torch.equal(matrix[1], torch.from_numpy(values).float())
        assert (num_words, matrix.shape) == (1, (2, width))


def test_the_first_vector_of_a_repeated_word_counts(tmp_path):
    path = write(tmp_path / "v.txt", b"the 1 2 3\nof 4 5 6\nthe 7 8 9\n")
    matrix, num_words = read_vectors(path, ["the", "of"])
    assert matrix[1:].tolist() == [[1, 2, 3], [4, 5, 6]]
    assert num_words == 2


def test_lines_may_have_other_separators_and_ends_and_other_words_may_be_odd(tmp_path):
    for content in (
        b"the 1 2 3\r\nof 4 5 6\r\n",
        b"the 1 2 3\nof 4 5 6",
        b"the 1 2 3\n\nof 4 5 6\n\n",
        b"the\t1\t2\t3\nof\t4\t5\t6\n",
        b"the 1.0 2e0 +3 \nof 4 5 6 \n",
        b"the 1 2 3\n. . . 0 0 0\n\xff\xfe 1 2 3\nat you@there.com 1 2 3\nof 4 5 6\n",
    ):
        matrix, num_words = read_vectors(write(tmp_path / "v.txt", content), ["the", "of"])
        assert matrix[1:].tolist() == [[1, 2, 3], [4, 5, 6]], content
        assert num_words == 2, content


def test_words_are_compared_as_unicode(tmp_path):
    for word in ("naïve", "日本", "ß", "a\xa0b", "a\x85b", "x'y"):
        path = write(tmp_path / "v.txt", vector_lines({"the": [0, 0, 0], word: [1, 2, 3]}))
        assert read_vectors(path, [word])[0][1].tolist() == [1, 2, 3], word


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"the 1 2 3\nof 1 2\n", 2),
        (b"the 1 2 3\nx 1 2 3\nof 1 2 3 4\n", 3),
        (b"the 1 2 3\nof \n", 2),
        (b"the 1 2 3\nof 1 two 3\n", 2),
        (b"the 1 2 3\nof 1  3\n", 2),
        (b"the 1 2 nan\n", 1),
        (b"the 1 2 3\nof 1 -inf 3\n", 2),
        (b"400000 3\nthe 1 2 3\n", 1),  # a first line with the sizes
        (b"\nthe 1 2 3\n", 1),
    ],
)
def test_a_wrong_line_is_refused_with_its_number(content, line, tmp_path):
    path = write(tmp_path / "v.txt", content)
    with pytest.raises(ValueError, match=saying(path, f"line {line} must be a word")):
        read_vectors(path, ["the", "of"])


def test_an_empty_file_and_one_with_endless_lines_are_refused(tmp_path):
    for content, words in ((b"", "line 1 must be a word"), (b"the 1 2 3\n" + b"x" * 100_001, "100,000 bytes or more")):
        path = write(tmp_path / "v.txt", content)
        with pytest.raises(ValueError, match=saying(path, words)):
            read_vectors(path, ["the"])


# Zips


def write_vectors_zip(path, widths=(50, 100)):
    """All numbers of a file are its width; compressed, as the official one."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for width in widths:
            rng = np.random.default_rng(width)
            others = {f"w{i}": rng.normal(size=width) for i in range(40)}
            archive.writestr(f"glove.6B.{width}d.txt", vector_lines({"the": [width] * width} | others))
    return path


def test_the_requested_member_of_a_zip_is_read(tmp_path):
    path = write_vectors_zip(tmp_path / "glove.6B.zip")
    for width in (50, 100):
        matrix, num_words = read_vectors(path, ["of", "the"], member=f"glove.6B.{width}d.txt")
        assert matrix[2].tolist() == [width] * width
        assert not matrix[:2].any()
        assert num_words == 1
    with pytest.raises(ValueError, match=saying(path, "holds no glove.6B.200d.txt")):
        read_vectors(path, ["the"], member="glove.6B.200d.txt")


def test_a_damaged_zip_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "v.zip", "w") as archive:
        archive.writestr("v.txt", b"the 1 2 3\nof 1 2 x\n")
    with pytest.raises(ValueError, match=saying(tmp_path / "v.zip", "line 2 must be a word and 3 numbers")):
        read_vectors(tmp_path / "v.zip", ["of"], member="v.txt")
    path = write_vectors_zip(tmp_path / "glove.6B.zip")
    content = path.read_bytes()
    for damaged in (content[:3_000], b"no zip", content[:50] + b"\xff" * 30 + content[80:]):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=saying(path, "is damaged")):
            read_vectors(path, ["the"], member="glove.6B.50d.txt")
