"""`dualfocal paper errata`: the list to read, chosen entries, or JSON."""

import pytest

from dualfocal_lab.paper.errata import ERRATA, GROUPS, OUT_OF_SCOPE


@pytest.fixture
def eighty(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


def words(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("columns", ["80", "200"])
def test_all_errata_in_eighty_columns(run, monkeypatch, columns) -> None:
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


def test_chosen_errata(run, eighty) -> None:
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
    content = record("paper", "errata")
    assert list(content) == ["schema", "errata", "out_of_scope"]
    assert content["schema"] == 1
    assert [erratum["key"] for erratum in content["errata"]] == [erratum.key for erratum in ERRATA]
    assert list(content["errata"][0]) == ["kind", "key", "where", "what", "ours", "option"]
    assert [erratum["kind"] for erratum in content["errata"]] == [kind for kind, group in GROUPS.items() for _ in group]
    assert content["out_of_scope"] == list(OUT_OF_SCOPE)
    content = record("paper", "errata", "mce-claim")
    assert [erratum["key"] for erratum in content["errata"]] == ["mce-claim"]
    assert content["out_of_scope"] == []


def test_an_unknown_key_is_refused_with_the_nearest(refused) -> None:
    for options in ([], ["--json"]):
        line = refused("paper", "errata", "rbs-root", "mce-clam", *options)
        assert "'mce-clam'" in line
        assert "`dualfocal paper errata` lists all; did you mean mce-claim?" in line
    assert "did you mean" not in refused("paper", "errata", "?")


def test_verify_and_replication_find_their_data_from_any_folder(run, record) -> None:
    out, _ = run("paper", "verify")
    assert "22 of 27 published numbers follow" in words(out)
    numbers = record("paper", "verify")["numbers"]
    assert sum(number["agrees"] for number in numbers) == 22
    assert "ECE" in run("paper", "replication")[0]
