"""CIFAR-10-C: official files, and generated noise."""

import io
import os
import pickle

import numpy as np
import pytest
import torch
from official import CIFAR10_NAMES, cifar_files, saying, some_images, write_folder, write_tar

from dualfocal_lab.data import DataNotFoundError, gaussian_noise, load_data

STD = {1: 0.04, 2: 0.06, 3: 0.08, 4: 0.09, 5: 0.10}
EACH = 8  # images of a severity


def npy(array, **options):
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


def official(**changes):
    """Two corruptions; returns images (5 * EACH, 3, 32, 32) of the second, labels, and files by path."""
    images, labels = some_images(5 * EACH)
    arrays = {"fog": np.zeros((5 * EACH, 32, 32, 3), np.uint8), "gaussian_noise": images.transpose(0, 2, 3, 1)}
    arrays |= {"labels": labels.astype(np.uint8)} | changes
    files = {f"CIFAR-10-C/{name}.npy": npy(array) for name, array in arrays.items()}
    return torch.from_numpy(images), torch.from_numpy(labels), files | {"CIFAR-10-C/README.txt": b"by Hendrycks"}


def write(root, files, archive):
    return write_tar(root / "CIFAR-10-C.tar", files) if archive else write_folder(root, files) / "CIFAR-10-C"


# Official files


@pytest.mark.parametrize("archive", [False, True], ids=["folder", "archive"])
def test_severity_selects_its_fifth_of_the_file(archive, tmp_path):
    images, labels, files = official()
    write(tmp_path, files, archive)
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in [(0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)])
    for severity in (1, 2, 5):
        data = load_data("cifar10c", tmp_path, severity=severity)
        part = slice(EACH * (severity - 1), EACH * severity)
        assert torch.equal(data.inputs, images[part]), severity
        assert torch.equal(data.target, labels[part]), severity
        assert data.class_names == CIFAR10_NAMES
        assert {name: indices.tolist() for name, indices in data.splits.items()} == {"test": list(range(EACH))}
        assert (data.augment, data.notes) == (None, ())
        torch.testing.assert_close(data.encoder_of("test")(data.inputs), (images[part] / 255 - mean) / std)


def test_corruptions_are_kept_apart_also_in_the_cache(tmp_path):
    images, _, files = official()
    write(tmp_path, files, archive=False)
    for _ in range(2):
        assert torch.equal(load_data("cifar10c", tmp_path).inputs, images[-EACH:])
        assert not load_data("cifar10c", tmp_path, corruption="fog").inputs.any()


@pytest.mark.parametrize("archive", [False, True], ids=["folder", "archive"])
def test_a_missing_corruption_is_refused_with_those_that_exist(archive, tmp_path):
    path = write(tmp_path, official()[2], archive)
    with pytest.raises(ValueError, match=saying(path, "snow.npy", "missing", "fog.npy, gaussian_noise.npy") + "$"):
        load_data("cifar10c", tmp_path, corruption="snow")


def test_a_corruption_is_a_name_and_no_path(tmp_path):
    for corruption in ("../fog", "fog.npy", "", "a b", "/etc/passwd"):
        with pytest.raises(ValueError, match=saying("corruption must be a name", repr(corruption))):
            load_data("cifar10c", tmp_path, corruption=corruption)


def too_large():
    """The header of 3 exabytes."""
    file = io.BytesIO()
    about = {"descr": "|u1", "fortran_order": False, "shape": (10**15, 32, 32, 3)}
    np.lib.format.write_array_header_1_0(file, about)
    return file.getvalue()


def zipped():
    file = io.BytesIO()
    np.savez(file, np.zeros(3))
    return file.getvalue()


def images_of(*shape, dtype=np.uint8):
    return {"gaussian_noise": np.zeros(shape, dtype)}


def test_wrong_or_damaged_arrays_are_refused_and_not_cached(tmp_path):
    cases = [
        (official(**images_of(40, 32, 32))[2], "(40, 32, 32)"),
        (official(**images_of(40, 3, 32, 32))[2], "(40, 3, 32, 32)"),
        (official(**images_of(40, 32, 32, 3, dtype=np.float32))[2], "float32"),
        (official(labels=np.zeros(39, np.uint8))[2], "(39,)"),
        (official(**images_of(41, 32, 32, 3), labels=np.zeros(41, np.uint8))[2], "5 severities of equal size"),
    ]
    files = official()[2]
    whole = files["CIFAR-10-C/fog.npy"]
    damaged = [(whole[:length], "cannot be read as an array") for length in (0, 5, 60, 2_000)]
    damaged += [(content, "") for content in (b"PK\3\4" + bytes(99), zipped(), too_large())]
    cases += [(files | {"CIFAR-10-C/gaussian_noise.npy": content}, words) for content, words in damaged]
    for content, words in cases:
        path = write(tmp_path, content, archive=False)
        with pytest.raises(ValueError, match=saying(path, "gaussian_noise.npy", words)):
            load_data("cifar10c", tmp_path)
    for labels in (np.full(40, 10), np.full(40, -1), np.full(40, 0.7), np.full(40, "a")):
        path = write(tmp_path, official(labels=labels)[2], archive=False)
        with pytest.raises(ValueError, match=saying(path, "labels.npy")):
            load_data("cifar10c", tmp_path)
    assert not list(tmp_path.glob("decoded/*"))


