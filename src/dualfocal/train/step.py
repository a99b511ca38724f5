"""One step of training: varied inputs, forward, loss, backward, clipping, update; called, or replayed as a CUDA graph.

All ways of running it share :meth:`Step.take`. What a CUDA graph reads and writes stays in one place: the batch's
indices, the draws of the epoch and the learning rate are device tensors that are filled anew; weights, momentum,
running means and the gammas of adaptive losses are changed in place; dropout draws from a generator that the graph
advances as the step itself would.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

from dualfocal.data import DataSet
from dualfocal.runs import Recipe
from dualfocal.train.distributed import Group
from dualfocal.train.forward import Forward, HalfWeights, without_search
from dualfocal.train.host import host_state, no_garbage_collected

WARM_UP = 3  # steps before a capture: libraries choose their algorithms, kernels are built, states are made


class Taken(NamedTuple):
    """What a step leaves to be looked at later; nobody has waited for it yet.

    Attributes:
        loss: Summed over this process's part of the batch.
        norm: Of the gradient before it was clipped; None: it was not.
        updated: False: the loss was not finite, and the weights are as they were. Looked at only where that costs
            nothing.
    """

    loss: Tensor
    norm: Tensor | None
    updated: bool


@dataclass
class Step:
    """A step as it is written down, on any device, in any number of processes.

    Attributes:
        say: Tells whoever watches, in one line.
        way: How it is run; it may turn out otherwise than the recipe has it.
        problem: Why it turned out otherwise.
        seconds: That making it ready has taken so far.
        samples: That were trained on meanwhile.
    """

    recipe: Recipe
    data: DataSet
    forward: Forward
    criterion: nn.Module
    optimizer: Optimizer
    group: Group
    say: Callable[[str], None] = field(default=lambda text: None)
    draws: Tensor | None = None
    halves: HalfWeights | None = None
    way: str = "eager"
    problem: str | None = None
    seconds: float = 0.0
    samples: int = 0

    def __post_init__(self) -> None:
        self.weights = [weight for of in self.optimizer.param_groups for weight in of["params"]]
        # Elsewhere it would have to be waited for.
        self.looks = self.group.device.type == "cpu" and self.group.size == 1
        self.make_ready()

    def make_ready(self) -> None:
        """What a way of running it needs of its own."""

    def begin(self, epoch: int) -> None:
        """Before the steps of an epoch: its learning rate, and how its samples are varied."""
        for settings in self.optimizer.param_groups:
            if isinstance(settings["lr"], Tensor):
                settings["lr"].fill_(self.recipe.lr_at(epoch))
            else:
                settings["lr"] = self.recipe.lr_at(epoch)
        draws = self.data.draw(seed=self.recipe.seed, epoch=epoch)
        if self.draws is None or draws is None:
            self.draws = draws
        else:
            self.draws.copy_(draws)
        self.forward.model.train()

    def __call__(self, batch: Tensor) -> Taken:
        """Train on a batch, given by its samples' places."""
        return self.take(batch, self.loss)

    def take(self, batch: Tensor, loss_of: Callable[[Tensor, Tensor], Tensor]) -> Taken:
        """The step itself."""
        inputs, target = self.data.batch(self.group.share(batch), self.draws, part="train")
        loss = loss_of(inputs, target)
        if self.looks and not math.isfinite(loss.item()):
            return Taken(loss.detach(), None, updated=False)
        self.optimizer.zero_grad()  # to None: the backward writes gradients instead of adding to zeros
        # What processes exchange is their mean: times their number it is the sum over the batch.
        factor = self.group.size if self.recipe.reduction == "sum" else self.group.size / len(batch)
        (loss if factor == 1 else loss * factor).backward()  # type: ignore[no-untyped-call]
        if self.halves is not None:
            self.halves.return_gradients()
        clip = self.recipe.clip_norm
        norm = None if clip is None else clip_grad_norm_(self.weights, clip)
        self.optimizer.step()
        return Taken(loss.detach(), norm, updated=True)

    def loss(self, inputs: Tensor, target: Tensor) -> Tensor:
        """Of inputs as a model takes them, summed."""
        loss: Tensor = self.criterion(self.forward(inputs), target)
        return loss

    def close(self) -> None:
        """Give back what a way of running it holds."""


