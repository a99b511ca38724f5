"""The time of a training step of each network of the paper on one GPU, for the costs that --dry-run estimates.

    python benchmarks/step_times_gpu.py [--out lab/src/dualfocal_lab/paper/step_times.json] [--models resnet110,...]

A step is what `dualfocal train` does by default with a batch of 128 samples and dual focal loss: random images of
3 x 32 x 32 with 10 classes, of 3 x 64 x 64 with 200 classes for the net of Tiny-ImageNet, or random texts of 1,000
words for the text CNN. Validation and checkpoints are not included; the median of the epochs after the first. The table
is written after each network. `dualfocal paper reproduce --dry-run` reads lab/src/dualfocal_lab/paper/step_times.json.
"""

import argparse
import gc
import json
import tempfile
import traceback
from dataclasses import replace
from pathlib import Path

import torch
from _measure import Record, about_gpu, gpu_options, show
from train_step_gpu import BATCH, image_recipe, ours, random_images

from dualfocal_lab.data import DataSet, Embed
from dualfocal_lab.runs import Recipe
from dualfocal_lab.train.presets import texts

MODELS = [  # the most important first, in case that the time does not suffice
    *("resnet110", "tiny_resnet50", "text_cnn"),
    *("resnet50", "wide_resnet26_10", "densenet121"),
    *("resnet110_kde", "resnet110_sd", "wide_resnet34_10", "densenet40"),
]
WORDS, WIDTH, LENGTH = 20_000, 100, 1_000  # vocabulary, size of the word vectors, words of a text


def random_texts(num_samples: int) -> DataSet:
    """A data set like 20 Newsgroups, with 100 more texts each for validation and for the test."""
    generator = torch.Generator().manual_seed(0)
    total = num_samples + 200
    train, val, test = torch.arange(total).split([num_samples, 100, 100])
    return DataSet(
        name="random texts",
        class_names=tuple(map(str, range(20))),
        inputs=torch.randint(WORDS, (total, LENGTH), generator=generator),
        target=torch.arange(total) % 20,
        splits={"train": train, "val": val, "test": test},
        encoder=Embed(torch.randn(WORDS, WIDTH, generator=generator)),
    )


def recipe_of(model: str, folder: Path, num_samples: int, epochs: int) -> Recipe:
    """The recipe of a network; random images are written to the folder."""
    if model == "text_cnn":
        options = {"num_samples": num_samples}
        return replace(texts(), data="step_times_gpu:random_texts", data_options=options, epochs=epochs, weights="last")
    size, classes = (64, 200) if model == "tiny_resnet50" else (32, 10)
    data = folder / f"random{size}.npz"
    if not data.exists():
        random_images(data, num_samples, size, classes)
    return image_recipe(data, model, epochs)


def main() -> None:
    """Measure each network."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the table to this JSON file")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--samples", type=int, default=10_000, help="in an epoch")
    parser.add_argument("--epochs", type=int, default=4, help="the first is not timed")
    args = gpu_options(parser)
    if args.check:
        args.models, args.samples, args.epochs = "small_cnn,text_cnn", BATCH, 2
    about = about_gpu()
    records: list[Record] = []
    with tempfile.TemporaryDirectory() as folder:
        for model in args.models.split(","):
            try:
                record = ours(recipe_of(model, Path(folder), args.samples, args.epochs))
            except Exception:  # go on with the next network
                traceback.print_exc()
                continue
            records.append({"model": model} | record | {"ms_a_step": round(record["ms_a_step"], 2)} | about)
            print(f"{model}: {records[-1]['ms_a_step']} ms", flush=True)
            gc.collect()
            torch.cuda.empty_cache()
            if args.out:
                milliseconds = {record["model"]: record["ms_a_step"] for record in records}
                table = {**about, "batch_size": BATCH, "milliseconds": milliseconds}
                args.out.write_text(json.dumps(table, indent=2) + "\n")
    show("Training steps on one GPU", records, args.csv)


if __name__ == "__main__":
    main()
