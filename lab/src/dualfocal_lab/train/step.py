"""One training step: augmentation, forward, loss, backward, clipping, update; run eagerly or as a CUDA graph.

All modes share :meth:`Step.take`. A CUDA graph always reads and writes the same memory: the indices of the batch, the
augmentation draws of the epoch and the learning rate are device tensors that are overwritten; weights, momentum,
running means and the gammas of adaptive losses are changed in place; dropout uses a generator that the graph advances
as the eager step would.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

from dualfocal.losses import LOSSES
from dualfocal_lab.data import DataSet
from dualfocal_lab.runs import Recipe
from dualfocal_lab.train.distributed import Group
from dualfocal_lab.train.forward import Forward, HalfWeights, without_search
from dualfocal_lab.train.host_state import garbage_collection_paused, host_state
from dualfocal_lab.train.optimizer import CAPTURABLE
from dualfocal_lab.train.validation import follows_validation

WARM_UP = 3  # steps before a capture, in which libraries choose algorithms, kernels are compiled and states are created


class StepResult(NamedTuple):
    """The result of a step; its tensors may still be computing on the GPU.

    Attributes:
        loss: Sum of the loss over this process's share of the batch.
        norm: Norm of the gradient before clipping (None: no clipping).
        updated: False if the loss was not finite and the weights were not changed. Only checked on the CPU with one
            process, where it does not cost a wait.
    """

    loss: Tensor
    norm: Tensor | None
    updated: bool


@dataclass
class Step:
    """An eager training step, on any device and with any number of processes.

    Attributes:
        say: Shows a line of text to the user.
        mode: How the step runs: eager, captured or compiled. May differ from the recipe.
        problem: Why the mode differs from the recipe.
        seconds: Time spent on warm-up, compilation and capture so far.
        samples: Number of samples trained on during that time.
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
    mode: str = "eager"
    problem: str | None = None
    seconds: float = 0.0
    samples: int = 0

    def __post_init__(self) -> None:
        self.weights = [weight for settings in self.optimizer.param_groups for weight in settings["params"]]
        # On a GPU the check would wait for the step.
        self.checks_loss = self.group.device.type == "cpu" and self.group.size == 1
        self.make_ready()

    def make_ready(self) -> None:
        """Prepare what a mode needs; nothing for eager steps."""

    def begin(self, epoch: int) -> None:
        """Set the learning rate and draw the augmentation of an epoch."""
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

    def __call__(self, batch: Tensor) -> StepResult:
        """Train on a batch, given by the indices of its samples."""
        return self.take(batch, self.loss)

    def take(self, batch: Tensor, loss_of: Callable[[Tensor, Tensor], Tensor]) -> StepResult:
        """Take a step on a batch, with ``loss_of(inputs, target)`` as the loss."""
        inputs, target = self.data.batch(self.group.share(batch), self.draws, part="train")
        loss = loss_of(inputs, target)
        if self.checks_loss and not math.isfinite(loss.item()):
            return StepResult(loss.detach(), None, updated=False)
        self.optimizer.zero_grad()  # sets gradients to None: backward writes them instead of adding
        # DDP averages gradients over processes: multiply by their number to get the sum over the batch.
        factor = self.group.size if self.recipe.reduction == "sum" else self.group.size / len(batch)
        (loss if factor == 1 else loss * factor).backward()  # type: ignore[no-untyped-call]
        if self.halves is not None:
            self.halves.return_gradients()
        clip = self.recipe.clip_norm
        norm = None if clip is None else clip_grad_norm_(self.weights, clip)
        self.optimizer.step()
        return StepResult(loss.detach(), norm, updated=True)

    def loss(self, inputs: Tensor, target: Tensor) -> Tensor:
        """Return the loss of the model on a batch, summed over samples."""
        loss: Tensor = self.criterion(self.forward(inputs), target)
        return loss

    def close(self) -> None:
        """Release what a mode holds."""


