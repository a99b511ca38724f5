"""The public names of the library, written down; tests of the library import nothing else."""

import ast
from importlib import import_module
from pathlib import Path

import pytest

TESTS = Path(__file__).parent

# The library keeps its promises for these names only. A new one needs a user who asked for it.
PUBLIC = {
    "dualfocal": """
        AdaDualFocalLoss AdaFocalLoss BrierLoss CrossEntropyLoss DualFocalLoss FLSDLoss FocalLoss InverseFocalLoss
        KDEXELoss LabelSmoothingLoss MMCELoss LOSSES dual_focal_loss
        Evaluation compare evaluate
        CALIBRATORS TemperatureScaling compare_calibrators load_calibrator
        __version__
    """,
    "dualfocal.losses": """
        LOSSES
        AdaDualFocalLoss AdaFocalLoss BrierLoss CrossEntropyLoss DualFocalLoss FLSDLoss FocalLoss InverseFocalLoss
        KDEXELoss LabelSmoothingLoss LinearDualFocalLoss MMCELoss
        ada_dual_focal_loss ada_focal_loss brier_loss cross_entropy_loss dual_focal_loss flsd_loss focal_loss
        inverse_focal_loss kde_xe_loss label_smoothing_loss linear_dual_focal_loss mmce_loss
        kde_bandwidth true_and_rival
    """,
    "dualfocal.kernels": "DTYPES available",
    "dualfocal.metrics": """
        METRICS Metric
        adaptive_ece aurc auroc brier_decomposition brier_score classwise_ece debiased_ece ece error_rate kde_ece mce
        nll ood_auroc
        BrierScore ClasswiseCalibrationError ExpectedCalibrationError MaximumCalibrationError
        evaluate evaluate_choices evaluate_groups evaluate_many evaluate_shift evaluate_tasks
        compare compare_auroc corp holm
        BinStats CalibrationMonitor CalibrationSums Choices Samples TokenConfidences
        Auroc BrierDecomposition ChoiceEvaluation Comparison Corp Difference Evaluation Floor
        GroupEvaluation Inference MultilabelEvaluation RiskCoverage ShiftEvaluation
        ShiftScores TokenEvaluation
    """,
    "dualfocal.calibrators": """
        CALIBRATORS Calibrator Chain make_calibrator parse_methods
        BayesianBinning BetaCalibration DirichletCalibration EnsembleTemperatureScaling HistogramBinning
        IsotonicCalibration MatrixScaling PlattScaling TemperatureScaling VectorScaling
        MULTILABEL_CALIBRATORS MultilabelCalibrator MultilabelIsotonic MultilabelPlatt MultilabelTemperature
        make_multilabel_calibrator
        compare_calibrators compare_multilabel_calibrators apply_calibrator calibrate_shift
        load_calibrator save_calibrator CalibratedModel log_probs
        CalibratorComparison MethodScore MultilabelComparison Note ShiftCalibration
    """,
    "dualfocal.predictions": """
        load_choices load_multilabel_predictions load_predictions save_predictions
        merge_predictions rewrite_predictions check_same_labels
        sum_predictions stream_predictions PredictionStream
        open_dense_folder is_dense_folder DenseFolder
        find_run_folders is_finished_run is_run_folder predictions_file
        ChoicePredictions Predictions PredictionsError Reading TooLargeError
    """,
    "dualfocal.plots": """
        reliability_diagram corp_diagram evidence_diagram token_groups_diagram overconfidence_map
        reliability_figure corp_figure evidence_figure multilabel_figure overconfidence_figure shift_figure token_figure
        LOOKS Look save styled
    """,
    "dualfocal.plots.style": """
        BLACK BLUE DARK_GREY GREEN GREY ORANGE PURPLE SKY VERMILION LOOKS Look NotebookFigure
        axes_or_new check_named legend_below legend_right look_of one_axis plain save styled tidy varied
    """,
    "dualfocal.plots.panels": "density_strip panels unit_square",
    "dualfocal.plots.reliability": "LEVEL chance_range draw_reliability reliability_diagram reliability_figure",
    "dualfocal.report": "write_report",
    "dualfocal.checks": """
        check_choice check_count check_ignore_index check_known check_level did_you_mean listed
    """,
    "dualfocal.files": "atomic_path check_place check_readable leftovers",
    "dualfocal.tables": "Table printable quantity",
    "dualfocal.cli": "app full_app main",
    "dualfocal.cli.commands": """
        AsJson check_plot comma_separated consoles errors_name is_out_of_memory names_of print_json print_table
        progress_bar say show
    """,
    "dualfocal.integrations.hf": """
        loss_func
        EvalPrediction compute_lm_metrics compute_metrics lm_statistics
        count_tokens evaluate_causal_lm scan_causal_lm
    """,
    "dualfocal.integrations.lightning": "CalibrationCallback checkpoint_calibrator",
    "dualfocal.integrations.onnx": "BOUNDS export_onnx",
    "dualfocal.integrations.ray_data": "evaluate_dataset sums_of_dataset",
    "dualfocal.integrations.sklearn": "ProbabilityCalibrator ReliabilityDisplay",
    "dualfocal.integrations.sql": "PredictionTable evaluate_table",
}


