"""Numbers that can be trusted. Importing this loads no numba: kernels compile on their first call."""

from llenvs_fast.statistics.clustered import clustered_error_of_rate, clustered_standard_error
from llenvs_fast.statistics.intervals import normal_quantile, wilson_interval
from llenvs_fast.statistics.pass_at_k import mean_pass_at_k, pass_at_k

__all__ = [
    "clustered_error_of_rate",
    "clustered_standard_error",
    "mean_pass_at_k",
    "normal_quantile",
    "pass_at_k",
    "wilson_interval",
]
