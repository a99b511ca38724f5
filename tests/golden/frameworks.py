"""Other frameworks: scikit-learn, SQL, Ray Data, Hugging Face, Lightning, ONNX. All but the first are optional."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import inputs
import numpy as np
import torch
from torch import Tensor, nn
from values import Recording, Section

from dualfocal import DualFocalLoss
from dualfocal.calibrators import CalibratedModel, make_calibrator

FEW = {"draws": 200, "seed": 1}


def scikit_learn(rec: Recording) -> None:
    """`ProbabilityCalibrator` behind a classifier, and `ReliabilityDisplay`."""
    from matplotlib.figure import Figure
    from sklearn.linear_model import LogisticRegression

    from dualfocal.integrations.sklearn import ProbabilityCalibrator, ReliabilityDisplay

    x, y = inputs.sample(500, 4, 180)
    rng = np.random.default_rng(181)
    classifier = LogisticRegression(max_iter=500).fit(x[:200] + rng.normal(size=(200, 4)), y[:200])
    probs = classifier.predict_proba(x)
    rec.put("classifier", probs[:20])
    for method in ("temperature", "vector", "isotonic"):
        calibrator = ProbabilityCalibrator(method).fit(probs[200:400], y[200:400])
        rec.put(f"{method}/predict_proba", calibrator.predict_proba(probs[400:]))
        rec.put(f"{method}/predict", calibrator.predict(probs[400:]))
    logits = ProbabilityCalibrator("temperature", input="logits").fit(x[:300], y[:300])
    rec.put("logits/transform", logits.transform(x[300:340]))
    axes = Figure().subplots()
    display = ReliabilityDisplay.from_predictions(y[400:], probs[400:], n_bins=10, ax=axes)
    rec.put("display/evaluation", display.evaluation)
    rec.put("display/figure", axes.figure)


def sql(rec: Recording) -> None:
    """A table in DuckDB: sums, evaluation, groups; files that are read by the database."""
    import duckdb

    from dualfocal.integrations.sql import PredictionTable, evaluate_table

    inputs.write_files()
    with duckdb.connect() as connection:
        connection.execute("SET threads = 1")
        for source in ("five.csv", "five.parquet", "words.csv"):
            query = f"SELECT * FROM '{source}'"
            names = {"probs": ",".join(inputs.NAMES)} if source == "words.csv" else {}
            rec.put(f"{source}/evaluation", evaluate_table(connection, query, **names))
            rec.put(f"{source}/sums", PredictionTable.find(connection, query, **names).sums(num_bins=8).evaluate())
        table = PredictionTable.find(connection, "SELECT * FROM 'five.csv'", group="hospital")
        groups = {name: sums.evaluate(inference=True, **FEW) for name, sums in table.sums_by_group().items()}
        rec.put("groups", groups)


def ray_data(rec: Recording) -> None:
    """A Ray data set in several blocks."""
    import ray

    from dualfocal.integrations.ray_data import evaluate_dataset, sums_of_dataset

    logits, target = inputs.sample(400, 4, 185)
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        ray.data.DataContext.get_current().enable_progress_bars = False
        rows = [{"scores": row.tolist(), "label": int(label)} for row, label in zip(logits, target, strict=True)]
        dataset = ray.data.from_items(rows, override_num_blocks=5)
        rec.call("evaluate", evaluate_dataset, dataset, logits="scores", target="label", **FEW)
        sums = sums_of_dataset(dataset, logits="scores", target="label", num_bins=10)
        rec.put("sums", sums.evaluate())
    finally:
        ray.shutdown()


def tiny_llama() -> nn.Module:
    """Return a language model with random weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=13, **sizes)).eval()
    with torch.no_grad():
        model.lm_head.weight *= 40
    return model


