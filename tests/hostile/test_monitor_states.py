"""State files of `dualfocal monitor` that are damaged, hostile or of another kind: one line, and the file stays."""

import json
import os
import random
import re
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from bad_files import ESCAPE, LOGITS, TARGET

from dualfocal.cli import main

FLIPS = 60 * int(os.environ.get("DUALFOCAL_ATTACK", "1"))
Change = Callable[[bytes], bytes]


@pytest.fixture
def state(tmp_path, monkeypatch, capsys) -> Path:
    """A state file that has seen one prediction file; another one is `new.npz`."""
    monkeypatch.chdir(tmp_path)
    np.savez("old.npz", logits=LOGITS, target=TARGET)
    np.savez("new.npz", logits=2 * LOGITS, target=TARGET)
    assert command(capsys, "monitor", "state.json", "old.npz", "--time", "day 1")[0] == 0
    return Path("state.json")


def command(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[object, str, str]:
    """Return exit code, stdout and stderr of a command."""
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return ended.value.code, *capsys.readouterr()


def resealed(change: Callable[[dict], object]) -> Change:
    """Change the JSON, and give it a right checksum."""

    def apply(content: bytes) -> bytes:
        state = json.loads(content)
        del state["crc32"]
        change(state)
        crc32 = zlib.crc32(json.dumps(state, sort_keys=True).encode())
        return json.dumps(state | {"crc32": f"{crc32:08x}"}).encode()

    return apply


def period(name: str, value: object) -> Change:
    return resealed(lambda state: state["monitor"]["history"][0].update({name: value}))


def setting(name: str, value: object) -> Change:
    return resealed(lambda state: state["monitor"]["settings"].update({name: value}))


# What happens to the file, and words of the refusal.
BAD: dict[str, tuple[Change, str]] = {
    "empty": (lambda content: b"", "JSON"),
    "truncated": (lambda content: content[: len(content) // 2], "JSON"),
    "noise": (lambda content: bytes(range(256)) * 9, "JSON"),
    "nested": (lambda content: b"[" * 10**5, "JSON"),
    "many digits": (lambda content: content.replace(b'"schema": 1', b'"schema": ' + b"1" * 9999), "JSON"),
    "a list": (lambda content: b"[1, 2]", "monitor"),
    "edited": (lambda content: content.replace(b'"num_samples": 6', b'"num_samples": 7'), "checksum"),
    "other version": (resealed(lambda state: state.update(schema=2)), "schema 2.* 1"),
    "other kind": (resealed(lambda state: state.update(kind="result")), "monitor"),
    "unknown field": (resealed(lambda state: state.update(more=1)), "monitor"),
    "newer monitor": (resealed(lambda state: state["monitor"].update(schema=9)), "schema 9"),
    "no monitor": (resealed(lambda state: state.update(monitor=None)), "monitor"),
    "files are a list": (resealed(lambda state: state.update(seen=[1])), "seen"),
    "one class": (resealed(lambda state: state.update(num_classes=1)), "num_classes .*2, got 1"),
    "classes are numbers": (resealed(lambda state: state.update(class_names=[1])), "class_names"),
    "huge": (setting("num_bins", 10**9), "num_bins .*10,000"),
    "many bins": (setting("num_bins", 9_000), "144016"),
    "no tolerance": (setting("tolerance", "x" * 10**4), "tolerance .*xxx"),
    "a period without samples": (period("num_samples", 0), "samples"),
    "a large number": (period("correct", 10**400), "correct"),
    "a negative peak": (resealed(lambda state: state["monitor"].update(log_peak=-1e4)), "log_peak .*-10000"),
    "a negative count": (resealed(lambda state: state["monitor"]["cells"]["count"].__setitem__(3, -1)), "count"),
    "escapes": (setting("binary", ESCAPE), "binary .*x1b"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_state_is_refused_and_kept(case, state, capsys):
    change, message = BAD[case]
    damaged = change(state.read_bytes())
    state.write_bytes(damaged)
    for more in ((), ("new.npz",), ("new.npz", "--reset")):
        code, out, err = command(capsys, "monitor", "state.json", *more)
        (line,) = err.splitlines()
        assert (code, out) == (2, "")
        assert line.startswith("dualfocal: state.json: ")
        assert re.search(message, line), line[:500]
        assert line.isprintable()
        assert state.read_bytes() == damaged
    assert {path.name for path in Path().iterdir()} == {"state.json", "old.npz", "new.npz"}


def test_a_large_file_or_a_pipe_is_not_read(state, capsys):
    os.truncate(state, 10**12)  # takes no space on the disk
    os.mkfifo("pipe.json")
    for name, words in (("state.json", "200 MB"), ("pipe.json", "regular file")):
        for more in ((), ("new.npz",)):
            code, _, err = command(capsys, "monitor", name, *more)
            assert (code, words in err) == (2, True)


def test_a_flipped_bit_is_noticed_or_harmless(state, capsys):
    content = state.read_bytes()
    _, wanted, _ = command(capsys, "monitor", "state.json", "--json")
    rng, refused = random.Random(0), 0
    for bit in rng.sample(range(8 * len(content)), FLIPS):
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        state.write_bytes(changed)
        code, out, err = command(capsys, "monitor", "state.json", "--json")
        assert (code, out) == (0, wanted) or (code == 2 and err.startswith("dualfocal: state.json: ")), bit
        refused += code == 2
    print(f"{refused} of {FLIPS} damaged states refused")
    assert refused > FLIPS // 2


def test_labels_cannot_control_the_terminal(state, capsys):
    code, out, _ = command(capsys, "monitor", "state.json", "new.npz", "--time", ESCAPE)
    assert code == 0
    assert all(character.isprintable() or character == "\n" for character in out)
