"""How good the embedded model is: `python -m llenvs_fast.embedded.measure [MODEL]`.

Runs the product itself on tasks that the training didn't see, `TASKS` tasks × `SAMPLES` samples of each skill at
temperature 1, and prints the table of the model card.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import click

from llenvs_fast.evaluation.setup import EvaluationOptions, open_evaluation
from llenvs_fast.results.summary import RunSummary
from llenvs_fast.statistics import wilson_interval

TASKS, SAMPLES = 200, 8
NORMAL_95 = 1.959964
LONG_SUMS = {"min_terms": 8, "max_terms": 10, "min_digits": 3}

MEASURED: dict[str, tuple[str, dict[str, Any]]] = {
    "leg_counting": ("reasoning_gym:leg_counting", {}),
    "chain_sum": ("reasoning_gym:chain_sum", {}),
    "GuessTheNumber easy": ("gem:game:GuessTheNumber-v0-easy", {}),
    "GuessTheNumber hard": ("gem:game:GuessTheNumber-v0-hard", {}),
    "calculator": ("reasoning_gym:chain_sum", LONG_SUMS | {"tool_types": ["calculator"]}),
    "python": ("reasoning_gym:chain_sum", LONG_SUMS | {"tool_types": ["python"]}),
}


@dataclass(frozen=True, slots=True)
class Measured:
    """pass@1 with tasks as clusters, pass@8 with Wilson's interval over tasks, and how often the format was kept."""

    skill: str
    pass_1: float
    pass_1_half_width: float
    pass_8: float
    pass_8_low: float
    pass_8_high: float
    format: float
    tokens: int

    def row(self) -> str:
        return (
            f"| {self.skill} | {self.pass_1:.3f} ± {self.pass_1_half_width:.3f} | {self.pass_8:.3f} "
            f"[{self.pass_8_low:.3f}, {self.pass_8_high:.3f}] | {self.format:.3f} |"
        )


def measure(skill: str, model: str, tasks: int = TASKS, samples: int = SAMPLES) -> Measured:
    """Evaluate one skill with the real engine at temperature 1."""
    env_id, env_args = MEASURED[skill]
    options = EvaluationOptions(
        env_id=env_id,
        env_args=env_args,
        model=model,
        engine_args={"dtype": "float32"},
        num_examples=tasks,
        rollouts_per_example=samples,
        sampling_args={"temperature": 1.0, "max_tokens": 512},
    )
    with open_evaluation(options) as evaluation:
        evaluation.session.run()
        return _measured(skill, evaluation.session.result(), samples)


def _measured(skill: str, summary: RunSummary, samples: int) -> Measured:
    assert summary.accuracy is not None
    at_all = summary.pass_at_k[samples]
    assert at_all.value is not None
    low, high = wilson_interval(round(at_all.value * at_all.n), at_all.n)
    return Measured(
        skill=skill,
        pass_1=summary.accuracy.value,
        pass_1_half_width=NORMAL_95 * (summary.accuracy_cluster_se or 0.0),
        pass_8=at_all.value,
        pass_8_low=float(low),
        pass_8_high=float(high),
        format=summary.metrics["format"].value or 0.0,
        tokens=summary.completion_tokens,
    )


@click.command()
@click.argument("model", default="embedded")
@click.option("--skill", "skills", multiple=True, type=click.Choice(list(MEASURED)), help="One skill only; repeatable.")
@click.option("-n", "tasks", default=TASKS, show_default=True, help="Tasks of each skill.")
def main(model: str, skills: tuple[str, ...], tasks: int) -> None:
    """Measure MODEL, a name or a directory, on the skills of the embedded model."""
    click.echo("| skill | pass@1 | pass@8 | format kept |\n|---|---|---|---|")
    done = []
    for skill in skills or MEASURED:
        done.append(measure(skill, model, tasks))
        click.echo(done[-1].row())
    click.echo(json.dumps({m.skill: [m.pass_1, m.pass_8, m.format, m.tokens] for m in done}))


if __name__ == "__main__":
    main()