@pytest.mark.parametrize("module", PUBLIC)
def test_a_module_offers_the_names_that_are_written_down(module: str) -> None:
    offered = import_module(module)
    assert sorted(offered.__all__) == sorted(PUBLIC[module].split())
    assert [name for name in offered.__all__ if not hasattr(offered, name)] == []


# Tests of the library import public names only, so that its inside can be rebuilt

# Folders of tests that damage files, change the source, or are about both floors.
OTHERS = {"browser", "golden", "hostile", "mutants", "site"}
# Test file -> the internals that it imports, because no public name leads to what it tests.
INTERNALS = {
    # Kernels, each against float64: a loss takes them only on a GPU.
    "kernels/test_modulated.py": """
        dualfocal.kernels.modulated dualfocal.losses._expression.Gamma dualfocal.losses._expression.GammaBins
        dualfocal.losses._flat.flatten dualfocal.losses._modulated.dual_loss_and_gradient
        dualfocal.losses._modulated.modulated_loss
    """,
    # The closed form of soft targets against the expression, and the sort that it needs.
    "losses/test_soft_targets.py": "dualfocal.losses._modulated dualfocal.losses.rival",
    # Names in help texts, which are written twice.
    "test_architecture.py": "dualfocal.cli._common",
    # Calibrators written for a test, and recommendations for intervals that a test chooses.
    "calibrators/test_calibrator_advice.py": """
        dualfocal.calibrators._fit_report.Fit dualfocal.calibrators.comparison.advise
        dualfocal.calibrators.comparison.recommend
    """,
    "calibrators/test_compare_calibrators.py": "dualfocal.calibrators._fit_report.Fit",
    # Mathematics of one step: the evidence of a prior, and fair bets.
    "calibrators/test_calibrator_equations.py": "dualfocal.calibrators._logistic.Problem",
    # Mathematics of a comparison: the noise of labels, draws with weights, and the influence of a sample on the AURC.
    "metrics/test_label_noise.py": """
        dualfocal.metrics.label_noise.label_noise dualfocal.metrics.resampling.resample
        dualfocal.metrics.scan.scan
    """,
    # How clusters are put into groups.
    "metrics/test_clusters.py": "dualfocal.metrics.scan.scan dualfocal.metrics.units.unit_sums",
    "metrics/test_weights.py": """
        dualfocal.metrics.resampling.aurc_influence dualfocal.metrics.resampling.resample
        dualfocal.metrics.scan.scan
    """,
    "metrics/test_monitor.py": """
        dualfocal.metrics.monitor._bets.SHIFTS dualfocal.metrics.monitor._bets.log_cash
        dualfocal.metrics.monitor._bets.log_factors dualfocal.metrics.monitor._bets.log_investment
    """,
    # A wrong translation of an operator, made from the right one.
    "integrations/test_onnx.py": "dualfocal.integrations.onnx._operators.search_sorted",
    # Files: crashes between two steps of writing, checksums, and the memory limits of containers.
    "predictions/test_limits.py": "dualfocal._memory",
    "report/report_pages.py": "dualfocal.metrics.monitor.state_file.MonitorState",
}
# Limits that a test lowers so that small samples meet them, and functions that it replaces by one that fails.
REPLACED = [
    "dualfocal._memory.free_memory",
    "dualfocal.calibrators._base.CHUNK_CPU",
    "dualfocal.calibrators._ece_grid.BLOCK_CPU",
    "dualfocal.calibrators._logistic.MAX_CACHED",
    "dualfocal.calibrators._newton.MOST_ITERATIONS",
    "dualfocal.calibrators._tiles.TILE_CPU",
    "dualfocal.calibrators.binning.COLUMNS",
    "dualfocal.calibrators.one_vs_rest.SUBSAMPLE",
    "dualfocal.calibrators.temperature.SUBSAMPLE",
    "dualfocal.cli.entry_points",
    "dualfocal.integrations.hf.causal_lm.CHUNK_BYTES",
    "dualfocal.integrations.lightning.callback.Callback",
    "dualfocal.integrations.onnx.export.translations",
    "dualfocal.integrations.sql.databases.BATCH_BYTES",
    "dualfocal.losses._closed_form.CHUNK",
    "dualfocal.losses._closed_form.SMALL",
    "dualfocal.losses._modulated.closed_form",
    "dualfocal.losses._modulated.expression",
    "dualfocal.losses._modulated.is_concrete",
    "dualfocal.losses._modulated.soft_closed_form",
    "dualfocal.losses._soft_closed_form.MAX_SPARSE_CLASSES",
    "dualfocal.losses._soft_closed_form.next_of_each_class",
    "dualfocal.losses.cross_entropy.soft_nll",
    "dualfocal.losses.linear.CHUNK_BYTES",
    "dualfocal.losses.linear.MIN_ROWS",
    "dualfocal.metrics.calibration.ELEMENTS",
    "dualfocal.metrics.classwise.MOST_NUMBERS",
    "dualfocal.metrics.resampling.MOST_UNITS",
    "dualfocal.metrics.scan.BLOCK",
    "dualfocal.metrics.scan.TILE_CPU",
    "dualfocal.metrics.units.MOST_UNITS",
    "dualfocal.predictions._formats.arrays.NpzFile.get",
    "dualfocal.predictions._formats.tables.READ_AT_ONCE",
    "dualfocal.predictions.saving.BLOCK",
    "dualfocal.predictions.saving.repr",
    "dualfocal.report.calibrated.LEAST_SAMPLES",
    "dualfocal.report.calibrated.MOST_VALUES",
    "dualfocal.report.html.MOST_BYTES",
    "dualfocal.report.html.deal",
]


