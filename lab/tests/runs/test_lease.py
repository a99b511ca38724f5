"""The owner of a run folder: one at a time, taken over when it is dead, and harmless afterwards."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from owners import write_owner

from dualfocal_lab.runs import Recipe, Run, RunError
from dualfocal_lab.runs.lease import EXPIRES, Lease, _process_start, find_owner

pytestmark = pytest.mark.slow

RECIPE = Recipe(data="digits", model="small_cnn")
MANY = 8  # threads that claim at once


def everything(folder: Path) -> dict[str, tuple[int, bytes | None]]:
    """Return time and content of everything in a folder, and of the folder itself."""
    paths = [folder, *folder.rglob("*")]
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else None) for path in paths}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def refusal(folder: Path) -> str:
    with pytest.raises(RunError) as error, Lease(folder):
        pass
    return str(error.value)


# Claim.


def test_a_lease_names_this_process_and_leaves_nothing(tmp_path) -> None:
    with Lease(tmp_path, 30) as lease:
        owner = find_owner(tmp_path)
        assert (owner.pid, owner.lease_seconds) == (os.getpid(), 30.0)
        assert names(tmp_path) == [".attempt"]
        assert lease.folder.parent == tmp_path / ".attempt"
        before = everything(tmp_path)
        message = refusal(tmp_path)
        assert message.startswith(f"{tmp_path}: another process is training there: process {os.getpid()} on ")
        assert before.keys() == everything(tmp_path).keys()
    assert names(tmp_path) == []
    assert find_owner(tmp_path) is None


def test_ids_are_not_used_again(tmp_path) -> None:
    ids = set()
    for _ in range(20):
        with Lease(tmp_path) as lease:
            ids.add(lease.folder.name)
    assert len(ids) == 20


@pytest.mark.parametrize("before", ["nothing", "dead owner", "lease without an owner"])
def test_of_many_that_claim_at_once_one_succeeds(tmp_path, before) -> None:
    for _ in range(40):
        if before != "nothing":
            folder = write_owner(tmp_path, silence=1000)
            if before == "lease without an owner":
                (folder / "owner.json").unlink()
        outcomes, start = [], threading.Barrier(MANY)

        def claim(outcomes=outcomes, start=start) -> None:
            lease = Lease(tmp_path)
            start.wait()
            try:
                lease.acquire()
                outcomes.append(lease)
            except RunError as error:
                outcomes.append(str(error))

        threads = [threading.Thread(target=claim) for _ in range(MANY)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        (winner,) = (outcome for outcome in outcomes if isinstance(outcome, Lease))
        refusals = [outcome for outcome in outcomes if isinstance(outcome, str)]
        assert len(refusals) == MANY - 1
        assert all("another process is training there" in message for message in refusals)
        winner.check()
        winner.release()
        assert names(tmp_path) == []


# Processes claim a folder at once, again and again, in rounds; none sees another one while it has the lease.
CROWD = """
import os, sys
from pathlib import Path
from dualfocal_lab.runs import RunError
from dualfocal_lab.runs.lease import Lease

run, processes, rounds = Path(sys.argv[1]), 4, 50
children = []
for _ in range(processes):
    child = os.fork()
    if child == 0:
        wins = 0
        for _ in range(rounds):
            try:
                with Lease(run) as lease:
                    os.mkdir(run / "busy")  # fails if another process is here
                    lease.check()
                    os.rmdir(run / "busy")
                    wins += 1
            except RunError:
                pass
        os._exit(0 if wins else 1)
    children.append(child)