class CapturedStep(Step):
    """A training step as one CUDA graph, which removes the time Python needs to launch kernels.

    The first full batches run eagerly, to warm up. Then the step is captured, which runs nothing, and replayed from
    there on. The smaller last batch of an epoch runs eagerly.
    """

    def make_ready(self) -> None:
        """Allocate the memory that the graph reads the batch from, and decide on bfloat16 copies of the weights."""
        self.aim: str | None = "captured"
        self.index = torch.zeros(self.recipe.batch_size, dtype=torch.int64, device=self.group.device)
        self.stream = torch.cuda.Stream(self.group.device)  # type: ignore[no-untyped-call]
        self.graph: torch.cuda.CUDAGraph | None = None
        self.result: StepResult | None = None
        self.warm, self.changing = 0, False
        if self.recipe.precision == "bfloat16":
            inputs, target = self.data.batch(self.data.splits["train"][:2], part="train")
            if HalfWeights.agree(self.forward, lambda logits: self.criterion(logits, target), inputs):
                self.halves = HalfWeights(self.forward.model)

    def fast_loss(self, inputs: Tensor, target: Tensor) -> Tensor:
        """Return the same value as :meth:`loss`, with fewer kernels."""
        if self.halves is None:
            return self.loss(inputs, target)
        self.halves.refresh()
        loss: Tensor = self.criterion(self.forward(inputs, self.halves.named), target)
        return loss

    def __call__(self, batch: Tensor) -> StepResult:
        """Train on a batch, given by the indices of its samples."""
        if len(batch) < len(self.index):
            with without_search():  # only one step per epoch
                return super().__call__(batch)
        if self.graph is not None:
            self.index.copy_(batch)
            return self.replay()
        return super().__call__(batch) if self.aim is None else self.approach(batch)

    def approach(self, batch: Tensor) -> StepResult:
        """Take a warm-up step, or capture the graph and replay it for the first time; measure the time."""
        start = time.perf_counter()
        self.index.copy_(batch)
        if self.warm < WARM_UP:
            result = self.warm_up()
        elif self.changing:
            self.give_up(
                "the model draws random numbers or changes values on the CPU, which a CUDA graph does not repeat"
            )
            result = super().__call__(batch)
        else:
            result = self.replay() if self.capture() else super().__call__(batch)
        torch.cuda.synchronize(self.group.device)
        self.seconds += time.perf_counter() - start
        self.samples += len(batch)
        if self.graph is not None and self.aim is not None:
            self.mode = self.aim
            self.say(f"the training step is {self.mode}; preparing it took {self.seconds:.1f} s")
        return result

    def warm_up(self) -> StepResult:
        """Take an eager step on the stream of the capture."""
        before = host_state(self.forward.model)
        current = torch.cuda.current_stream(self.group.device)
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            result = self.take(self.index, self.fast_loss)
        current.wait_stream(self.stream)
        # The first step may create state that later steps keep.
        self.changing |= self.warm > 0 and host_state(self.forward.model) != before
        self.warm += 1
        return result

    def capture(self) -> bool:
        """Capture a step. Returns whether that worked; if not, nothing has changed.

        Raises:
            OutOfMemoryError: there is not enough memory for the graph; memory taken by the attempt is not released.
        """
        device = self.group.device
        generator = torch.cuda.default_generators[device.index]
        saved_state = generator.clone_state()
        graph = torch.cuda.CUDAGraph()
        # After a failed capture torch leaves its stream as the current stream.
        with torch.cuda.stream(torch.cuda.current_stream(device)), garbage_collection_paused():
            try:
                with torch.cuda.graph(graph, stream=self.stream):
                    self.result = self.take(self.index, self.fast_loss)
            except BaseException as error:
                generator.graphsafe_set_state(saved_state)  # the old state still believes that it is being captured
                cause = error.__context__ or error  # ending a failed capture raises again
                if "out of memory" in str(cause):
                    raise torch.OutOfMemoryError(
                        f"not enough memory to capture the step; set step=eager, which needs less: {cause}"
                    ) from error
                if not isinstance(error, Exception):
                    raise
                self.give_up(_reason(cause))
                return False
        # Before a capture torch clears the random offset that a replay writes to, on the stream of the capture.
        torch.cuda.current_stream(device).wait_stream(self.stream)
        self.graph = graph
        return True

    def replay(self) -> StepResult:
        """Replay the graph on the batch in ``self.index``."""
        assert self.graph is not None
        assert self.result is not None
        self.graph.replay()
        loss, norm, _ = self.result
        return StepResult(loss.clone(), None if norm is None else norm.clone(), updated=True)

    def close(self) -> None:
        """Destroy the graph now, and not whenever garbage is collected."""
        if self.graph is not None:
            self.graph.reset()
        self.graph = self.result = None

    def give_up(self, reason: str) -> None:
        """Run eagerly from now on."""
        self.halves = None  # a failed capture may leave gradients that were recorded but never computed
        self.optimizer.zero_grad()
        self.aim_lower(None, f"the step cannot be captured as a CUDA graph, so training is slower: {reason}")

    def aim_lower(self, aim: str | None, problem: str) -> None:
        """Switch to another mode than the recipe's, and report why."""
        self.aim, self.problem = aim, problem
        self.say(problem)


