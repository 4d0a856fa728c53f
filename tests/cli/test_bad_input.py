"""What the command line says to bad input, before any model is loaded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from llenvs_fast.cli.eval_run import resume_command
from llenvs_fast.cli.main import cli, main


def llenvs(*words: str) -> Result:
    return CliRunner().invoke(cli, ["eval", "run", *words])


def said(result: Result) -> str:
    """All that was said: usage errors are printed, errors of ours are raised to `main`, which prints them."""
    return result.output + (str(result.exception) if result.exception else "")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["-n", "0"], "0: give 1 or more, or -1 for all"),
        (["-n", "-2"], "-2: give 1 or more, or -1 for all"),
        (["-n", "many"], "'many' is not a whole number"),
        (["-r", "0"], "0: give 1 or more"),
        (["-r", "-1"], "-1: give 1 or more"),
        (["-c", "0"], "0: give 1 or more"),
        (["-t", "0"], "0: give 1 or more"),
        (["-T", "-0.5"], "-0.5 is not in the range x>=0"),
        (["-S", "{top_p: 0.9}"], "'{top_p: 0.9}' is not JSON"),
        (["-S", "[1]"], "'[1]' is a JSON list: give an object"),
        (["-a", "3"], "'3' is a JSON int: give an object"),
        (["--schedule", "rounds"], "'rounds' is not one of 'packed', 'lockstep'"),
        (["--backend", "vlm"], "'vlm' is not one of 'vllm', 'huggingface'"),
    ],
)
def test_a_bad_option_is_a_usage_error(words: list[str], says: str) -> None:
    result = llenvs("leg_counting", *words)
    assert result.exit_code == 2
    assert says in result.output


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["leg_countin"], "no environment 'leg_countin'; nearest: leg_counting"),
        (["zzzz"], "no environment 'zzzz'; known: "),
        (["leg_counting", "-a", '{"size": 0}'], "size=0: an environment needs at least one task"),
        (["leg_counting", "-a", '{"legs": 4}'], "legs"),
        (["leg_counting", "-a", '{"name": "x"}'], "leg_counting can't be made with the arguments {'name': 'x'}"),
        (["leg_counting", "-a", '{"extra_rewards": 1}'], "can't be made with the arguments {'extra_rewards': 1}"),
        (["leg_counting", "-a", '{"size": 10000000000000000000000}'], "size=10000000000000000000000: give at most"),
        (["leg_counting", "-a", '{"score_timeout_s": -1}'], "score_timeout_s=-1: give seconds above 0"),
        (["leg_counting", "-a", '{"answer_extractor": 5}'], "answer_extractor=5: give the name of one"),
        (["leg_counting", "-S", '{"max_tokens": 0}'], "max_tokens=0: give a whole number of at least 1"),
        (["leg_counting", "-S", '{"n": 4}'], "use -r for several samples"),
        (["leg_counting", "-m", "smolm2"], "there is no model 'smolm2'"),
        (["leg_counting", "-m", "./no/such/model"], "there is no model './no/such/model'"),
        (["leg_counting", "-m", "EMPTY"], "config.json is missing"),
        (["leg_counting", "-m", "FAKE", "-R", "EMPTY"], "holds no run"),
    ],
)
def test_a_name_that_does_not_exist_is_an_error_with_a_remedy(words: list[str], says: str, tmp_path: Path) -> None:
    directories = {"EMPTY": tmp_path / "empty", "FAKE": tmp_path / "fake"}
    for directory in directories.values():
        directory.mkdir()
    (directories["FAKE"] / "config.json").write_text("{}")
    result = llenvs(*[str(directories.get(word, word)) for word in words])
    assert result.exit_code == 1
    assert says in said(result)


def test_resume_without_a_path_needs_an_incomplete_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    result = llenvs("leg_counting", "-m", str(tmp_path), "-R")
    assert result.exit_code == 1
    assert "has no incomplete run with these settings: start one with -s, or name it with --resume PATH" in said(result)


def test_an_output_directory_that_is_a_file_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "outputs").write_text("in the way")
    monkeypatch.chdir(tmp_path)
    result = llenvs("leg_counting", "-m", str(tmp_path), "-s")
    assert result.exit_code == 1
    assert "can't create the run directory 'outputs/evals/" in said(result)


def test_main_prints_an_error_of_ours_as_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["llenvs-fast", "eval", "run", "leg_countin"])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("Error: no environment 'leg_countin'")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("argv", "command"),
    [
        ("x eval run e -n 5 -s", "llenvs-fast eval run e -n 5 -s --resume d"),
        ("x eval run e -s --resume old -n 5", "llenvs-fast eval run e -s -n 5 --resume d"),
        ("x eval run e -R -s", "llenvs-fast eval run e -s --resume d"),
        ("x eval run e --resume=old", "llenvs-fast eval run e --resume d"),
    ],
)
def test_the_resume_command_is_the_command_again(argv: str, command: str) -> None:
    assert resume_command(argv.split(), Path("d")) == command


def test_env_list_shows_every_dataset_and_its_warnings() -> None:
    result = CliRunner().invoke(cli, ["env", "list"])
    assert result.exit_code == 0
    lines = {line.split()[0]: line for line in result.output.splitlines()}
    assert sum(name.startswith("reasoning_gym:") for name in lines) == 106
    assert sum(name.startswith("gem:game:") for name in lines) == 24
    assert "!" in lines["reasoning_gym:binary_matrix"]
    assert "!" not in lines["reasoning_gym:leg_counting"]


def test_env_list_of_an_unknown_source_names_those_that_exist() -> None:
    result = CliRunner().invoke(cli, ["env", "list", "gymnasium"])
    assert result.exit_code == 1
    assert "no environment source 'gymnasium'" in said(result)


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-", ">/dev/full", "2>/dev/full"])
def test_closed_or_full_streams_do_not_change_what_is_done(closed: str) -> None:
    command = f"{sys.executable} -m llenvs_fast.cli.main env list {closed}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == (1 if closed == ">/dev/full" else 0), done.stderr
    assert "Traceback" not in done.stderr


def test_an_encoding_that_lacks_a_character_gets_a_question_mark() -> None:
    code = (
        "from llenvs_fast.cli.main import _make_streams_safe\n"
        "_make_streams_safe()\n"
        "from llenvs_fast.engine.report import LoopReport\n"
        "from llenvs_fast.reports.console import print_report\n"
        "from llenvs_fast.results.summary import summarize\n"
        "print_report('m\\N{LATIN SMALL LETTER O WITH DIAERESIS}del', summarize([]), LoopReport())\n"
    )
    environment = os.environ | {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, env=environment, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert b"m?del" in done.stdout
