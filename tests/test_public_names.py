"""The public names of the library, written down; tests of the library import nothing else."""

from importlib import import_module

import pytest

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
        AdaptiveCalibrationError BrierScore ClasswiseCalibrationError ExpectedCalibrationError MaximumCalibrationError
        evaluate evaluate_choices evaluate_groups evaluate_multilabel evaluate_shift evaluate_tasks
        compare compare_auroc corp holm linear_calibration
        BinStats BinnedPredictions CalibrationMonitor Choices ClusteredConfidences ClusteredPredictions MonitorBatch
        ShiftSet TokenConfidences
        Auroc AurocDifference BrierDecomposition ChoiceEvaluation Comparison Corp Evaluation Floor GroupEvaluation
        Inference LabelEvaluation LinearCalibration MultilabelEvaluation RiskCoverage ShiftEvaluation ShiftScores
        TokenEvaluation
    """,
    "dualfocal.calibrators": """
        CALIBRATORS Calibrator Chain make_calibrator parse_methods
        BayesianBinning BetaCalibration DirichletCalibration EnsembleTemperatureScaling HistogramBinning
        IsotonicCalibration MatrixScaling PlattScaling TemperatureScaling VectorScaling
        MULTILABEL_CALIBRATORS MultilabelCalibrator MultilabelIsotonic MultilabelPlatt MultilabelTemperature
        make_multilabel_calibrator
        compare_calibrators compare_multilabel_calibrators apply_calibrator calibrate_shift
        load_calibrator save_calibrator CalibratedModel log_probs
        Application CalibratorComparison FitReport MethodScore MultilabelComparison Note ShiftCalibration
    """,
    "dualfocal.predictions": """
        load_choices load_multilabel_predictions load_predictions save_predictions
        merge_predictions rewrite_predictions check_same_labels
        bin_predictions stream_predictions PredictionStream
        open_dense_folder is_dense_folder DenseFolder DenseImage
        find_run_folders is_finished_run is_run_folder predictions_file
        ChoicePredictions Predictions PredictionsError Reading TooLargeError
    """,
    "dualfocal.plots": """
        reliability_diagram corp_diagram evidence_diagram token_groups_diagram overconfidence_map
        reliability_figure corp_figure evidence_figure multilabel_figure overconfidence_figure shift_figure token_figure
        MetricBar metric_bars metric_figure max_logit_histogram rival_boxplot ece_over_training study_figure
        LOOKS Look save styled
    """,
    "dualfocal.report": "write_report",
    "dualfocal.tables": "Table printable quantity",
    "dualfocal.cli": "app main",
    "dualfocal.integrations.hf": """
        TrainerLoss loss_func
        EvalPrediction compute_lm_metrics compute_metrics lm_statistics
        count_tokens evaluate_causal_lm scan_causal_lm
    """,
    "dualfocal.integrations.lightning": "CalibrationCallback checkpoint_calibrator",
    "dualfocal.integrations.onnx": "BOUNDS OnnxAgreement export_onnx",
    "dualfocal.integrations.ray_data": "bin_dataset evaluate_dataset",
    "dualfocal.integrations.sklearn": "ProbabilityCalibrator ReliabilityDisplay",
    "dualfocal.integrations.sql": "PredictionTable bin_table evaluate_table reduction_query",
}


@pytest.mark.parametrize("module", PUBLIC)
def test_a_module_offers_the_names_that_are_written_down(module: str) -> None:
    offered = import_module(module)
    assert sorted(offered.__all__) == sorted(PUBLIC[module].split())
    assert [name for name in offered.__all__ if not hasattr(offered, name)] == []