class CapturedStep(Step):
    """The whole step as one CUDA graph: no kernel waits for Python to launch it.

    The first full batches are trained on as they come, and then one step is captured, which runs nothing; from there on
    it is replayed. The smaller last batch of an epoch is run without the graph, by the same algorithms each time.
    """

    def make_ready(self) -> None:
        """Memory that the graph reads the batch from."""
        self.aim: str | None = "captured"
        self.index = torch.zeros(self.recipe.batch_size, dtype=torch.int64, device=self.group.device)
        self.stream = torch.cuda.Stream(self.group.device)  # type: ignore[no-untyped-call]
        self.graph: torch.cuda.CUDAGraph | None = None
        self.result: Taken | None = None
        self.warm, self.changing = 0, False
        if self.recipe.precision == "bfloat16":
            inputs, target = self.data.batch(self.data.splits["train"][:2], part="train")
            if HalfWeights.agree(self.forward, lambda logits: self.criterion(logits, target), inputs):
                self.halves = HalfWeights(self.forward.model)

    def fast_loss(self, inputs: Tensor, target: Tensor) -> Tensor:
        """The same as :meth:`loss`, with fewer kernels."""
        if self.halves is None:
            return self.loss(inputs, target)
        self.halves.refresh()
        loss: Tensor = self.criterion(self.forward(inputs, self.halves.named), target)
        return loss

    def __call__(self, batch: Tensor) -> Taken:
        """Train on a batch, given by its samples' places."""
        if len(batch) < len(self.index):
            with without_search():  # one step in hundreds
                return super().__call__(batch)
        if self.graph is not None:
            self.index.copy_(batch)
            return self.replay()
        return super().__call__(batch) if self.aim is None else self.approach(batch)

    def approach(self, batch: Tensor) -> Taken:
        """One of the steps before there is a graph, or the first with it; the clock runs."""
        start = time.perf_counter()
        self.index.copy_(batch)
        if self.warm < WARM_UP:
            taken = self.warm_up()
        elif self.changing:
            self.give_up("the model draws random numbers or keeps numbers on the CPU, which a graph would not see")
            taken = super().__call__(batch)
        else:
            taken = self.replay() if self.capture() else super().__call__(batch)
        torch.cuda.synchronize(self.group.device)
        self.seconds += time.perf_counter() - start
        self.samples += len(batch)
        if self.graph is not None and self.aim is not None:
            self.way = self.aim
            self.say(f"the step is {self.way}, ready after {self.seconds:.1f} s")
        return taken

    def warm_up(self) -> Taken:
        """A step like any other, on a stream like the graph's."""
        before = host_state(self.forward.model)
        current = torch.cuda.current_stream(self.group.device)
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            taken = self.take(self.index, self.fast_loss)
        current.wait_stream(self.stream)
        # The first step may make what the others find.
        self.changing |= self.warm > 0 and host_state(self.forward.model) != before
        self.warm += 1
        return taken

    def capture(self) -> bool:
        """Record a step; if that fails nothing has happened yet.

        Raises:
            OutOfMemoryError: there was no room for it; what the attempt has taken is not given back.
        """
        device = self.group.device
        generator = torch.cuda.default_generators[device.index]
        untouched = generator.clone_state()
        graph = torch.cuda.CUDAGraph()
        # After a failure torch leaves the stream of the capture the current one.
        with torch.cuda.stream(torch.cuda.current_stream(device)), no_garbage_collected():
            try:
                with torch.cuda.graph(graph, stream=self.stream):
                    self.result = self.take(self.index, self.fast_loss)
            except BaseException as error:
                generator.graphsafe_set_state(untouched)  # the other one believes that the capture goes on
                cause = error.__context__ or error  # the end of a capture that has failed fails, too
                if "out of memory" in str(cause):
                    raise torch.OutOfMemoryError(
                        f"no memory to capture the step: step=eager needs less; {cause}"
                    ) from error
                if not isinstance(error, Exception):
                    raise
                self.give_up(_reason(cause))
                return False
        # Before a capture torch clears, on its stream, the place that a replay writes the state of dropout to.
        torch.cuda.current_stream(device).wait_stream(self.stream)
        self.graph = graph
        return True

    def replay(self) -> Taken:
        """The graph, on what the index holds."""
        assert self.graph is not None
        assert self.result is not None
        self.graph.replay()
        loss, norm, _ = self.result
        return Taken(loss.clone(), None if norm is None else norm.clone(), updated=True)

    def close(self) -> None:
        """Destroy the graph, which else would happen at any time."""
        if self.graph is not None:
            self.graph.reset()
        self.graph = self.result = None

    def give_up(self, reason: str) -> None:
        """From now on without a graph."""
        self.halves = None  # they may have got gradients that were recorded, and never computed
        self.optimizer.zero_grad()
        self.aim_lower(None, f"the step cannot be captured and runs slower: {reason}")

    def aim_lower(self, aim: str | None, problem: str) -> None:
        """Another way than the recipe's, and why."""
        self.aim, self.problem = aim, problem
        self.say(problem)


class CompiledStep(CapturedStep):
    """As captured, of kernels that ``torch.compile`` has made for this model, this loss and this size of batch."""

    def make_ready(self) -> None:
        """Nothing is compiled before the first batch."""
        super().make_ready()
        self.aim, self.halves = "compiled", None
        self.compiled: Callable[[Tensor, Tensor], Tensor] | None = None

    def fast_loss(self, inputs: Tensor, target: Tensor) -> Tensor:
        """The compiled one, if there is one."""
        return self.loss(inputs, target) if self.compiled is None else self.compiled(inputs, target)

    def warm_up(self) -> Taken:
        """A step like any other, but the first is compiled before it."""
        if self.warm or self.aim != "compiled":
            return super().warm_up()
        self.say("compiling the step, about a minute")
        try:
            torch.compiler.reset()  # each run compiles once, and none shall meet the limit of recompilations
            self.compiled = torch.compile(self.loss, fullgraph=True, dynamic=False)
            return super().warm_up()
        except Exception as error:  # a model may be anybody's code
            self.compiled = None
            self.aim_lower("captured", f"the step cannot be compiled and is captured as it is: {_reason(error)}")
            return super().warm_up()

    def close(self) -> None:
        """Let go of what was compiled, too."""
        super().close()
        self.compiled = None


def make_step(recipe: Recipe, *arguments: Any, **options: Any) -> Step:
    """The way of running a step that a recipe names; nothing may be left to choose in it."""
    kinds = {"eager": Step, "captured": CapturedStep, "compiled": CompiledStep}
    return kinds[recipe.step](recipe, *arguments, **options)


def _reason(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else f"{text[:200]} ..."
