"""lm-evaluation-harness writes logs for a tiny model, and our accuracies are the ones that it reports."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dualfocal.predictions import load_choices

pytest.importorskip("lm_eval", reason="make test-integrations installs it")
transformers = pytest.importorskip("transformers", reason="make test-integrations installs it")
tokenizers = pytest.importorskip("tokenizers", reason="make test-integrations installs it")

TASK = """
task: {name}
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
output_type: multiple_choice
test_split: test
doc_to_text: "{{{{passage}}}} {{{{question}}}}\\nAnswer:"
doc_to_choice: "{{{{options}}}}"
doc_to_target: answer
metric_list:
  - metric: acc
  - metric: acc_norm
  - metric: acc_bytes
  - metric: acc_mutual_info
"""
METRICS = {"sum": "acc", "per-char": "acc_norm", "per-byte": "acc_bytes", "mutual-info": "acc_mutual_info"}
OPTIONS = ["\u00fcber", "a red fox", "two", "nothing at all", "snow", "14 cats", "\u96ea"]


def write_model(folder: Path) -> None:
    """Save a Llama with random weights and a tokenizer of bytes."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate([*alphabet, "<s>", "</s>"])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    special = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "</s>"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.6,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)


def write_task(folder: Path, name: str, least: int, most: int) -> None:
    rng = random.Random(name)
    with (folder / f"{name}.jsonl").open("w", encoding="utf-8") as file:
        for i in range(40):
            options = rng.sample(OPTIONS, rng.randint(least, most))
            doc = {"passage": f"Story {i // 4}.", "question": f"What ({i})?", "options": options}
            file.write(json.dumps(doc | {"answer": rng.randrange(len(options))}) + "\n")
    (folder / f"{name}.yaml").write_text(TASK.format(name=name, data=folder / f"{name}.jsonl"))


@pytest.fixture(scope="module")
def output(tmp_path_factory) -> Path:
    """Run the harness, without a network."""
    folder = tmp_path_factory.mktemp("lm_eval")
    write_model(folder / "model")
    write_task(folder, "varying", 2, 6)
    write_task(folder, "four", 4, 4)
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(folder / "cache")}
    arguments = ["--model", "hf", "--model_args", f"pretrained={folder / 'model'},dtype=float32", "--device", "cpu"]
    arguments += ["--tasks", "varying,four", "--include_path", str(folder), "--output_path", str(folder / "output")]
    command = [sys.executable, "-m", "lm_eval", *arguments, "--log_samples", "--batch_size", "8"]
    done = subprocess.run(command, env=os.environ | offline, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder / "output"


@pytest.mark.parametrize("score", METRICS)
def test_our_accuracy_is_the_one_that_the_harness_reports(output, score):
    (results,) = output.rglob("results_*.json")
    reported = json.loads(results.read_text())["results"]
    logs = load_choices(output, format="lm-eval")
    assert sorted(log.task for log in logs) == ["four", "varying"]
    for log in logs:
        choices = log.choices(score)
        assert (choices.chosen == choices.right).mean() == pytest.approx(reported[log.task][f"{METRICS[score]},none"])
        assert log.disagreement(score) == (40, 0)
        assert log.cluster_name == "passage"
        assert log.clusters.tolist() == [i // 4 for i in range(40)]
