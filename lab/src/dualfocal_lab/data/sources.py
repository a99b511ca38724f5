"""The official files of each data set: names, URLs, checksums, and the number of samples and classes."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from dualfocal.checks import did_you_mean


@dataclass(frozen=True)
class OfficialFile:
    """An official file of a data set.

    Args:
        file: name of the file.
        urls: URLs, tried in order.
        checksum: ``md5:...`` or ``sha256:...``, as stated by the publisher, or else by scikit-learn (20 Newsgroups),
            torchvision (SVHN) or TensorFlow Datasets (GloVe).
        size: size in bytes.
    """

    file: str
    urls: tuple[str, ...]
    checksum: str
    size: int


@dataclass(frozen=True, kw_only=True)
class Official:
    """A published data set.

    Args:
        about: short description.
        num_train: number of training samples.
        num_test: number of test samples.
        num_classes: number of classes; 0 for word vectors.
        layouts: files or folders that hold the data set; one is enough, unless ``parts`` is set.
        parts: whether all ``layouts`` are needed.
        class_names: class names, if they are published.
        sources: files to download; empty if no checksum is known.
        checksums: checksums of single files in the folders.
        by_hand: instructions if there is nothing to download.
    """

    about: str
    num_train: int
    num_test: int
    num_classes: int
    layouts: tuple[str, ...]
    parts: bool = False
    class_names: tuple[str, ...] = ()
    sources: tuple[OfficialFile, ...] = ()
    checksums: Mapping[str, str] = field(default_factory=dict)
    by_hand: str = ""


# The page of the CIFAR data sets has moved; both URLs are tried.
_TORONTO = ("https://cave.cs.toronto.edu/kriz/", "https://www.cs.toronto.edu/~kriz/")


def _source(file: str, checksum: str, size: int, *folders: str) -> OfficialFile:
    return OfficialFile(file, tuple(folder + file for folder in folders), checksum, size)


OFFICIAL: dict[str, Official] = {
    "cifar10": Official(
        about="32 x 32 photographs",
        num_train=50_000,
        num_test=10_000,
        num_classes=10,
        class_names=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
        layouts=("cifar-10-batches-bin", "cifar-10-batches-py", "cifar-10-binary.tar.gz", "cifar-10-python.tar.gz"),
        sources=(_source("cifar-10-binary.tar.gz", "md5:c32a1d4ab5d03f1284b67883e8d87530", 170_052_171, *_TORONTO),),
        checksums={
            "cifar-10-python.tar.gz": "md5:c58f30108f718f92721af3b95e74349a",
            "data_batch_1.bin": "sha256:cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
            "data_batch_2.bin": "sha256:a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
            "data_batch_3.bin": "sha256:bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
            "data_batch_4.bin": "sha256:014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
            "data_batch_5.bin": "sha256:755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
            "test_batch.bin": "sha256:8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
            "data_batch_1": "md5:c99cafc152244af753f735de768cd75f",
            "data_batch_2": "md5:d4bba439e000b95fd0a9bffe97cbabec",
            "data_batch_3": "md5:54ebc095f3ab1f0389bbae665268c751",
            "data_batch_4": "md5:634d18415352ddfa80567beed471001a",
            "data_batch_5": "md5:482c414d41f54cd18b22e5b47cb7c3cb",
            "test_batch": "md5:40351d587109b95175f43aff81a1287e",
            "batches.meta": "md5:5ff9c542aee3614f3951f8cda6e48888",
        },
    ),
    "cifar100": Official(
        about="32 x 32 photographs",
        num_train=50_000,
        num_test=10_000,
        num_classes=100,
        layouts=("cifar-100-binary", "cifar-100-python", "cifar-100-binary.tar.gz", "cifar-100-python.tar.gz"),
        sources=(_source("cifar-100-binary.tar.gz", "md5:03b5dce01913d631647c71ecec9e9cb8", 168_513_733, *_TORONTO),),
        checksums={
            "cifar-100-python.tar.gz": "md5:eb9058c3a382ffc7106e4002c42a8d85",
            "train": "md5:16019d7e3df5f24257cddd939b257f8d",
            "test": "md5:f0ef6b0ae62326f3e7ffdfab6717acfc",
            "meta": "md5:7973b15100ade9c7d40fb424638fde48",
        },
    ),
    "svhn": Official(
        about="house numbers",
        num_train=73_257,
        num_test=26_032,
        num_classes=10,
        layouts=("train_32x32.mat", "test_32x32.mat"),
        parts=True,
        sources=(
            _source(
                "test_32x32.mat",
                "md5:eb5a983be6a315427106f1b164d9cef3",
                64_275_384,
                "http://ufldl.stanford.edu/housenumbers/",
            ),
            _source(
                "train_32x32.mat",
                "md5:e26dedcc434d2e4c54c9b2d4a06d8373",
                182_040_794,
                "http://ufldl.stanford.edu/housenumbers/",
            ),
        ),
    ),
    "cifar10c": Official(
        about="CIFAR-10, corrupted",
        num_train=0,
        num_test=10_000,
        num_classes=10,
        layouts=("CIFAR-10-C", "CIFAR-10-C.tar"),
        sources=(
            _source(
                "CIFAR-10-C.tar",
                "md5:56bf5dcef84df0e2308c6dcbcbbd8499",
                2_918_471_680,
                "https://zenodo.org/records/2535967/files/",
            ),
        ),
    ),
    "tiny_imagenet": Official(
        about="64 x 64 photographs",
        num_train=100_000,
        num_test=10_000,
        num_classes=200,
        layouts=("tiny-imagenet-200", "tiny-imagenet-200.zip"),
        sources=(
            _source(
                "tiny-imagenet-200.zip",
                "md5:90528d7ca1a48142e341f4ef8d21d0de",
                248_100_043,
                "http://cs231n.stanford.edu/",
            ),
        ),
    ),
    "20newsgroups": Official(
        about="texts of the paper",
        num_train=15_998,
        num_test=3_999,
        num_classes=20,
        layouts=("20_newsgroups", "20_newsgroup", "20news-19997.tar.gz", "news20.tar.gz", "20_newsgroups.tar.gz"),
        by_hand="get 20news-19997.tar.gz from qwone.com/~jason/20Newsgroups (no checksum of it is published), "
        "or use 20newsgroups_bydate",
    ),
    "20newsgroups_bydate": Official(
        about="texts, by date",
        num_train=11_314,
        num_test=7_532,
        num_classes=20,
        layouts=("20news-bydate-train", "20news-bydate", "20news-bydate.tar.gz"),
        sources=(
            OfficialFile(
                "20news-bydate.tar.gz",
                (
                    "https://ndownloader.figshare.com/files/5975967",
                    "http://qwone.com/~jason/20Newsgroups/20news-bydate.tar.gz",
                ),
                "sha256:8f1b2514ca22a5ade8fbb9cfa5727df95fa587f4c87b786e15c759fa66d95610",
                14_464_277,
            ),
        ),
    ),
    "glove": Official(
        about="word vectors",
        num_train=0,
        num_test=0,
        num_classes=0,
        layouts=("glove.6B.100d.txt", "glove.6B.zip"),
        sources=(
            _source(
                "glove.6B.zip",
                "sha256:617afb2fe6cbd085c235baf7a465b96f4112bd7f7ccb2b2cbd649fed9cbcf2fb",
                862_182_613,
                "https://downloads.cs.stanford.edu/nlp/data/",
                "https://nlp.stanford.edu/data/",
            ),
        ),
    ),
    "digits": Official(
        about="8 x 8, scikit-learn",
        num_train=800,
        num_test=997,
        num_classes=10,
        layouts=(),
        by_hand="it comes with scikit-learn",
    ),
}


def get_official(name: str) -> Official:
    """Return a published data set by name, or raise a ValueError that lists the names."""
    if name not in OFFICIAL:
        raise ValueError(f"data set must be one of {', '.join(OFFICIAL)}, got {name!r}{did_you_mean(name, OFFICIAL)}")
    return OFFICIAL[name]


def size_notes(name: str, num_train: int, num_test: int) -> tuple[str, ...]:
    """Return a note if a data set has other numbers of samples than the published one: part of it may be missing.

    >>> size_notes("cifar10", 50_000, 10_000)
    ()
    >>> size_notes("cifar10", 30, 10_000)
    ('cifar10 has 30 + 10,000 images instead of 50,000 + 10,000',)
    """
    official = OFFICIAL[name].num_train, OFFICIAL[name].num_test
    note = "{} has {:,} + {:,} images instead of {:,} + {:,}".format(name, num_train, num_test, *official)
    return () if (num_train, num_test) == official else (note,)
