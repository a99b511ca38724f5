"""Logits of a causal language model, a slice at a time: its hidden states, its head, and what it does to the logits."""

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

PROBE = 8  # tokens that are tried first
ALWAYS = ("input_ids", "attention_mask")  # known to all models, whatever their signature says
CAPS = ("final_logit_softcapping", "logits_soft_cap")  # Gemma 2 and 3, nanochat; RecurrentGemma
FACTORS = ("logit_scale", "lm_head_multiplier", "output_multiplier")  # Cohere; Falcon-H1; ...
DIVISORS = ("logits_scaling",)  # Granite
ONE_SEQUENCE = 'head="logits" computes all logits of one sequence at a time, as the model itself does'


class CausalLM:
    """A causal language model whose logits are computed in slices.

    Args:
        model: a model of transformers, or one with the same methods.
        head: ``"hidden"``: apply the output embeddings to slices of the hidden states; ``"logits"``: let the model
            compute its logits, for one sequence at a time.
        example: tokens, ``(T,)``, for a first check.

    Raises:
        TypeError: the model has no such head.
        ValueError: the model is not causal, or does something else to its logits.
    """

    def __init__(self, model: nn.Module, head: str, example: Tensor) -> None:
        inner: Any = model
        if hasattr(inner, "get_base_model"):  # PEFT
            inner = inner.get_base_model()
        self.model, self.name = model, type(model).__name__
        config: Any = getattr(model, "config", None)
        if getattr(config, "is_encoder_decoder", False):
            raise TypeError(f"{self.name} is an encoder-decoder, not a causal language model")
        embeddings: Any = getattr(model, "get_output_embeddings", None)
        self.head: nn.Module | None = None if embeddings is None else embeddings()
        if self.head is None:
            raise TypeError(
                f"{self.name} has no language-model head (get_output_embeddings() is missing or returns None): load it "
                "with AutoModelForCausalLM; of a wrapped model, pass the model inside"
            )
        self.body = getattr(inner, "base_model", None)
        text_config = config.get_text_config() if hasattr(config, "get_text_config") else config
        self.cap, self.factor, self.divisor = (_setting(text_config, names) for names in (CAPS, FACTORS, DIVISORS))
        self.vocabulary: int | None = None
        if hasattr(inner, "get_input_embeddings"):
            weight = getattr(inner.get_input_embeddings(), "weight", None)
            self.vocabulary = None if weight is None else len(weight)
        self.accepted = set(inspect.signature(inner.forward).parameters)
        self.device = next(model.parameters()).device
        self.by_sequence = head == "logits"
        self._check(example[:PROBE])

    def _check(self, tokens: Tensor) -> None:
        """Compare slices of logits with the model's own, and those before a token with and without that token."""
        inputs = {"input_ids": tokens[None]}
        expected = self._own_logits(inputs)[0]
        self.num_tokens = expected.shape[-1]
        changed = tokens.clone()
        changed[-1] = (changed[-1] + 1) % self.num_tokens
        other = self._own_logits({"input_ids": changed[None]})[0]
        if not _close(other[:-1], expected[:-1]):
            raise ValueError(
                f"{self.name} is not causal: its prediction of a token changes with that token, as in encoder-only "
                "models; only causal language models predict the next token"
            )
        if self.by_sequence:
            return
        if self.body is None or self.body is self.model:
            raise ValueError(f"{self.name} has no base_model that returns hidden states; {ONE_SEQUENCE}")
        hidden = self.hidden(inputs)[0]
        if not _close(self.logits(hidden), expected):
            raise ValueError(
                f"the logits of {self.name} are not those of its output embeddings on its last hidden states (after "
                f"{', '.join((*CAPS, *FACTORS, *DIVISORS))} of its config, if there are any); {ONE_SEQUENCE}"
            )

    def hidden(self, inputs: Mapping[str, Any]) -> Tensor:
        """Return the last hidden states, ``(N, T, H)``."""
        assert self.body is not None
        output = self.body(**self._arguments(inputs))
        hidden: Tensor = output[0] if isinstance(output, tuple) else output.last_hidden_state
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits of some hidden states, ``(M, H)``, in the order and precision of the model."""
        assert self.head is not None
        weight = getattr(self.head, "weight", None)
        logits: Tensor = self.head(hidden if weight is None else hidden.to(weight.device))
        if self.factor is not None:
            logits = logits * self.factor
        if self.divisor is not None:
            logits = logits / self.divisor
        if self.cap is not None:
            logits = torch.tanh(logits / self.cap) * self.cap
        return logits

    def slices(self, inputs: Mapping[str, Any], keep: Tensor, size: int) -> Iterator[Tensor]:
        """Yield the logits of the places to keep, ``(M, V)``, row by row, ``size`` places at a time."""
        if not self.by_sequence:
            hidden = self.hidden(inputs)
            hidden = hidden[keep.to(hidden.device)]
            for start in range(0, len(hidden), size):
                yield self.logits(hidden[start : start + size])
            return
        for i, places in enumerate(keep):
            if bool(places.any()):
                row = {name: x[i : i + 1] if _per_row(x, len(keep)) else x for name, x in inputs.items()}
                logits = self._own_logits(row)[0]
                yield logits[places.to(logits.device)]

    def _own_logits(self, inputs: Mapping[str, Any]) -> Tensor:
        logits: Tensor = self.model(**self._arguments(inputs)).logits
        return logits

    def _arguments(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the inputs that the model knows, on its device."""
        lowest, highest = (int(end) for end in inputs["input_ids"].aminmax())  # a GPU would stop with an assertion
        if lowest < 0 or (self.vocabulary is not None and highest >= self.vocabulary):
            raise IndexError(
                f"token {lowest if lowest < 0 else highest} of input_ids is not in the vocabulary of {self.name}, 0 to "
                f"{(self.vocabulary or 0) - 1}: is it the tokenizer of this model?"
            )
        known = {name: value for name, value in inputs.items() if name in self.accepted or name in ALWAYS}
        if "use_cache" in self.accepted:
            known["use_cache"] = False
        return {name: x.to(self.device) if isinstance(x, Tensor) else x for name, x in known.items()}


def _setting(config: Any, names: tuple[str, ...]) -> float | None:
    values = [getattr(config, name, None) for name in names]
    return next((value for value in values if value is not None), None)


def _per_row(value: Any, rows: int) -> bool:
    return isinstance(value, Tensor) and value.ndim > 0 and len(value) == rows


def _close(values: Tensor, expected: Tensor) -> bool:
    """Whether logits are equal up to the rounding of their dtype."""
    tolerance = max(1e-4, 2 * torch.finfo(expected.dtype).eps) * float(expected.abs().max())
    return bool((values.float() - expected.float().to(values.device)).abs().amax() <= tolerance)
