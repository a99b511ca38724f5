"""Next-token calibration of tiny models of transformers, against all logits in a slow loop."""

import os

import pytest
import torch
from causal_lms import VOCABULARY, oracle, padded, texts
from torch import nn

from dualfocal.integrations import hf
from dualfocal.metrics import TokenConfidences

os.environ["HF_HUB_OFFLINE"] = "1"
if os.environ.get("DUALFOCAL_INTEGRATIONS") != "required":  # in make test-integrations, a missing library is a failure
    pytest.importorskip("transformers", reason="make test-integrations installs it")
import transformers as T

SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
KEYS = {"num_key_value_heads": 2}
MAKE = {
    "llama": lambda: T.LlamaForCausalLM(T.LlamaConfig(**SIZES, **KEYS)),
    "gpt2": lambda: T.GPT2LMHeadModel(T.GPT2Config(**SIZES)),
    "gpt_neox": lambda: T.GPTNeoXForCausalLM(T.GPTNeoXConfig(**SIZES)),
    "gemma2": lambda: T.Gemma2ForCausalLM(T.Gemma2Config(**SIZES, **KEYS, head_dim=8, final_logit_softcapping=4.0)),
    "cohere": lambda: T.CohereForCausalLM(T.CohereConfig(**SIZES, **KEYS, logit_scale=0.25)),
    "granite": lambda: T.GraniteForCausalLM(T.GraniteConfig(**SIZES, **KEYS, logits_scaling=1.5)),
}
COUNTS = {token: 10 ** (token % 4) for token in range(1, VOCABULARY)}


def make(name: str) -> nn.Module:
    """A model of random weights whose confidences are not all about 1 / V."""
    torch.manual_seed(0)
    model = MAKE[name]()
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(20)
    return model


def of_oracle(model: nn.Module, sequences: list[torch.Tensor]) -> TokenConfidences:
    state = TokenConfidences(COUNTS)
    confidence, right, nll, brier, predicted, position, number = torch.tensor(
        oracle(model, sequences), dtype=torch.float64
    ).T
    state.update(
        confidence,
        right.bool(),
        nll=nll,
        brier=brier,
        predicted=predicted.long(),
        position=position.long(),
        sequence=[f"0:{i}" for i in number.long().tolist()],
    )
    return state


def check_equal(state: TokenConfidences, expected: TokenConfidences) -> None:
    for kind in ("by_position", "by_frequency"):
        got, wanted = getattr(state, kind), getattr(expected, kind)
        counts = [{k: group.top.count.tolist() for k, group in groups.items()} for groups in (got, wanted)]
        assert counts[0] == counts[1]
        assert all((got[k].top.correct == wanted[k].top.correct).all() for k in got)
    result, reference = (x.total.evaluate(inference=False) for x in (state, expected))
    for name in ("nll", "brier", "ece", "aurc"):
        assert getattr(result, name) == pytest.approx(getattr(reference, name), rel=1e-4)


@pytest.mark.parametrize("name", list(MAKE))
@pytest.mark.parametrize("side", ["left", "right"])
def test_padded_batches_equal_each_sequence_alone(name, side) -> None:
    model, sequences = make(name), texts()
    batches = [padded(sequences[i : i + 7], side) for i in range(0, len(sequences), 7)]
    expected = of_oracle(model, sequences)
    assert (expected.total.top.count > 0).sum() > 3  # the confidences are spread
    check_equal(hf.scan_causal_lm(model, batches, token_counts=COUNTS, chunk_size=5), expected)
    check_equal(hf.scan_causal_lm(model, batches, token_counts=COUNTS, head="logits"), expected)


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_bfloat16_equals_the_logits_of_the_model(name) -> None:
    model = make(name).to(torch.bfloat16)
    tokens = torch.randint(VOCABULARY, (30, 12), generator=torch.Generator().manual_seed(0))
    states = [hf.scan_causal_lm(model, [row[None] for row in tokens], head=head) for head in ("hidden", "logits")]
    check_equal(states[0], states[1])
    assert model.dtype == torch.bfloat16


def test_collator_and_loss_of_transformers_agree() -> None:
    """Labels as the collator makes them, NLL as the loss of the model is."""
    model, sequences = make("llama"), texts()
    batch = padded(sequences, "right")
    batch["labels"] = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    result = hf.evaluate_causal_lm(model, [T.BatchEncoding(batch)])
    with torch.no_grad():
        loss = model(**batch).loss
    assert result.evaluation.nll == pytest.approx(float(loss), rel=1e-5)
    assert result.num_sequences == len(sequences)
    assert result.num_tokens == sum(len(tokens) - 1 for tokens in sequences)


def test_encoders_are_refused() -> None:
    sizes = {name: size for name, size in SIZES.items() if name not in ("bos_token_id", "eos_token_id")}
    with pytest.raises(ValueError, match="BertForMaskedLM is not causal"):
        hf.evaluate_causal_lm(T.BertForMaskedLM(T.BertConfig(**sizes)), texts())
    with pytest.raises(TypeError, match="BertModel has no language-model head"):
        hf.evaluate_causal_lm(T.BertModel(T.BertConfig(**sizes)), texts())
    t5 = T.T5ForConditionalGeneration(
        T.T5Config(vocab_size=VOCABULARY, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2)
    )
    with pytest.raises(TypeError, match="encoder-decoder"):
        hf.evaluate_causal_lm(t5, texts())
    decoder = T.BertLMHeadModel(T.BertConfig(**sizes, is_decoder=True))
    with pytest.raises(ValueError, match=r'logits of BertLMHeadModel are not those.*head="logits"'):
        hf.evaluate_causal_lm(decoder, texts())
    check_equal(hf.scan_causal_lm(decoder, texts(), token_counts=COUNTS, head="logits"), of_oracle(decoder, texts()))
