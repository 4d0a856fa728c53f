"""Numbers that can be trusted. Importing this loads no numba: kernels compile on their first call, with much to do."""

from llenvs_fast.statistics._jit import warm_up
from llenvs_fast.statistics.advantages import Advantages, group_advantages
from llenvs_fast.statistics.best_of_k import BestOfK, best_of_k
from llenvs_fast.statistics.bootstrap import bootstrap, bootstrap_mean, resampled_means
from llenvs_fast.statistics.clustered import (
    VarianceComponents,
    clustered_error_of_rate,
    clustered_mean,
    clustered_standard_error,
    projected_standard_error,
    variance_components,
)
from llenvs_fast.statistics.comparison import (
    PairedRuns,
    SignFlipTest,
    mcnemar_test,
    pair_runs,
    paired_bootstrap,
    paired_difference,
    sign_flip_test,
)
from llenvs_fast.statistics.critical_values import normal_quantile, student_quantile
from llenvs_fast.statistics.intervals import clopper_pearson_interval, mean_interval, wilson_interval
from llenvs_fast.statistics.maj_at_k import MajAtK, maj_at_k
from llenvs_fast.statistics.moments import GroupMoments, Moments, grouped_moments, moments
from llenvs_fast.statistics.observed import Estimate, SuccessCounts, eligible_mean, success_counts
from llenvs_fast.statistics.pass_at_k import mean_pass_at_k, pass_at_k, pass_hat_k
from llenvs_fast.statistics.power import minimum_detectable_effect, samples_needed, tasks_needed
from llenvs_fast.statistics.quantiles import GroupQuantiles, Quantiles, grouped_quantiles, quantiles

__all__ = [
    "Advantages",
    "BestOfK",
    "Estimate",
    "GroupMoments",
    "GroupQuantiles",
    "MajAtK",
    "Moments",
    "PairedRuns",
    "Quantiles",
    "SignFlipTest",
    "SuccessCounts",
    "VarianceComponents",
    "best_of_k",
    "bootstrap",
    "bootstrap_mean",
    "clopper_pearson_interval",
    "clustered_error_of_rate",
    "clustered_mean",
    "clustered_standard_error",
    "eligible_mean",
    "group_advantages",
    "grouped_moments",
    "grouped_quantiles",
    "maj_at_k",
    "mcnemar_test",
    "mean_interval",
    "mean_pass_at_k",
    "minimum_detectable_effect",
    "moments",
    "normal_quantile",
    "pair_runs",
    "paired_bootstrap",
    "paired_difference",
    "pass_at_k",
    "pass_hat_k",
    "projected_standard_error",
    "quantiles",
    "resampled_means",
    "samples_needed",
    "sign_flip_test",
    "student_quantile",
    "success_counts",
    "tasks_needed",
    "variance_components",
    "warm_up",
    "wilson_interval",
]
