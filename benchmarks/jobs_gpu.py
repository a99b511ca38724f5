"""Several trainings at a time on one GPU: images a second in all, for 1 to 4 trainings.

    python benchmarks/jobs_gpu.py [--csv benchmarks/results/jobs_gpu.csv] [--models resnet50,small_cnn] [--jobs 1,2,3,4]

Each number of jobs is one study, run as `dualfocal study --jobs N` does: N processes of the local engine, which share
the GPU by CUDA's multi-process service if it is there. All train the same net for the same number of epochs of random
images, with batches of 128. The rate of a training is the median over its epochs except the first and the last, in
which others may not have started or have ended; "in steps" without validation, log and checkpoints, "in epochs" with
them. Rates are summed over the trainings; the ratio is that of whole epochs to one job.
"""

import argparse
import shutil
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from _measure import DEVICE, Record, about_gpu, gpu_options, show
from train_step_gpu import BATCH, image_recipe, random_images

from dualfocal_lab.runs import Run
from dualfocal_lab.study import LocalEngine, Study, run_study
from dualfocal_lab.study.multi_process_service import CONTROL

EPOCHS = {"resnet50": 12, "small_cnn": 100}  # enough for the trainings to overlap


def measure(model: str, jobs: int, data: Path, num_images: int, epochs: int) -> Record:
    """Train with a number of jobs. Returns their rates, summed."""
    recipe = image_recipe(data, model, epochs)
    study = Study(model, {model: {seed: replace(recipe, seed=seed) for seed in range(jobs)}})
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as out:
        if failed := run_study(study, Path(out), engine=LocalEngine(jobs, DEVICE.type)):
            raise RuntimeError(f"{model}, {jobs} jobs: {failed}")
        logs = [Run(folder).log[1:-1] for folder in study.folders(Path(out)).values()]
    seconds = time.perf_counter() - start
    in_steps = [statistics.median(line["images_per_second"] for line in log) for log in logs]
    in_epochs = [num_images / statistics.median(line["seconds"] for line in log) for log in logs]
    return {
        "model": model,
        "jobs": jobs,
        "images_a_second_in_steps": round(sum(in_steps)),
        "images_a_second_in_epochs": round(sum(in_epochs)),
        "slowest": round(min(in_steps)),
        "fastest": round(max(in_steps)),
        "study_s": round(seconds, 1),
    }


def main() -> None:
    """Measure each net with each number of jobs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(EPOCHS))
    parser.add_argument("--jobs", default="1,2,3,4", help="numbers of trainings at a time (default %(default)s)")
    parser.add_argument("--images", type=int, default=10_000, help="in an epoch")
    args = gpu_options(parser)
    if args.check:
        args.models, args.jobs, args.images = "small_cnn", "1,2", 4 * BATCH
    service = DEVICE.type == "cuda" and shutil.which(CONTROL) is not None
    about = {"multi_process_service": service} | about_gpu()
    num_images = args.images // BATCH * BATCH  # the last batch of an epoch must be full
    records: list[Record] = []
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "random.npz"
        random_images(data, num_images, 32, 10)
        for model in args.models.split(","):
            alone = 0
            for jobs in map(int, args.jobs.split(",")):
                record = measure(model, jobs, data, num_images, 4 if args.check else EPOCHS[model])
                alone = alone or record["images_a_second_in_epochs"]
                ratio = {"times_one_job": round(record["images_a_second_in_epochs"] / alone, 2)}
                records.append(record | ratio | about)
                print(f"{model}, {jobs} jobs: {record['images_a_second_in_epochs']} images/s", flush=True)
                show("Trainings at a time on one GPU", records, args.csv)


if __name__ == "__main__":
    main()
