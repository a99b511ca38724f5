"""A tiny causal language model trained by Trainer: by a test, or as one of the processes that a test starts.

python tiny_llama.py FOLDER BATCH_SIZE ACCUMULATION
"""

import os
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from dualfocal import DualFocalLoss
from dualfocal.integrations import hf

NUM_SEQUENCES, LENGTH, VOCABULARY = 8, 7, 11
STEPS, LEARNING_RATE, GAMMA = 3, 0.5, 3.0


def sequences() -> dict[str, Tensor]:
    """Tokens, and labels of which different numbers are left out."""
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(VOCABULARY, (NUM_SEQUENCES, LENGTH), generator=generator)
    labels = tokens.clone()
    for i, row in enumerate(labels):
        row[LENGTH - i // 2 :] = -100
    return {"input_ids": tokens, "labels": labels}


class Rows(Dataset[dict[str, Tensor]]):
    """A data set of dicts from a dict of tensors."""

    def __init__(self, columns: dict[str, Tensor]) -> None:
        self.columns = columns

    def __len__(self) -> int:
        return len(self.columns["labels"])

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {name: column[index] for name, column in self.columns.items()}


def make_llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=16,
    )
    return LlamaForCausalLM(config)


def arguments(folder: Path, **options: object) -> TrainingArguments:
    """Arguments for quiet training on the CPU, by plain SGD."""
    defaults = {
        "output_dir": str(folder),
        "use_cpu": True,
        "report_to": [],
        "save_strategy": "no",
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
        "optim": "sgd",
        "lr_scheduler_type": "constant",
        "learning_rate": LEARNING_RATE,
        "max_grad_norm": 0.0,
    }
    return TrainingArguments(**(defaults | options))  # type: ignore[arg-type]


def train(folder: Path, batch_size: int, accumulation: int) -> nn.Module:
    """Train for some steps, each of which sees all sequences."""
    model = make_llama()
    options: dict[str, object] = {
        "per_device_train_batch_size": batch_size,
        "gradient_accumulation_steps": accumulation,
    }
    if "WORLD_SIZE" in os.environ:
        options["ddp_backend"] = "gloo"
    trainer = Trainer(
        model,
        arguments(folder, num_train_epochs=STEPS, **options),
        train_dataset=Rows(sequences()),
        compute_loss_func=hf.loss_func(DualFocalLoss(gamma=GAMMA), task="causal_lm"),
    )
    trainer.train()
    assert trainer.state.global_step == STEPS
    return model


if __name__ == "__main__":
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    model = train(folder, int(sys.argv[2]), int(sys.argv[3]))
    parameters = {name: value.detach().clone() for name, value in model.named_parameters()}
    save_file(parameters, folder / f"rank{os.environ['RANK']}.safetensors")
