"""Train the runs of a study as tasks of a Ray cluster, whose nodes share the storage of the run folders."""

import dataclasses
import importlib
import importlib.util
import logging
import os
import re
import secrets
import shutil
import socket
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dualfocal import __version__
from dualfocal.checks import check_count
from dualfocal_lab.data.paths import Root
from dualfocal_lab.runs import Run, RunError
from dualfocal_lab.study.engine import CHECKPOINT_PAUSE, LOOK, Outcome, Task, Update
from dualfocal_lab.study.ray_node import TOKEN, Settings, train_on_node, wait_until
from dualfocal_lab.train.distributed import num_cores
from dualfocal_lab.train.failure import Interrupts

RETRIES = 10  # of a training whose worker or node was lost; each one goes on from the last checkpoint
SAVE_SECONDS = 60.0  # to wait for the checkpoints of stopped trainings
VISIBLE_SECONDS = 90.0  # until a file of a node must be visible here: NFS remembers absent files for up to a minute
CONNECT_SECONDS = 10.0
OBJECT_STORE = 100 * 2**20  # bytes: trainings exchange files, not objects


@dataclass(frozen=True)
class RayEngine:
    """Trains each run as a task of a Ray cluster. Every node needs dualfocal, the data and the folder of the study.

    A training whose worker or node is lost goes on from its last checkpoint, on any node.

    Attributes:
        address: Address of the cluster, such as ``"auto"`` or ``"ray://head:10001"`` (None: the environment variable
            RAY_ADDRESS; without it, Ray is started on this machine, and ended afterwards).
        cpus_per_run: Number of CPUs, and of threads, of each training.
        gpus_per_run: Share of a GPU for each training, 0 to train on CPUs (None: 1 if the cluster has GPUs, else 0).
    """

    address: str | None = None
    cpus_per_run: int = 1
    gpus_per_run: float | None = None

    def __post_init__(self) -> None:
        check_count("cpus_per_run", self.cpus_per_run)
        if self.gpus_per_run is not None and not 0 <= self.gpus_per_run <= 1:
            raise ValueError(f"gpus_per_run must be at least 0 and at most 1, got {self.gpus_per_run}")
        if importlib.util.find_spec("ray") is None:
            raise ValueError('the Ray engine needs Ray: pip install "dualfocal[ray]"')

    def train(self, tasks: Sequence[Task], out: Path, data_root: Root) -> Generator[Update, None, None]:
        """Train runs whose folders lie in ``out``, see :meth:`Engine.train <dualfocal_lab.study.engine.Engine.train>`.

        Raises:
            RunError: a node cannot see ``out``, has another version of dualfocal or lacks the data, or a run cannot be
                trained; the message names the node.
        """
        with self._connection() as ray, _meeting_folder(out) as meeting, Interrupts() as interrupts:
            gpus = self._gpus(ray)
            root = None if data_root is None else str(Path(data_root).expanduser().absolute())
            device = "cuda" if gpus else "cpu"
            settings = Settings(str(meeting), os.getcwd(), root, device, self.cpus_per_run, CHECKPOINT_PAUSE)
            _check_nodes(ray, self._suitable_nodes(ray, gpus), settings, tasks, interrupts)
            waiting = self._submit(ray, gpus, settings, tasks)
            try:
                while waiting:
                    done, _ = ray.wait(list(waiting), timeout=LOOK)
                    interrupts.leave()
                    running = _running(waiting.values(), meeting, _node_names(ray))
                    ended = {}
                    for ref in done:
                        folder = waiting.pop(ref)
                        ended[folder] = _outcome(ray, ref, folder, running.pop(folder, ""))
                    yield Update(running, ended)
            except BaseException:
                for ref in waiting:
                    ray.cancel(ref)  # like Ctrl-C: the training saves a checkpoint
                if waiting:
                    ray.wait(list(waiting), num_returns=len(waiting), timeout=SAVE_SECONDS)
                raise

    @contextmanager
    def _connection(self) -> Iterator[Any]:
        """Connect to the cluster, or start Ray on this machine, unless the program has already done so."""
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        ray = importlib.import_module("ray")
        if ray.is_initialized():
            yield ray
            return
        address = self.address or os.environ.get("RAY_ADDRESS") or "local"
        started_here = {"num_cpus": num_cores(), "object_store_memory": OBJECT_STORE, "include_dashboard": False}
        options = started_here if address == "local" else {}
        try:
            _check_address(address)
            ray.init(address, log_to_driver=False, logging_level=logging.ERROR, **options)
        except (OSError, OverflowError, ValueError, RuntimeError) as error:
            raise RunError(
                f"cannot connect to the Ray cluster {address!r}: {_first_line(error).rstrip('.')}. "
                "A cluster with token authentication needs RAY_AUTH_MODE=token here, too"
            ) from error
        try:
            yield ray
        finally:
            ray.shutdown()  # ends only what this process has started

    def _gpus(self, ray: Any) -> float:
        if self.gpus_per_run is not None:
            return self.gpus_per_run
        return 1 if ray.cluster_resources().get("GPU") else 0

    def _suitable_nodes(self, ray: Any, gpus: float) -> list[str]:
        """Return the ids of the nodes that are large enough for a training."""
        alive = {node["NodeID"]: node["Resources"] for node in ray.nodes() if node["Alive"]}
        needed = {"CPU": self.cpus_per_run, "GPU": gpus}
        suitable = [
            node
            for node, resources in alive.items()
            if all(resources.get(kind, 0) >= number for kind, number in needed.items())
        ]
        if not suitable:
            sizes = ("{CPU:g} CPUs and {GPU:g} GPUs".format_map({"CPU": 0, "GPU": 0} | size) for size in alive.values())
            message = (
                f"a training needs {self.cpus_per_run} CPUs and {gpus:g} GPUs on one node, but the nodes have "
                f"{'; '.join(sizes)}"
            )
            if len(alive) == 1:
                raise RunError(f"{message}: change --cpus-per-run or --gpus-per-run")
            warnings.warn(f"{message}: waiting for a larger node", stacklevel=2)  # a cluster may grow
        return suitable

    def _submit(self, ray: Any, gpus: float, settings: Settings, tasks: Sequence[Task]) -> dict[Any, Path]:
        """Submit all trainings. Returns the reference to the outcome of each -> its folder."""
        remote = ray.remote(train_on_node)
        options = {
            "num_cpus": self.cpus_per_run,
            "num_gpus": gpus,
            "max_retries": RETRIES,  # if the worker or the node is lost
            "retry_exceptions": False,
            "scheduling_strategy": "SPREAD",
        }
        return {
            remote.options(**options, name=task.folder.name).remote(
                task.recipe.to_dict(), str(task.folder.absolute()), settings
            ): task.folder
            for task in tasks
        }