def hugging_face(rec: Recording) -> None:
    """The loss and the metrics of the Trainer, and the evaluation of a causal language model."""
    from dualfocal.integrations import hf

    logits, target = inputs.tensors(*inputs.sample(40, 5, 190))
    compute_loss = hf.loss_func(DualFocalLoss(gamma=2.0))
    rec.put("loss", compute_loss({"logits": logits}, target))
    rec.put("loss/step", compute_loss({"logits": logits}, target, num_items_in_batch=80))
    rec.put("metrics", hf.compute_metrics((logits.numpy(), target.numpy()), inference=True))
    model = tiny_llama()
    tokens = torch.from_numpy(np.random.default_rng(191).integers(0, 13, (24, 16)))
    with torch.no_grad():
        scores = model(tokens).logits
    rec.put("causal/loss", hf.loss_func(DualFocalLoss(), task="causal_lm")({"logits": scores}, tokens))
    statistics = hf.lm_statistics(scores, tokens)
    rec.put("causal/statistics", statistics)
    prediction = SimpleNamespace(predictions=statistics.numpy(), label_ids=tokens.numpy())
    rec.put("causal/metrics", hf.compute_lm_metrics(prediction))
    batches = [{"input_ids": part} for part in tokens.split(10)]
    counts = hf.count_tokens(batches)
    rec.put("causal/counts", counts)
    rec.call("causal/evaluation", hf.evaluate_causal_lm, model, batches, token_counts=counts, **FEW)
    rec.call("causal/logits", hf.evaluate_causal_lm, model, batches, head="logits", chunk_size=8, **FEW)


def lightning(rec: Recording) -> None:
    """The callback: what it logs in validation and test, and the temperature in its state."""
    import lightning.pytorch as pl
    from torch.utils.data import DataLoader, TensorDataset

    from dualfocal.integrations.lightning import CalibrationCallback

    class Linear(pl.LightningModule):
        """A classifier whose steps return what the callback needs."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
            """Return the loss."""
            return DualFocalLoss(gamma=2.0)(self.layer(batch[0]), batch[1])

        def validation_step(self, batch: list[Tensor], batch_idx: int) -> Any:
            """Return logits and labels."""
            return {"logits": self.layer(batch[0]), "target": batch[1]}

        test_step = validation_step

        def configure_optimizers(self) -> torch.optim.Optimizer:
            """Return the optimizer."""
            return torch.optim.SGD(self.parameters(), lr=0.1)

    x, y = inputs.tensors(*inputs.sample(300, 4, 195))
    parts = [DataLoader(TensorDataset(x[i : i + 100].float(), y[i : i + 100]), 25) for i in (0, 100, 200)]
    callback = CalibrationCallback(inference=True)
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False, "num_sanity_val_steps": 0}
    torch.manual_seed(2)
    model = Linear()
    trainer = pl.Trainer(
        accelerator="cpu", devices=1, max_epochs=2, callbacks=[callback], default_root_dir=".", **quiet
    )
    trainer.fit(model, *parts[:2])
    rec.put("fit", {name: float(value) for name, value in trainer.callback_metrics.items()})
    trainer.test(model, parts[2], verbose=False)
    rec.put("test", {name: float(value) for name, value in trainer.callback_metrics.items()})
    rec.put("temperature", float(callback.calibrator.temperature))
    rec.put("evaluation", callback.evaluation)


def onnx(rec: Recording) -> None:
    """Exported calibrators: what onnxruntime gives, and how far it is from torch."""
    import onnxruntime

    from dualfocal.integrations.onnx import export_onnx

    logits, target = inputs.tensors(*inputs.sample(400, 4, 200))
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4)).eval()
    x = logits[:20].float()
    for name in ("temperature", "vector", "isotonic"):
        fitted = make_calibrator(name).fit(model(logits.float()).detach(), target)
        path = Path(f"{name}.onnx")
        agreement = export_onnx(CalibratedModel(model, fitted), x, path)
        names = ("inputs", "output", "dtype", "bound", "rows", "batch_sizes")
        rec.put(f"{name}/agreement", {field: getattr(agreement, field) for field in names})
        rec.put(f"{name}/within-bound", agreement.difference <= agreement.bound)
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        (probs,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        rec.put(f"{name}/probs", probs)


SECTIONS = {
    "ray_data": Section(ray_data, needs=("ray",)),
    "hugging_face": Section(hugging_face, needs=("transformers",)),
    "lightning": Section(lightning, needs=("lightning",)),
    "onnx": Section(onnx, needs=("onnx", "onnxruntime", "onnxscript")),
    "sql": Section(sql, needs=("duckdb",)),
    "scikit_learn": Section(scikit_learn, needs=("sklearn",)),
}
