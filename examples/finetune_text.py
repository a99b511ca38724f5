"""Fine-tune a small BERT with the Trainer of Hugging Face, once with cross-entropy and once with dual focal loss.

    pip install "dualfocal[hf]"
    python examples/finetune_text.py

Nothing is downloaded: the texts are made of a few words per topic, and the network is small. A text mentions two
topics, and its label is the one that is more likely in each word: many texts are ambiguous, and a good model is unsure
of them. Less than a minute on two cores.
"""

import random
import tempfile
from functools import partial

from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed
from transformers.trainer_callback import PrinterCallback

from dualfocal import CrossEntropyLoss, DualFocalLoss
from dualfocal.integrations import hf

TOPICS = {
    "cooking": "oven salt onion boil taste recipe butter spoon",
    "finance": "bank loan profit shares budget invest debt tax",
    "health": "doctor sleep virus heart vaccine pain diet nurse",
    "sports": "goal coach match team stadium win league ball",
    "travel": "hotel beach flight map museum luggage train guide",
}
COMMON = ["the", "a", "of", "and", "to", "in", "that", "it", "was", "for", "on", "with", "they", "have", "from", "this"]
EPOCHS = 30
NUM_WORDS = 16  # of a text
VOCABULARY = {word: i for i, word in enumerate([*COMMON, *" ".join(TOPICS.values()).split()])}


def make_text(rng: random.Random) -> tuple[str, int]:
    """Return a text and its label, the number of its main topic."""
    names = list(TOPICS)
    main, other = rng.sample(range(len(names)), 2)
    words = []
    for _ in range(NUM_WORDS):
        source = rng.choices([names[main], names[other], None], weights=[0.3, 0.15, 0.55])[0]
        words.append(rng.choice(COMMON if source is None else TOPICS[source].split()))
    return " ".join(words), main


def make_data(num_texts: int, seed: int) -> list[dict[str, object]]:
    """Return texts as token numbers and labels, as Trainer takes them."""
    rng = random.Random(seed)
    texts = [make_text(rng) for _ in range(num_texts)]
    return [{"input_ids": [VOCABULARY[word] for word in text.split()], "labels": label} for text, label in texts]


def make_model() -> BertForSequenceClassification:
    """Return an untrained BERT with two layers; for a real task, call from_pretrained("bert-base-uncased") instead."""
    config = BertConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=NUM_WORDS,
        num_labels=len(TOPICS),
    )
    return BertForSequenceClassification(config)


def finetune(criterion: CrossEntropyLoss | DualFocalLoss, folder: str) -> dict[str, float]:
    """Train a model and return the metrics of the test set."""
    set_seed(0)
    arguments = TrainingArguments(
        output_dir=folder,
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=32,
        per_device_eval_batch_size=500,
        learning_rate=1e-3,
        save_strategy="no",
        disable_tqdm=True,
        dataloader_pin_memory=False,
        report_to=[],
    )
    trainer = Trainer(
        make_model(),
        arguments,
        train_dataset=make_data(600, seed=1),
        eval_dataset=make_data(2000, seed=2),
        compute_loss_func=hf.loss_func(criterion),  # the line
        compute_metrics=partial(hf.compute_metrics, inference=True),
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return trainer.evaluate()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        for criterion in (CrossEntropyLoss(), DualFocalLoss(gamma=5)):
            metrics = finetune(criterion, folder)
            error, nll, ece, floor = (metrics[f"eval_{name}"] for name in ("error", "nll", "ece", "ece_floor"))
            scores = f"error {error:.1%}  NLL {nll:.3f}  ECE {ece:.1%} (noise floor {floor:.1%})"
            print(f"{type(criterion).__name__:16}  {scores}")
