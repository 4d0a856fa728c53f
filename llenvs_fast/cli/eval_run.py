"""`llenvs-fast eval run`: parse, call, print."""

from __future__ import annotations

import logging
import shlex
import sys
from pathlib import Path
from typing import Any

import click

from llenvs_fast.cli.interrupt import EXIT_STATUS, Interrupt
from llenvs_fast.cli.options import Count, JsonObject
from llenvs_fast.core.errors import JournalError


@click.command("run")
@click.argument("env_id")
@click.option("-m", "--model", help="Directory, Hugging Face id, smollm2 or embedded.")
@click.option("--backend", type=click.Choice(["vllm", "huggingface"]), default="vllm", help="Engine.  [default: vllm]")
@click.option("--engine-args", type=JsonObject(), default="{}", help="Engine options, e.g. '{\"dtype\": \"float32\"}'.")
@click.option("-n", "--num-examples", type=Count(all_allowed=True), default=5, help="Tasks; -1: all.  [default: 5]")
@click.option("-r", "--rollouts-per-example", type=Count(), default=3, show_default=True, help="Samples of each task.")
@click.option("-t", "--max-tokens", type=Count(), help="Tokens to generate per turn.  [default: 2048]")
@click.option("-T", "--temperature", type=click.FloatRange(min=0), help="Sampling temperature.  [default: 1.0]")
@click.option("-S", "--sampling-args", type=JsonObject(), default="{}", help="Sampling parameters; win over -t, -T.")
@click.option("-a", "--env-args", type=JsonObject(), default="{}", help="For the environment, e.g. '{\"seed\": 7}'.")
@click.option("-c", "--max-concurrent", type=Count(), help="Most live rollouts.  [default: what fits the KV cache]")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed that every turn's own seed is derived from.")
@click.option("--schedule", type=click.Choice(["packed", "lockstep"]), default="packed", help="[default: packed]")
@click.option("-s", "--save-results", is_flag=True, help="Save every rollout as it ends, in ./outputs/evals/.")
@click.option("--save-tokens", is_flag=True, help="With -s: also the exact token ids and log-probabilities.")
@click.option("-R", "--resume", is_flag=False, flag_value="", metavar="[PATH]", help="Resume a saved run (the latest).")
@click.option("-d", "--debug", is_flag=True, help="Plain lines instead of the live display.")
@click.option("-v", "--verbose", is_flag=True, help="Debug log on stderr.")
def run(**options: Any) -> None:
    """Evaluate a model on the environment ENV_ID (see `llenvs-fast env list`).

    Example: llenvs-fast eval run leg_counting -n 50 -r 4
    """
    _configure_logging(options["verbose"])
    with Interrupt() as interrupt:
        try:
            status = _run(options, interrupt)
        except KeyboardInterrupt:
            status = EXIT_STATUS
    sys.exit(status)


def _run(options: dict[str, Any], interrupt: Interrupt) -> int:
    from llenvs_fast.cli.progress import Progress
    from llenvs_fast.evaluation.setup import EvaluationOptions, open_evaluation
    from llenvs_fast.reports.console import print_report

    with open_evaluation(EvaluationOptions(**_evaluation_options(options))) as evaluation:
        session = evaluation.session
        click.echo(evaluation.headline(), err=True)
        try:
            session.load()
            progress = Progress(session.total, session.total - session.missing, plain=options["debug"] or None)
            progress.accuracy = session.accuracy_so_far
            interrupt.arm()
            with progress:
                loop = session.run(progress.watch, interrupt.stop)
        except (KeyboardInterrupt, JournalError):
            _say_how_to_resume(evaluation.directory)
            raise
        try:
            print_report(evaluation.title, session.result(), loop)
        except OSError as error:  # a full disk or a closed pipe: what was saved is saved
            click.echo(f"Error: the report can't be printed: {error.strerror or error}", err=True)
            _close(evaluation, loop)
            return 1
        return _close(evaluation, loop)


def _close(evaluation: Any, loop: Any) -> int:
    """Say what went wrong and what is left to do; the exit status."""
    for kind, message in evaluation.session.failures.items():
        click.echo(f"failed, for example ({kind}): {message:.500}", err=True)
    if evaluation.directory is not None:
        click.echo(f"saved in {evaluation.directory}", err=True)
    if loop.engine_error is not None:
        click.echo(f"Error: the engine died: {loop.engine_error}", err=True)
    if loop.interrupted or loop.engine_error is not None:
        _say_how_to_resume(evaluation.directory)
    if loop.interrupted:
        return EXIT_STATUS
    return 1 if loop.engine_error is not None or evaluation.session.all_failed else 0


def _say_how_to_resume(directory: Path | None) -> None:
    if directory is None:
        click.echo("nothing was saved: -s saves every rollout as it ends", err=True)
    else:
        click.echo(f"resume with: {resume_command(sys.argv, directory)}", err=True)


def resume_command(argv: list[str], directory: Path) -> str:
    """The command line again, with `--resume DIRECTORY` in place of any it had."""
    words: list[str] = []
    skip = False
    for word in argv[1:]:
        if skip and not word.startswith("-"):
            skip = False
            continue
        skip = word in ("-R", "--resume")
        if not skip and not word.startswith("--resume="):
            words.append(word)
    return shlex.join(["llenvs-fast", *words, "--resume", str(directory)])


def _evaluation_options(options: dict[str, Any]) -> dict[str, Any]:
    sampling = {"max_tokens": options["max_tokens"], "temperature": options["temperature"]}
    sampling = {k: v for k, v in sampling.items() if v is not None} | options["sampling_args"]
    kept = (
        "env_id", "env_args", "model", "backend", "engine_args", "num_examples", "rollouts_per_example",
        "max_concurrent", "seed", "schedule", "save_results", "save_tokens", "resume",
    )  # fmt: skip
    return {name: options[name] for name in kept} | {"sampling_args": sampling}


def _configure_logging(verbose: bool) -> None:
    """Our own log goes to stderr; other packages keep to theirs."""
    ours = logging.getLogger("llenvs_fast")
    ours.setLevel(logging.DEBUG if verbose else logging.INFO)
    if not ours.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
        ours.addHandler(handler)
