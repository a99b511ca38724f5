"""Small files in the official formats of the data sets, written to a folder, a tar or a zip."""

import io
import os
import pickle
import re
import struct
import tarfile
import zipfile
from pathlib import Path

import numpy as np
from PIL import Image

CIFAR10_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CIFAR100_NAMES = tuple(f"fine_{label}" for label in range(100))
COARSE_NAMES = tuple(f"coarse_{label}" for label in range(20))


# Files on disk, from a dict of path and content


def write_folder(root, files):
    for name, content in files.items():
        path = Path(root, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return Path(root)


def write_tar(path, files):
    """Write the files backwards, because official archives have no order either."""
    with tarfile.open(path, "w:gz" if path.name.endswith("gz") else "w") as archive:
        for name in sorted(files, reverse=True):
            member = tarfile.TarInfo(name)
            member.size = len(files[name])
            archive.addfile(member, io.BytesIO(files[name]))
    return path


def write_zip(path, files):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(files, reverse=True):
            archive.writestr(name, files[name])
    return path


def overwrite(path, content, *, seconds_later):
    """Write a file again, and set its time; with 0 it seems to be unchanged."""
    before = path.stat().st_mtime_ns
    path.write_bytes(content)
    os.utime(path, ns=(before, before + seconds_later * 10**9))


def saying(*parts):
    """A pattern for ``pytest.raises``: these texts, in this order."""
    return "(?s)" + ".*".join(re.escape(str(part)) for part in parts)


# Images


def some_images(count, num_classes=10, *, side=32, seed=0):
    """Random pixels (N, 3, side, side), and labels of all classes."""
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (count, 3, side, side), dtype=np.uint8)
    return images, rng.permutation(count) % num_classes


def encoded(pixels, suffix=".png", **options):
    """An image file of pixels (height, width, 3), or (height, width) for a grey one."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, Image.registered_extensions()[suffix], **options)
    return file.getvalue()


# CIFAR


def cifar_files(name, images, labels, version="binary"):
    """Files of version "binary", "python 2" or "python 3"; five sixths of the images are for training."""
    small = name == "cifar10"
    batches = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"] if small else ["train", "test"]
    cuts = [len(labels) * part // 6 for part in (range(1, 6) if small else [5])]
    parts = list(zip(batches, np.split(images, cuts), np.split(labels, cuts), strict=True))
    if version == "binary":
        top = "cifar-10-batches-bin" if small else "cifar-100-binary"
        files = {f"{batch}.bin": cifar_records(pixels, labels, coarse=not small) for batch, pixels, labels in parts}
        names = {"batches.meta.txt": CIFAR10_NAMES} if small else {"fine_label_names.txt": CIFAR100_NAMES}
        names |= {} if small else {"coarse_label_names.txt": COARSE_NAMES}
        files |= {file: ("\n".join(lines) + "\n\n").encode() for file, lines in names.items()}
    else:
        top = "cifar-10-batches-py" if small else "cifar-100-python"
        dump = python2_pickle if version == "python 2" else python3_pickle
        files = {batch: dump(cifar_dict(pixels, labels, batch, coarse=not small)) for batch, pixels, labels in parts}
        if small:
            files["batches.meta"] = dump({"num_cases_per_batch": 4, "label_names": [*CIFAR10_NAMES], "num_vis": 3072})
        else:
            files["meta"] = dump({"fine_label_names": [*CIFAR100_NAMES], "coarse_label_names": [*COARSE_NAMES]})
    return {f"{top}/{file}": content for file, content in (files | {"readme.html": b"<html></html>"}).items()}


def coarse_of(labels):
    return (labels + 7) % 20


def cifar_records(images, labels, *, coarse):
    heads = ([coarse_of(labels)] if coarse else []) + [labels]
    return np.column_stack([*heads, images.reshape(len(images), -1)]).astype(np.uint8).tobytes()


def cifar_dict(images, labels, batch, *, coarse):
    content = {"filenames": [f"image_{i}.png" for i in range(len(labels))], "batch_label": batch}
    content |= {"fine_labels": labels.tolist(), "coarse_labels": coarse_of(labels).tolist()} if coarse else {}
    content |= {} if coarse else {"labels": labels.tolist()}
    return content | {"data": images.reshape(len(images), -1)}


def python3_pickle(value):
    return pickle.dumps(value, protocol=2)


def python2_pickle(value):
    """Protocol 2 as Python 2 wrote it: every str is a byte string, and arrays come from ``numpy.core``."""
    return b"\x80\x02" + _python2(value) + b"."


def _python2(value):
    match value:
        case int():
            return b"J" + struct.pack("<i", value)
        case str():
            return b"U" + bytes([len(value)]) + value.encode("latin-1")
        case list():
            return b"](" + b"".join(map(_python2, value)) + b"e"
        case dict():
            return b"}(" + b"".join(_python2(key) + _python2(item) for key, item in value.items()) + b"u"
        case np.ndarray():
            content, shape = value.tobytes(), b"(" + b"".join(map(_python2, value.shape)) + b"t"
            dtype = b"cnumpy\ndtype\n(U\x02u1K\x00K\x01tR(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
            return (
                b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tU\x01btR"
                b"(K\x01" + shape + dtype + b"\x89T" + struct.pack("<i", len(content)) + content + b"tb"
            )
    raise TypeError(type(value))


# Tiny-ImageNet

TINY = "tiny-imagenet-200"


def tiny_imagenet_files(*, train, val, sorted_val=False, seed=0):
    """``train``: class -> numbers; ``val``: number -> class, in a table or, sorted, in folders."""
    rng = np.random.default_rng(seed)
    names = [f"train/{label}/images/{label}_{number}.JPEG" for label, numbers in train.items() for number in numbers]
    names += [f"val/{label if sorted_val else 'images'}/val_{number}.JPEG" for number, label in val.items()]
    names += ["test/images/test_0.JPEG"]
    files = {f"{TINY}/{name}": encoded(rng.integers(0, 256, (64, 64, 3), dtype=np.uint8), ".jpeg") for name in names}
    files |= {f"{TINY}/train/{label}/{label}_boxes.txt": f"{label}_0.JPEG\t0\t10\t63\t58\n".encode() for label in train}
    files |= {f"{TINY}/wnids.txt": "".join(f"{label}\n" for label in train).encode()}
    if not sorted_val:
        lines = [f"val_{number}.JPEG\t{label}\t0\t32\t44\t62\n" for number, label in val.items()]
        files[f"{TINY}/val/val_annotations.txt"] = "".join(lines).encode()
    return files


# 20 Newsgroups


def message(body, *, header="From: someone\nSubject: headerword"):
    return f"{header}\n\n{body}\n".encode("latin-1")


def newsgroup_files(top, texts):
    """``texts``: group -> {number: body}."""
    return {
        f"{top}/{group}/{number}": message(body) for group, bodies in texts.items() for number, body in bodies.items()
    }


def vector_lines(vectors):
    """Lines of ``{word: numbers}`` in the format of GloVe."""
    return "".join(f"{word} {' '.join(map(str, numbers))}\n" for word, numbers in vectors.items()).encode()
