"""`dualfocal paper theory`: tables, JSON, a picture, and bad input in one line."""

import json

import pytest
from case_loops import for_each

from dualfocal.cli import main
from dualfocal_lab.theory import dual_focal_minimiser, posterior_grid, regions


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "120")
    # test_claims checks the claims on the whole grid.
    monkeypatch.setattr("dualfocal_lab.theory.claims.posterior_grid", lambda classes, _: posterior_grid(classes, 10))

    def run(*arguments: str, code: int = 0):
        with pytest.raises(SystemExit) as ended:
            main(["paper", "theory", *arguments])
        assert ended.value.code == code
        return capsys.readouterr()

    return run


def test_defaults_are_those_of_figure_1(run) -> None:
    out = run().out
    assert "Lemma 1 and Figure 1, gamma = 1, C = q_j = 0.3" in out
    for text in ("0.1353", "0.3679", "0.6044", "0.2365", "q_m lies in (0.3, 0.7]", "[0.6044, 1)"):
        assert text in out
    verdicts = [line.split()[0] for line in out.splitlines() if line.startswith(("holds ", "fails ", "empty "))]
    assert len(verdicts) == 12
    assert {"holds", "fails", "empty"} == set(verdicts)
    assert "least conditional risk" not in out


def test_a_posterior_and_a_picture(run, tmp_path) -> None:
    result = run("--gamma", "2", "--eta", ".5,.3,.2", "--plot", "figure.png")
    assert ".5322 .2267 .2411" in result.out
    for text in ("0.70111", "0.70298", "0>2>1", ".5322 over", ".4265 under", ".5000 calibrated", "0=1=2"):
        assert text in result.out
    assert "Dual focal loss ranks class 2 above class 1, against the posterior." in result.out
    assert "Figure 1: figure.png" in result.err
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_json(run) -> None:
    result = run("--gamma", "1", "--c", "0", "--eta", ".5,.3,.2", "--json")
    content = json.loads(result.out, parse_constant=pytest.fail)
    assert list(content) == ["schema", "regions", "gradient_ratios", "claims", "minimisers"]
    assert content["regions"]["v_uc"] == pytest.approx(regions(1.0, 0.0).v_uc)
    assert content["regions"]["reduction"] == pytest.approx(0, abs=1e-9)
    assert [row["rival"] for row in content["gradient_ratios"]] == [None] * 9  # C = 0: there is no rival
    assert all(row["target"] == pytest.approx(row["focal"]) for row in content["gradient_ratios"])
    assert len(content["claims"]) == 12
    names = [minimiser["name"] for minimiser in content["minimisers"]]
    assert names == ["cross-entropy", "focal", "dual focal", "dual focal, eta's order", "dual focal, with ties"]
    dual = content["minimisers"][2]
    assert dual["risk"] == pytest.approx(dual_focal_minimiser([0.5, 0.3, 0.2], 1.0).risk)
    assert not dual["attained"]
    assert not dual["keeps_order"]
    assert dual["keeps_top"]


@for_each(
    "arguments, words",
    [
        (["--gamma", "0"], ["gamma must be above 0", "gamma = 0.0"]),
        (["--gamma", "30"], ["gamma", "between 0 and 20", "30.0"]),
        (["--c", "1"], ["C in [0, 1)", "C = 1.0"]),
        (["--eta", "a,b"], ["--eta", "numbers", "'a,b'"]),
        (["--eta", ".5,.3"], ["eta", "sum to 1", "[0.5, 0.3]", "0.8"]),
        (["--eta", ".2,.2,.2,.2,.1,.1"], ["at most 5 classes", "got 6"]),
        (["--plot", "figure.gif"], ["--plot", "'.png', '.pdf', '.svg'", "'.gif'"]),
        (["--plot", "nowhere/figure.png"], ["nowhere/figure.png", "folder 'nowhere'"]),
    ],
)
def test_bad_input_is_one_line_that_names_the_value_and_the_rule(run, arguments, words) -> None:
    result = run(*arguments, code=2)
    assert result.out == ""
    (line,) = result.err.splitlines()
    assert line.startswith("dualfocal: ")
    assert [word for word in words if word not in line] == []


def test_help_shows_options_and_an_example(run) -> None:
    out = run("--help").out
    for text in ("--gamma", "--eta", "--plot", "dualfocal paper theory --gamma 2 --eta .5,.3,.2", "docs/theory.md"):
        assert text in out
