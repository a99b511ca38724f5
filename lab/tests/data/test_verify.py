"""Official files are compared with their checksums, and samples are counted."""

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dualfocal_lab.data import load_data
from dualfocal_lab.data.dataset import DataSet
from dualfocal_lab.data.paths import DataNotFoundError
from dualfocal_lab.data.registry import DATASETS
from dualfocal_lab.data.sources import OFFICIAL, OfficialFile
from dualfocal_lab.data.verify import Check, sample_images, verify, verify_content, verify_files

BINARY = (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")
PYTHON = ("batches.meta", *(f"data_batch_{i}" for i in range(1, 6)), "test_batch")


def checksum(file: str, kind: str = "md5") -> str:
    """Checksum of the official file of that name, which holds its name here."""
    return f"{kind}:{hashlib.new(kind, file.encode()).hexdigest()}"


def publish(monkeypatch, name: str, sources=(), checksums=(), kind="md5") -> None:
    changes = {
        "sources": tuple(OfficialFile(file, (), checksum(file, kind), len(file)) for file in sources),
        "checksums": {file: checksum(file, kind) for file in checksums},
    }
    monkeypatch.setitem(OFFICIAL, name, replace(OFFICIAL[name], **changes))


def put(*paths: Path) -> None:
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(path.name)


@pytest.fixture
def cifar10(monkeypatch) -> None:
    publish(monkeypatch, "cifar10", ["cifar-10-binary.tar.gz"], ["cifar-10-python.tar.gz", *BINARY, *PYTHON])


def test_every_archive_is_checked(monkeypatch, tmp_path):
    files = ["train_32x32.mat", "test_32x32.mat"]
    for kind, folder in (("md5", tmp_path / "a"), ("sha256", tmp_path / "b" / "svhn")):
        publish(monkeypatch, "svhn", files, kind=kind)
        put(*(folder / file for file in files))
        names = []
        checks = list(verify_files("svhn", tmp_path / folder.relative_to(tmp_path).parts[0], reading=names.append))
        assert checks == [Check(str(folder / file), True, kind) for file in files]
        assert names == files


def test_any_change_of_an_archive_is_detected(cifar10, tmp_path):
    path = tmp_path / "cifar-10-binary.tar.gz"
    put(path)
    good = path.read_bytes()
    for content in (b"\xff" + good[1:], good[:-1] + b"\0", good[:-1], b""):
        path.write_bytes(content)
        (check,) = verify_files("cifar10", tmp_path)
        assert (check.what, check.right) == (str(path), False), content
        assert "md5 differs" in check.detail


@pytest.mark.parametrize(
    ("name", "folder", "names"),
    [
        ("cifar10", "cifar-10-batches-bin", BINARY),
        ("cifar10", "cifar-10-batches-py", PYTHON),
        ("cifar100", "cifar-100-python", ("meta", "test", "train")),
    ],
)
def test_each_file_of_a_folder_is_checked_and_missing_ones_are_named(monkeypatch, tmp_path, name, folder, names):
    publish(monkeypatch, name, checksums={"cifar10": (*BINARY, *PYTHON), "cifar100": names}[name])
    paths = [tmp_path / folder / file for file in names]
    put(*paths, tmp_path / folder / "readme.html")
    assert list(verify_files(name, tmp_path)) == [Check(str(path), True, "md5") for path in paths]
    paths[2].write_text("another")
    assert [check.what for check in verify_files(name, tmp_path) if not check.right] == [str(paths[2])]
    put(paths[2])
    for path in paths[:2]:
        path.unlink()
    first, *others = verify_files(name, tmp_path)
    assert first == Check(str(tmp_path / folder), False, f"{names[0]}, {names[1]} missing")
    assert [check.right for check in others] == [True] * (len(names) - 2)


def test_the_folder_itself_may_be_given_and_an_archive_is_checked_too(cifar10, tmp_path):
    put(*(tmp_path / "cifar-10-batches-bin" / name for name in BINARY), tmp_path / "cifar10" / "cifar-10-binary.tar.gz")
    checks = list(verify_files("cifar10", tmp_path / "cifar-10-batches-bin"))
    assert [(Path(check.what).name, check.right) for check in checks] == [(name, True) for name in BINARY]
    (tmp_path / "cifar10" / "cifar-10-binary.tar.gz").write_text("another")
    assert [check.right for check in verify_files("cifar10", tmp_path)] == [True] * 6 + [False]


def test_without_checksums_nothing_is_right_or_wrong(tmp_path):
    put(tmp_path / "cifar-100-binary" / "train.bin", tmp_path / "cifar-100-binary" / "test.bin")
    put(tmp_path / "news20.tar.gz")
    assert list(verify_files("cifar100", tmp_path)) == [
        Check(str(tmp_path / "cifar-100-binary"), None, "no checksums of single files are published")
    ]
    assert list(verify_files("20newsgroups", tmp_path)) == [
        Check(str(tmp_path / "news20.tar.gz"), None, "no checksum is published")
    ]


def test_an_empty_folder_and_half_of_the_files_are_wrong(cifar10, monkeypatch, tmp_path):
    (tmp_path / "cifar-10-batches-bin").mkdir()
    folder = str(tmp_path / "cifar-10-batches-bin")
    assert list(verify_files("cifar10", tmp_path)) == [Check(folder, False, f"{', '.join(BINARY)} missing")]
    publish(monkeypatch, "svhn", ["test_32x32.mat", "train_32x32.mat"])
    put(tmp_path / "test_32x32.mat")
    assert any(check.right is False for check in verify_files("svhn", tmp_path))


def test_missing_data_are_reported_with_the_command_that_fetches_them(tmp_path):
    for name in (name for name, official in OFFICIAL.items() if official.layouts):
        words = rf"^{name}: no .* in .*set DUALFOCAL_DATA \(or --data-root\)"
        with pytest.raises(DataNotFoundError, match=words) as raised:
            list(verify_files(name, tmp_path))
        command = f"run `dualfocal data fetch {name} --data-root {tmp_path}`"
        assert (command in str(raised.value)) == (name != "20newsgroups")
        assert isinstance(raised.value, FileNotFoundError)
        if name in DATASETS:
            with pytest.raises(DataNotFoundError, match=f"^{name}: no "):
                load_data(name, tmp_path)


def test_no_digit_of_an_official_checksum_has_changed():
    sums = {source.checksum for official in OFFICIAL.values() for source in official.sources}
    sums |= {checksum for official in OFFICIAL.values() for checksum in official.checksums.values()}
    digest = hashlib.sha256("\n".join(sorted(sums)).encode()).hexdigest()
    assert digest == "a06711f3ab0a99fd883b87e45b3750574d13ff86e0916c537cdf193379456ce5"


def test_official_checksums_are_of_names_that_are_looked_for():
    for official in OFFICIAL.values():
        archives = {file for file in official.checksums if file.endswith("gz")} | {s.file for s in official.sources}
        assert archives <= set(official.layouts)
        for checksum in (*official.checksums.values(), *(source.checksum for source in official.sources)):
            kind, digest = checksum.split(":")
            assert len(bytes.fromhex(digest)) == {"md5": 16, "sha256": 32}[kind]


# Content


def data_set(train=6, val=2, val2=0, test=4, classes=10) -> DataSet:
    sizes = {"train": train, "val": val, "val2": val2, "test": test}
    places = torch.arange(sum(sizes.values())).split(list(sizes.values()))
    return DataSet(
        name="any",
        class_names=OFFICIAL["cifar10"].class_names if classes == 10 else tuple(map(str, range(classes))),
        inputs=torch.zeros(sum(sizes.values()), 1),
        target=torch.zeros(sum(sizes.values()), dtype=torch.long),
        splits={part: index for part, index in zip(sizes, places, strict=True) if len(index)},
    )


def test_samples_are_counted_however_they_are_split(monkeypatch):
    monkeypatch.setitem(OFFICIAL, "cifar10", replace(OFFICIAL["cifar10"], num_train=8, num_test=4))
    for parts in ({}, {"train": 5, "val2": 1}, {"train": 8, "val": 0}):
        assert verify_content(data_set(**parts), "cifar10") == Check("content", True, "8 + 4 samples in 10 classes")
    cases = [
        ({"train": 1_005}, "1,007 + 4 samples in 10 classes"),
        ({"val": 1}, "7 + 4 samples in 10 classes"),
        ({"test": 5}, "8 + 5 samples in 10 classes"),
        ({"train": 5, "test": 5}, "7 + 5 samples in 10 classes"),
        ({"classes": 9}, "8 + 4 samples in 9 classes"),
    ]
    for parts, counts in cases:
        check = verify_content(data_set(**parts), "cifar10")
        assert check == Check("content", False, f"{counts}, officially 8 + 4 in 10")


def test_content_of_a_test_set():
    assert verify_content(data_set(train=0, val=0, test=10_000), "cifar10c").right is True


def test_verify_returns_the_data_only_if_nothing_is_wrong(cifar10, tmp_path):
    checks, data = verify("digits", tmp_path)
    assert [(check.what, check.right) for check in checks] == [("content", True)]
    assert data.num_classes == 10
    put(*(tmp_path / "cifar-10-batches-bin" / name for name in BINARY))
    checks, data = verify("cifar10", tmp_path)
    assert [check.right for check in checks] == [*[True] * 6, False]
    assert "must consist of records" in checks[-1].detail
    assert data is None


def test_sample_images_are_the_first_of_each_class():
    data = load_data("digits")
    blocks, names = sample_images(data)
    assert names == list("0123456789")
    assert list(blocks) == ["as stored"]  # digits are not augmented
    for label, images in enumerate(blocks["as stored"]):
        train = data.splits["train"]
        assert torch.equal(images, data.inputs[train[data.target[train] == label][:8]])
