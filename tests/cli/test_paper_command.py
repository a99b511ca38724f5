"""`dualfocal paper errata`: a list to read, some of it, or JSON."""

import pytest

from dualfocal.paper.errata import ERRATA, GROUPS, OUT_OF_SCOPE


@pytest.fixture
def eighty(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


def words(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("columns", ["80", "200"])
def test_all_of_them_in_eighty_columns(run, monkeypatch, columns) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    out, err = run("paper", "errata")
    assert err == ""
    lines = out.splitlines()
    assert max(map(len, lines)) <= 80
    assert all(line == line.rstrip() for line in lines)
    assert [line for line in lines if line in GROUPS] == list(GROUPS)
    everything = words(out)
    for erratum in ERRATA:
        assert f"{erratum.key}  {erratum.where}" in lines
        assert words(f"{erratum.what} Here: {erratum.ours} As published:") in everything
        if erratum.option:
            assert f"      {erratum.option}" in lines
    assert everything.count("As published: no option") == sum(not erratum.option for erratum in ERRATA)
    for cited in OUT_OF_SCOPE:
        assert f"- {cited}" in everything


def test_keys_are_bold(run, monkeypatch, eighty) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    out, _ = run("paper", "errata", "rbs-root")
    assert "\x1b[1mrbs-root\x1b[0m" in out


def test_some_of_them(run, eighty) -> None:
    out, _ = run("paper", "errata", "small-gamma", "rbs-root")
    lines = [line for line in out.splitlines() if line and not line.startswith(" ")]
    keys = [line.split("  ")[0] for line in lines]
    assert keys == ["paper: tables", "rbs-root", "code", "small-gamma"]


def test_options_are_not_broken_in_a_narrow_terminal(run, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    out, _ = run("paper", "errata", "kde-setting")
    lines = out.splitlines()
    (erratum,) = (erratum for erratum in ERRATA if erratum.key == "kde-setting")
    assert f"      {erratum.option}" in lines
    assert max(len(line) for line in lines[3:] if erratum.option not in line) <= 40


def test_json(record) -> None:
    found = record("paper", "errata")
    assert list(found) == ["schema", "errata", "out_of_scope"]
    assert found["schema"] == 1
    assert [one["key"] for one in found["errata"]] == [erratum.key for erratum in ERRATA]
    assert list(found["errata"][0]) == ["kind", "key", "where", "what", "ours", "option"]
    assert [one["kind"] for one in found["errata"]] == [kind for kind, group in GROUPS.items() for _ in group]
    assert found["out_of_scope"] == list(OUT_OF_SCOPE)


def test_json_of_some(record) -> None:
    found = record("paper", "errata", "mce-claim")
    assert [one["key"] for one in found["errata"]] == ["mce-claim"]
    assert found["out_of_scope"] == []


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_an_unknown_key_is_told_with_the_nearest(refused, options) -> None:
    line = refused("paper", "errata", "rbs-root", "mce-clam", *options)
    assert line == "unknown erratum 'mce-clam'; `dualfocal paper errata` lists all; did you mean mce-claim?"


def test_a_key_that_is_near_to_none(refused) -> None:
    assert refused("paper", "errata", "?") == "unknown erratum '?'; `dualfocal paper errata` lists all"


def test_help(run) -> None:
    out, _ = run("paper", "errata", "--help")
    for text in ("KEY", "--json", "dualfocal paper errata adafocal-columns rbs-root", "dualfocal.losses"):
        assert text in out
    assert "errata" in run("paper", "--help")[0]