assert [os.waitpid(child, 0)[1] for child in children] == [0] * processes
assert os.listdir(run) == []
"""


def test_processes_that_claim_again_and_again_never_meet(tmp_path) -> None:
    done = subprocess.run([sys.executable, "-c", CROWD, str(tmp_path)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


# Dead or alive.


@pytest.mark.parametrize("silence", [0, 40, -40])
def test_an_owner_on_another_machine_is_alive_while_it_sends_heartbeats(tmp_path, silence) -> None:
    write_owner(tmp_path, silence=silence)
    before = everything(tmp_path)
    message = refusal(tmp_path)
    assert "process 7 on elsewhere, whose last heartbeat was " in message
    seconds = int(message.removesuffix(" s").rpartition(" ")[2])
    assert 0 < seconds <= EXPIRES - max(silence, 0)
    assert {path: content for path, (_, content) in everything(tmp_path).items()} == {
        path: content for path, (_, content) in before.items()
    }


@pytest.mark.parametrize(
    ("silence", "fields"),
    [(100, {}), (20, {"lease_seconds": 10.0}), (-1e6, {}), (1, {"lease_seconds": float("nan")})],
    ids=["silent", "own limit", "wrong clock", "nan"],
)
def test_an_owner_without_heartbeats_is_taken_over(tmp_path, silence, fields) -> None:
    folder = write_owner(tmp_path, silence=silence, **fields)
    (folder / ".0011223344556677.json").write_text("half")
    with Lease(tmp_path) as lease:
        assert find_owner(tmp_path).pid == os.getpid()
        assert names(tmp_path) == [".attempt"]
        assert names(tmp_path / ".attempt") == [lease.folder.name]
        assert names(lease.folder) == ["owner.json"]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"pid": "x", "lease_seconds": -1, "odd": 1}'])
def test_a_damaged_owner_is_judged_by_its_heartbeat(tmp_path, content) -> None:
    folder = write_owner(tmp_path)
    (folder / "owner.json").write_text(content)
    assert "process 0 on an unknown machine" in refusal(tmp_path)
    os.utime(folder / "owner.json", times=(time.time() - 100,) * 2)
    with Lease(tmp_path):
        pass


@pytest.fixture
def here(tmp_path) -> dict[str, object]:
    """Fields of an owner that is this process."""
    with Lease(tmp_path):
        owner = find_owner(tmp_path)
        return {name: getattr(owner, name) for name in ("host", "machine", "pid", "process_start")}


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="elsewhere only the heartbeat counts")
def test_a_process_of_this_machine_is_alive_while_it_exists(tmp_path, here) -> None:
    run = Run(tmp_path)
    (tmp_path / "recipe.json").touch()
    with subprocess.Popen(["sleep", "60"]) as killed:
        start = _process_start(killed.pid)
        killed.kill()
        os.waitid(os.P_PID, killed.pid, os.WEXITED | os.WNOWAIT)  # a zombie: it exists, but has ended
        zombie = {"pid": killed.pid, "process_start": start}
        dead = [zombie, {"pid": 2**40}, {"process_start": here["process_start"] - 1}]
        for fields in dead:
            write_owner(tmp_path, **here | fields)
            assert run.state == "stopped", fields
            with Lease(tmp_path):
                assert run.state == "running"
    for fields in ({}, {"machine": "another start"}, {"host": "elsewhere"}):  # alive, or not to be judged from here
        folder = write_owner(tmp_path, **here | fields)
        assert run.state == "running", fields
        refusal(tmp_path)
        os.utime(folder / "owner.json", times=(time.time() - 100,) * 2)  # it was stopped
        assert run.state == "stopped"
        with Lease(tmp_path):
            pass


def test_heartbeats_are_sent_while_the_process_does_something_else(tmp_path) -> None:
    with Lease(tmp_path, 0.4):
        first, deadline = find_owner(tmp_path).heartbeat, time.monotonic() + 60
        while find_owner(tmp_path).heartbeat <= first + 0.4:  # it would have expired
            assert time.monotonic() < deadline
            time.sleep(0.01)


# A process that was taken over.


def take_over(lease: Lease) -> Lease:
    """Let a lease expire and give it to another owner."""
    lease._released.set()  # stop the heartbeats
    lease._heart.join()
    os.utime(lease.folder / "owner.json", times=(1, 1))
    other = Lease(lease.run)
    other.acquire()
    return other


def test_after_a_takeover_nothing_can_be_changed(tmp_path) -> None:
    """Also if the process was stopped after its last check."""
    (tmp_path / "mine").write_text("old")
    lease = Lease(tmp_path)
    lease.acquire()
    (lease.folder / "new").write_text("new")
    other = take_over(lease)
    before = everything(tmp_path)
    with pytest.raises(FileNotFoundError):
        (lease.folder / "new").replace(tmp_path / "mine")
    with pytest.raises(FileNotFoundError):
        (lease.folder / "newer").write_text("newer")
    for act in (lease.check, lambda: lease.remove(tmp_path / "mine"), lambda: lease.remove(tmp_path / "none")):
        with pytest.raises(RunError, match=rf"was taken over by process {os.getpid()} on .*; .* changed nothing"):
            act()
    lease.release()
    assert everything(tmp_path) == before
    other.release()
    assert names(tmp_path) == ["mine"]
    with Lease(tmp_path):  # a third one does not bring the name of the first one back
        with pytest.raises(RunError, match="was taken over by process"):
            lease.check()
        lease.release()
        assert names(tmp_path) == [".attempt", "mine"]


WRITES = {
    "write": lambda run: run.write_json("result.json", {"schema": 1}),
    "append": lambda run: run.append({"epoch": 2}),
    "write_log": lambda run: run.write_log([]),
    "begin_log": lambda run: run.begin_log(0),
    "set_aside": lambda run: run.set_aside(),
    "remove": lambda run: run.remove("checkpoint.safetensors"),
}


@pytest.mark.parametrize("name", WRITES)
def test_a_run_that_was_taken_over_after_its_last_check_writes_nothing(tmp_path, monkeypatch, name) -> None:
    run = Run(tmp_path / "run")
    with pytest.raises(RunError, match="was taken over by process"), run.claimed(RECIPE):  # noqa: PT012
        run.begin_log(0)
        run.append({"epoch": 1})
        other = take_over(run._lease)
        (run.path / "checkpoint.safetensors").write_bytes(b"of the other")
        (run.path / "new").write_text("log of the other\n")
        (run.path / "new").rename(run.path / "log.jsonl")
        before = everything(run.path)
        with monkeypatch.context() as patch:
            patch.setattr(Run, "check_lock", lambda self: None)
            if name == "append":  # goes to the file that has lost its name
                WRITES[name](run)
            else:
                with pytest.raises(RunError):
                    WRITES[name](run)
        assert everything(run.path) == before
        WRITES[name](run)
    assert everything(run.path) == before
    other.release()


def test_a_log_that_is_opened_after_a_takeover_is_not_written_to(tmp_path, monkeypatch) -> None:
    """The process is stopped after it has written its log, and before it opens it."""
    run, others = Run(tmp_path / "run"), []
    write = Run.write

    def write_and_stop(self, name, content) -> None:
        write(self, name, content)
        if name == "log.jsonl":
            others.append(take_over(self._lease))
            (self.path / "log.jsonl").write_text("log of the other\n")

    monkeypatch.setattr(Run, "write", write_and_stop)
    with pytest.raises(RunError, match="was taken over by process"), run.claimed(RECIPE):  # noqa: PT012
        run.begin_log(0)
        run._log.append({"epoch": 1})  # not reached
    assert (run.path / "log.jsonl").read_text() == "log of the other\n"
    others[0].release()


def test_another_error_of_a_process_that_was_taken_over_says_so(tmp_path) -> None:
    run = Run(tmp_path / "run")
    with pytest.raises(RunError, match="was taken over by process"), run.claimed(RECIPE):  # noqa: PT012
        other = take_over(run._lease)
        raise OSError("the checkpoint of another process")
    other.release()


# Waste.


def test_what_killed_claims_and_takeovers_leave_is_removed(tmp_path) -> None:
    prepared = tmp_path / ".attempt.0011223344556677" / "0011223344556677"
    prepared.mkdir(parents=True)
    (prepared / "owner.json").write_text("{}")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "precious").touch()
    (tmp_path / ".attempt.7766554433221100").symlink_to(tmp_path / "elsewhere")
    (tmp_path / ".attempt.mine").mkdir()
    with Lease(tmp_path):
        assert names(tmp_path) == [".attempt", ".attempt.mine", "elsewhere"]
    assert names(tmp_path / "elsewhere") == ["precious"]


def test_a_folder_of_killed_claims_only_is_a_new_run_folder(tmp_path) -> None:
    (tmp_path / ".attempt.0011223344556677").mkdir()
    write_owner(tmp_path, silence=100)
    with Run(tmp_path).claimed(RECIPE):
        assert names(tmp_path) == [".attempt", "recipe.json"]
    assert Run(tmp_path).state == "stopped"
    assert names(tmp_path) == ["recipe.json"]


def test_a_claim_of_another_process_does_not_disturb_the_owner(tmp_path, monkeypatch) -> None:
    def acquire(self) -> None:
        original(self)
        (tmp_path / ".attempt.0011223344556677" / "0011223344556677").mkdir(parents=True)

    original = Lease.acquire
    monkeypatch.setattr(Lease, "acquire", acquire)
    with Run(tmp_path).claimed(RECIPE):
        assert names(tmp_path) == [".attempt", ".attempt.0011223344556677", "recipe.json"]
    assert names(tmp_path) == ["recipe.json"]
