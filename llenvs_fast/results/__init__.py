"""What happened: the journal (durable), tables (Arrow) and the summary of a run. Knows nothing of engines."""

from llenvs_fast.results.files import run_directory, runs_directory
from llenvs_fast.results.journal import Journal
from llenvs_fast.results.record import Ending, TrajectoryRecord
from llenvs_fast.results.rows import read_records
from llenvs_fast.results.runs import latest_incomplete, run_metadata
from llenvs_fast.results.summary import Mean, Rate, RunSummary, SummaryAccumulator, summarize
from llenvs_fast.results.table import read_parquet, to_table, write_parquet

__all__ = [
    "Ending",
    "Journal",
    "Mean",
    "Rate",
    "RunSummary",
    "SummaryAccumulator",
    "TrajectoryRecord",
    "latest_incomplete",
    "read_parquet",
    "read_records",
    "run_directory",
    "run_metadata",
    "runs_directory",
    "summarize",
    "to_table",
    "write_parquet",
]