class CompiledStep(CapturedStep):
    """A captured step whose kernels ``torch.compile`` generated for this model, loss and batch size."""

    def make_ready(self) -> None:
        """Prepare the capture; compilation starts with the first batch."""
        super().make_ready()
        self.aim, self.halves = "compiled", None
        self.compiled: Callable[[Tensor, Tensor], Tensor] | None = None

    def fast_loss(self, inputs: Tensor, target: Tensor) -> Tensor:
        """Return the loss, by the compiled function if there is one."""
        return self.loss(inputs, target) if self.compiled is None else self.compiled(inputs, target)

    def warm_up(self) -> StepResult:
        """Compile before the first warm-up step."""
        if self.warm or self.aim != "compiled":
            return super().warm_up()
        self.say("compiling the step, which takes about a minute")
        try:
            torch.compiler.reset()  # otherwise several runs in a process reach the limit of recompilations
            self.compiled = torch.compile(self.loss, fullgraph=True, dynamic=False)
            return super().warm_up()
        except Exception as error:  # any user model
            self.compiled = None
            self.aim_lower(
                "captured", f"the step cannot be compiled, so it is captured without compilation: {_reason(error)}"
            )
            return super().warm_up()

    def close(self) -> None:
        """Destroy the graph and release the compiled function."""
        super().close()
        self.compiled = None


def make_step(
    recipe: Recipe,
    data: DataSet,
    forward: Forward,
    criterion: nn.Module,
    optimizer: Optimizer,
    group: Group,
    say: Callable[[str], None],
) -> Step:
    """Make the step of a recipe, whose ``step`` must be eager, captured or compiled.

    The step is eager if a CUDA graph could miss changes: of the learning rate, which only some optimizers have on the
    device, or of a custom loss, which may replace its tensors when it is updated.
    """
    reason = None
    if recipe.optimizer not in CAPTURABLE:
        reason = f"optimizer {recipe.optimizer} is not one of {', '.join(CAPTURABLE)}"
    elif recipe.loss not in LOSSES and follows_validation(criterion):
        reason = f"the custom loss {recipe.loss} is updated each epoch"
    kinds = {"eager": Step, "captured": CapturedStep, "compiled": CompiledStep}
    if recipe.step == "eager" or reason is None:
        return kinds[recipe.step](recipe, data, forward, criterion, optimizer, group, say)
    step = Step(recipe, data, forward, criterion, optimizer, group, say)
    step.problem = f"the step is not captured as a CUDA graph, so training is slower: {reason}"
    say(step.problem)
    return step


def _reason(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else f"{text[:200]} ..."