def _check_address(address: str) -> None:
    """Raise an OSError if nothing answers at ``HOST:PORT``: Ray itself would try for minutes."""
    if match := re.fullmatch(r"(?:ray://)?\[?([^/]+?)\]?:(\d+)", address):
        socket.create_connection((match[1], int(match[2])), timeout=CONNECT_SECONDS).close()


@contextmanager
def _meeting_folder(out: Path) -> Iterator[Path]:
    """Create a folder in ``out`` in which driver and nodes leave small files; its random name shows who sees it."""
    folder = out.absolute() / f".ray-{secrets.token_hex(8)}"
    folder.mkdir(parents=True)
    (folder / TOKEN).touch()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _check_nodes(
    ray: Any, nodes: Sequence[str], settings: Settings, tasks: Sequence[Task], interrupts: Interrupts
) -> None:
    """Raise a RunError that names the first node that cannot train."""
    pinned = importlib.import_module("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy
    remote = ray.remote(_make_probe())
    arguments = __version__, dataclasses.asdict(settings), [task.recipe.to_dict() for task in tasks]
    waiting = {
        remote.options(num_cpus=0, scheduling_strategy=pinned(node, soft=False)).remote(node, *arguments): node
        for node in nodes
    }
    while waiting:
        done, _ = ray.wait(list(waiting), timeout=LOOK)
        interrupts.leave()
        for ref in done:
            node = waiting.pop(ref)
            name = _node_names(ray).get(node)
            if name is None:  # the node has been lost in the meantime
                continue
            try:
                problem = ray.get(ref)
            except ray.exceptions.RayError as error:
                problem = _first_line(error)
            answer = Path(settings.meeting) / node
            if problem is None and not wait_until(answer.exists, VISIBLE_SECONDS):
                problem = f"its files do not appear in {answer.parent.parent}, which must be on storage that all share"
            if problem is not None:
                raise RunError(f"Ray node {name}: {problem}")


def _make_probe() -> Callable[..., str | None]:
    # Ray sends a nested function as code, so that it can also report a node without dualfocal.
    def probe(node: str, version: str, settings: dict[str, Any], recipes: list[dict[str, Any]]) -> str | None:
        """Return why this node cannot train, or None."""
        try:
            import dualfocal
        except ImportError as error:
            return f"cannot import dualfocal ({error}): install dualfocal {version} there"
        if dualfocal.__version__ != version:
            return f"has dualfocal {dualfocal.__version__}, but version {version} is needed"
        from dualfocal_lab.study.ray_node import Settings, check_node

        try:
            check_node(node, Settings(**settings), recipes)
        except Exception as error:  # libraries that read data raise errors of their own
            return str(error) or type(error).__name__
        return None

    return probe


def _node_names(ray: Any) -> dict[str, str]:
    """Return the id of each node that is alive -> its host name, with a part of the id if hosts have several nodes."""
    hosts = {node["NodeID"]: node["NodeManagerHostname"] for node in ray.nodes() if node["Alive"]}
    several = len(set(hosts.values())) < len(hosts)
    return {node: f"{host}/{node[:6]}" if several else host for node, host in hosts.items()}


def _running(folders: Iterable[Path], meeting: Path, names: Mapping[str, str]) -> dict[Path, str]:
    """Return the folders whose training has started on a node that is alive -> the name of the node."""
    running = {}
    for folder in folders:
        with suppress(OSError, KeyError):
            running[folder] = names[(meeting / folder.name).read_text(encoding="utf-8")]
    return running


def _outcome(ray: Any, ref: Any, folder: Path, node: str) -> Outcome:
    """Return the outcome of a task that has ended.

    Raises:
        RunError: the task failed; the message names the run and the node.
    """
    absolute, where = str(folder.absolute()), f"{folder}: on Ray node {node}:" if node else f"{folder}:"
    try:
        outcome: Outcome = ray.get(ref)
    except ray.exceptions.RayTaskError as error:
        cause = error.cause if isinstance(error.cause, Exception) else error
        kind = "" if isinstance(cause, ValueError | OSError) else f"{type(cause).__name__}: "
        raise RunError(f"{where} {kind}{str(cause).removeprefix(f'{absolute}: ')}") from cause
    except ray.exceptions.RayError as error:  # the worker or the node
        raise RunError(f"{where} lost {RETRIES + 1} times: {_first_line(error)}") from error
    if outcome.problem is None and not wait_until(lambda: Run(folder).state == "finished", VISIBLE_SECONDS):
        raise RunError(f"{where} is finished, but its result does not appear on this machine")
    return Outcome(outcome.problem and outcome.problem.replace(absolute, str(folder)), outcome.warnings)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