def imported_names(tree: ast.Module) -> set[str]:
    """The dotted names that a file imports from the library, without those that are public."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names if alias.name not in PUBLIC}
        elif isinstance(node, ast.ImportFrom) and node.module:
            public = PUBLIC.get(node.module, "").split()
            imported = {alias.name: f"{node.module}.{alias.name}" for alias in node.names}
            names |= {full for name, full in imported.items() if name not in public and full not in PUBLIC}
    return {name for name in names if name.startswith("dualfocal.")}


def replaced_names(tree: ast.Module) -> set[str]:
    """The dotted names of the library that a file replaces with ``setattr("dualfocal...", value)``."""
    return {
        node.args[0].value
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and getattr(node.func, "attr", "") == "setattr"
        and isinstance(node.args[0], ast.Constant)
        and str(node.args[0].value).startswith("dualfocal.")
    }


def test_tests_of_the_library_import_public_names_only() -> None:
    imported: dict[str, set[str]] = {}
    replaced: set[str] = set()
    for path in TESTS.rglob("*.py"):
        file = path.relative_to(TESTS)
        if file.parts[0] in OTHERS:
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if names := imported_names(tree):
            imported[file.as_posix()] = names
        replaced |= replaced_names(tree)
    assert imported == {file: set(names.split()) for file, names in INTERNALS.items()}
    assert replaced == set(REPLACED)
