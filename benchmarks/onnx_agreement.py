"""Largest difference between onnxruntime and torch for every calibrator, and the time that a calibrator adds.

    python benchmarks/onnx_agreement.py --csv benchmarks/results/onnx_agreement.csv
    python benchmarks/onnx_agreement.py --times --csv benchmarks/results/onnx_times.csv

Each calibrator is fitted to 3,000 rows, exported alone, and applied by both to the same rows: those of the fit, which
lie on the knots of isotonic regression, and 100,000 random ones of scale 1, 3 and 10 (10,000 with 1,000 classes, that
is ten million probabilities). Needs the extra ``onnx``.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import onnxruntime
import torch
from _measure import Record, cpu_name, show, write_csv
from torch import Tensor, nn

from dualfocal.calibrators import CALIBRATORS, CalibratedModel, Calibrator, make_calibrator
from dualfocal.integrations.onnx import BOUNDS, export_onnx
from dualfocal_lab.models import make_model

NAMES = (*CALIBRATORS, "temperature+isotonic", "vector+histogram")
CASES = [(10, "float32"), (10, "float64"), (1000, "float32")]
KINDS = ("temperature", "beta", "histogram", "isotonic", "bbq")  # for 1,000 classes, and for times
FIT_ROWS = 3000
CHUNK = 1 << 21  # elements


def simulate(rows: int, classes: int, scale: float, seed: int) -> Tensor:
    """Float64 logits."""
    return scale * torch.randn(rows, classes, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def simulate_fit(classes: int) -> tuple[Tensor, Tensor]:
    """Logits that are twice too large, and labels, of which a tenth is random: so ensemble scaling has three parts."""
    logits, generator = simulate(FIT_ROWS, classes, 3.0, 0), torch.Generator().manual_seed(1)
    target = torch.multinomial((logits / 2).softmax(1), 1, generator=generator)[:, 0]
    random = torch.rand(FIT_ROWS, generator=generator) < 0.1
    return logits, torch.where(random, torch.randint(classes, target.shape, generator=generator), target)


def batches(rows: int, classes: int) -> Iterator[Tensor]:
    """Rows of the fit, then random ones of three scales."""
    yield simulate_fit(classes)[0]
    size = max(1, min(CHUNK // classes, rows // 3))
    for seed, start in enumerate(range(0, rows, size), 1):
        yield simulate(min(size, rows - start), classes, (1.0, 3.0, 10.0)[seed % 3], seed)


def measure_agreement(name: str, classes: int, dtype_name: str, rows: int) -> Record:
    """Largest difference of a probability, over all rows."""
    dtype = getattr(torch, dtype_name)
    fit_logits, target = simulate_fit(classes)
    calibrator = make_calibrator(name).fit(fit_logits.to(dtype), target)
    model = CalibratedModel(nn.Identity(), calibrator)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "calibrator.onnx")
        verified = export_onnx(model, fit_logits[:2].to(dtype), path)
        session = load(path)
    difference, beyond, total = 0.0, 0, 0
    for logits in batches(rows, classes):
        logits = logits.to(dtype)
        result = torch.from_numpy(session.run(None, {"logits": logits.numpy()})[0])
        change = (result.double() - model(logits).double()).abs().amax(1)
        difference, total = max(difference, float(change.max())), total + len(logits)
        beyond += int((change > BOUNDS[dtype]).sum())
    knots = [step.knots.shape[1] for step in calibrator.modules() if hasattr(step, "knots")]
    return {
        "method": name,
        "classes": classes,
        "dtype": dtype_name,
        "knots_per_class": max(knots, default=""),
        "rows": total,
        "largest_difference": f"{difference:.1e}",
        "bound": f"{BOUNDS[dtype]:.0e}",
        "rows_beyond_bound": beyond,
        "hard_rows": verified.rows,
        "hard_difference": f"{verified.difference:.1e}",
        "at_jumps": verified.rows_at_jumps,
        "at_jumps_difference": f"{verified.difference_at_jumps:.1e}",
        **versions(),
    }


def measure_times(name: str, model_name: str, model: nn.Module, example: Tensor, calibrator: Calibrator) -> Record:
    """Least time of 40 calls of the calibrated model over that of the plain one, which take turns."""
    with tempfile.TemporaryDirectory() as folder:
        calibrated, plain = Path(folder, "calibrated.onnx"), Path(folder, "plain.onnx")
        export_onnx(CalibratedModel(model, calibrator), example[:2], calibrated, input_names=["x"])
        shapes = ({0: torch.export.Dim("batch")},)
        options = {"input_names": ["x"], "dynamo": True, "verbose": False, "external_data": False}
        torch.onnx.export(
            nn.Sequential(model, nn.Softmax(1)).eval(), (example[:2],), plain, dynamic_shapes=shapes, **options
        )
        sessions = [load(plain), load(calibrated)]
    seconds: list[list[float]] = [[], []]
    for _ in range(40):
        for times, session in zip(seconds, sessions, strict=True):
            start = time.perf_counter()
            session.run(None, {"x": example.numpy()})
            times.append(time.perf_counter() - start)
    before, after = map(min, seconds)  # other processes can only slow a call down
    return {
        "model": model_name,
        "classes": model(example[:2]).shape[1],
        "batch": len(example),
        "method": name,
        "plain_ms": f"{1000 * before:.3f}",
        "calibrated_ms": f"{1000 * after:.3f}",
        "calibrated_over_plain": f"{after / before:.2f}",
        **versions(),
    }


def load(path: Path) -> onnxruntime.InferenceSession:
    """A session on one thread of the CPU."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def versions() -> Record:
    """What the numbers depend on."""
    return {"onnxruntime": onnxruntime.__version__, "torch": torch.__version__, "cpu": cpu_name()}


def time_all() -> list[Record]:
    """A network for 10 classes, and the last layer of one for 1,000 classes."""
    records = []
    torch.manual_seed(0)
    networks = [
        (
            "small_cnn 32 x 32",
            make_model("small_cnn", num_classes=10, in_channels=3).eval(),
            torch.randn(64, 3, 32, 32),
        ),
        ("last layer of 2048 features", nn.Linear(2048, 1000).eval(), torch.randn(64, 2048)),
    ]
    for model_name, model, example in networks:
        classes = model(example[:2]).shape[1]
        for name in KINDS:
            print(model_name, name, file=sys.stderr)
            calibrator = make_calibrator(name).fit(*simulate_fit(classes))
            records.append(measure_times(name, model_name, model, example, calibrator))
    return records


def main() -> None:
    """Measure, print, and write the CSV if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", type=Path, help="write the records here")
    parser.add_argument("--rows", type=int, default=100_000, help="number of random rows (default 100,000)")
    parser.add_argument("--times", action="store_true", help="measure times instead")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    if args.times:
        show("calibrated over plain ONNX model, one thread", time_all(), args.csv)
        return
    records = []
    for classes, dtype in CASES:
        many = classes >= 1000
        for name in KINDS if many else NAMES:
            print(classes, dtype, name, file=sys.stderr)
            records.append(measure_agreement(name, classes, dtype, args.rows // 10 if many else args.rows))
            if args.csv:  # a stopped run keeps what it has
                write_csv(records, args.csv)
    show("onnxruntime and torch on the same logits", records, args.csv)


if __name__ == "__main__":
    main()