class Evil:
    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


@pytest.mark.parametrize("archive", [False, True], ids=["folder", "archive"])
def test_pickled_objects_are_refused_and_run_nothing(archive, tmp_path):
    marker = tmp_path / "it ran"
    evil = Evil(f"touch '{marker}'")
    for file in ("gaussian_noise", "labels"):
        for content in (npy(np.array([evil], dtype=object), allow_pickle=True), pickle.dumps(evil)):
            path = write(tmp_path, official()[2] | {f"CIFAR-10-C/{file}.npy": content}, archive)
            with pytest.raises(ValueError, match=saying(path, f"{file}.npy")):
                load_data("cifar10c", tmp_path)
            assert not marker.exists(), file


def test_severity_is_an_integer_from_1_to_5(tmp_path):
    images = torch.zeros(1, 3, 2, 2, dtype=torch.uint8)
    for severity in (0, 6, -1, 1.5, "5", None, 2.0, True):
        words = saying("severity must be an integer from 1 to 5", repr(severity))
        with pytest.raises(ValueError, match=words):
            load_data("cifar10c", tmp_path, severity=severity)
        with pytest.raises(ValueError, match=words):
            gaussian_noise(images, severity)


# Generated noise


def test_noise_is_the_published_formula_pixel_by_pixel():
    images = torch.from_numpy(some_images(3, side=5)[0])
    images[0, 0], images[1, 1] = 0, 255  # to be clipped
    normal = np.random.Generator(np.random.PCG64(7)).standard_normal(images.numel())
    for severity, std in STD.items():
        expected = []
        for value, draw in zip(images.flatten().tolist(), normal.tolist(), strict=True):
            noisy = min(max(value / 255 + std * draw, 0.0), 1.0)
            expected.append(int(noisy * 255))  # cut, not rounded
        assert gaussian_noise(images, severity, seed=7).flatten().tolist() == expected, severity


def test_a_seed_repeats_the_noise_and_the_input_is_not_changed():
    images = torch.from_numpy(some_images(4)[0])
    before = images.clone()
    first = gaussian_noise(images, seed=3)
    torch.manual_seed(99)
    assert torch.equal(gaussian_noise(images, seed=3), first)
    assert not torch.equal(gaussian_noise(images, seed=4), first)
    assert torch.equal(images, before)


def test_noise_is_for_bytes_only():
    with pytest.raises(ValueError, match="uint8"):
        gaussian_noise(torch.zeros(1, 3, 2, 2))


def cifar10(root, each):
    images, labels = some_images(6 * each)
    write_folder(root, cifar_files("cifar10", images, labels))
    return torch.from_numpy(images[5 * each :]), torch.from_numpy(labels[5 * each :])


def test_generate_makes_noise_on_the_test_part_of_cifar10_with_a_note(tmp_path):
    images, labels = cifar10(tmp_path, each=1_001)  # its own default leaves 5,000 to validate
    data = load_data("cifar10c", tmp_path, generate=True, severity=3, seed=5)
    assert torch.equal(data.inputs, gaussian_noise(images, 3, seed=5))
    assert torch.equal(data.target, labels)
    assert data.class_names == CIFAR10_NAMES
    assert data.splits["test"].tolist() == list(range(1_001))
    assert "seed 5" in data.notes[0]


def test_generate_does_not_need_training_images_to_validate(tmp_path):
    images, _ = cifar10(tmp_path, each=4)
    assert torch.equal(load_data("cifar10c", tmp_path, generate=True).inputs, gaussian_noise(images))


def test_other_corruptions_cannot_be_generated(tmp_path):
    with pytest.raises(ValueError, match=saying("only gaussian_noise can be generated", "'fog'")):
        load_data("cifar10c", tmp_path, corruption="fog", generate=True)
    with pytest.raises(DataNotFoundError, match="cifar10:"):
        load_data("cifar10c", tmp_path, generate=True)
