"""`llenvs-fast env check`: what it prints, and its exit status."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec

import pytest
from click.testing import CliRunner, Result

from llenvs_fast.cli.env_check import check
from llenvs_fast.environments.conformance import CHECKS

installed = pytest.mark.skipif(
    find_spec("reasoning_gym") is None or not sys.platform.startswith("linux"), reason="needs reasoning-gym on Linux"
)


def run(*words: str) -> Result:
    return CliRunner().invoke(check, words, terminal_width=200)


def test_an_unknown_environment_is_one_line_with_the_nearest_names() -> None:
    result = run("leg_countin")
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: no environment 'leg_countin'; nearest: leg_counting")
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


@installed
def test_arguments_that_are_wrong_are_one_line_too() -> None:
    result = run("leg_counting", "-a", '{"size": 0}', "--json")
    assert result.exit_code == 2
    assert result.stderr == "Error: size=0: an environment needs at least one task\n"
    assert json.loads(result.stdout)["made"] is False


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--tasks", "0"], "0: give 1 or more"),
        (["--timeout", "0"], "0.0 is not in the range x>0"),
        (["-a", "[1]"], "'[1]' is a JSON list: give an object"),
    ],
)
def test_a_bad_option_is_a_usage_error(words: list[str], says: str) -> None:
    result = run("leg_counting", *words)
    assert result.exit_code == 2
    assert says in result.output


@installed
def test_a_sound_environment_is_a_table_and_status_0() -> None:
    result = run("leg_counting", "--tasks", "2")
    assert result.exit_code == 0, result.output
    assert "leg_counting" in result.stdout
    assert all(one.name in result.stdout for one in CHECKS)
    assert result.stdout.strip().endswith("passed, 1 skipped")


@installed
def test_a_failed_check_is_status_1_and_stands_in_the_json() -> None:
    result = run("game_of_life_halting", "--tasks", "1", "--json")  # any answer that is not empty scores 1.0
    assert result.exit_code == 1
    report = json.loads(result.stdout)
    assert (report["environment"], report["made"], report["ok"]) == ("game_of_life_halting", True, False)
    failed = {one["check"] for one in report["findings"] if one["verdict"] == "failed"}
    assert failed == {"noise_earns_less"}


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; from llenvs_fast.cli.env_check import check; check(['--help'], standalone_mode=False)\n"
        "print([m for m in ('numpy', 'torch', 'transformers', 'rich.table') if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "Exit status 0: nothing failed" in done.stdout
    assert done.stderr.strip() == "[]"
