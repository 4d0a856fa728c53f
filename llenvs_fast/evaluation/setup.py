"""From options to a session that can run: environment, model, journal. The command line sits on this."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from llenvs_fast.core.environment import Environment
from llenvs_fast.core.errors import (
    EngineStartError,
    InvalidSettingError,
    JournalError,
    LLEnvsError,
    UnknownEnvironmentError,
    nearest,
)
from llenvs_fast.core.registry import environment_registry
from llenvs_fast.evaluation.runner import TrajectoryRunner, count_tasks
from llenvs_fast.evaluation.session import Session
from llenvs_fast.inference.backend import ModelBackend, run_requests, unwrap
from llenvs_fast.inference.fingerprint import fingerprint
from llenvs_fast.inference.models import ResolvedModel, default_model, resolve_model
from llenvs_fast.inference.protocol import ChatMessage, GenerationRequest, SamplingParams
from llenvs_fast.results.files import run_directory, runs_directory
from llenvs_fast.results.journal import Journal
from llenvs_fast.results.runs import latest_incomplete

OUTPUTS = Path("outputs")
_SAMPLING_FIELDS = frozenset(f.name for f in fields(SamplingParams)) - {"n", "extra"}


@dataclass(frozen=True)
class EvaluationOptions:
    """What to evaluate, as a user says it. `resume` is a run directory, "" for the latest incomplete one, or None."""

    env_id: str
    env_args: dict[str, Any] = field(default_factory=dict)
    model: str | None = None
    backend: str = "vllm"
    engine_args: dict[str, Any] = field(default_factory=dict)
    num_examples: int = 5
    rollouts_per_example: int = 3
    sampling_args: dict[str, Any] = field(default_factory=dict)
    max_concurrent: int | None = None
    seed: int = 0
    schedule: str = "packed"
    save_results: bool = False
    save_tokens: bool = False
    resume: str | None = None


@dataclass(frozen=True)
class Evaluation:
    """An opened evaluation. `directory` is where its rows go, None where they are not saved."""

    title: str
    session: Session
    sampling_params: SamplingParams
    seed: int
    directory: Path | None

    def headline(self) -> str:
        s, p = self.session, self.sampling_params
        left = "" if s.missing == s.total else f", {s.missing} of them still to run"
        return (
            f"{self.title}: {s.num_tasks} tasks x {s.samples_per_task} samples = {s.total} rollouts{left} "
            f"(temperature {p.temperature:g}, max_tokens {p.max_tokens}, seed {self.seed})"
        )


@contextmanager
def open_evaluation(options: EvaluationOptions) -> Iterator[Evaluation]:
    """Open what an evaluation needs, and close it again. The model is loaded by its session, after all checks."""
    with ExitStack() as stack:
        environment = open_environment(options.env_id, options.env_args)
        if hasattr(environment, "close"):
            stack.callback(environment.close)
        params = sampling_params(options.sampling_args)
        num_tasks = count_tasks(environment, None if options.num_examples == -1 else options.num_examples)
        model = resolve_model(options.model or default_model())
        system_prompt = environment.prompts.get("system")
        settings = identity(options, environment, model, params, system_prompt, num_tasks)
        directory = _directory(options, model, settings)
        journal = None
        if directory is not None:
            opener = Journal.create if options.resume is None else Journal.resume
            journal = stack.enter_context(opener(directory, settings))

        def open_runner() -> TrajectoryRunner:
            backend = stack.enter_context(open_backend(options.backend, model, options.engine_args))
            probe(backend, params, system_prompt)
            return TrajectoryRunner(
                environment, backend, params, system_prompt=system_prompt, seed=options.seed, schedule=options.schedule
            )

        session = Session(
            open_runner,
            num_tasks,
            options.rollouts_per_example,
            journal=journal,
            settings=settings,
            max_live=options.max_concurrent,
            keep_tokens=options.save_tokens,
        )
        yield Evaluation(f"{options.env_id} | {model.display_name}", session, params, options.seed, directory)


def identity(
    options: EvaluationOptions,
    environment: Environment,
    model: ResolvedModel,
    params: SamplingParams,
    system_prompt: str | None,
    num_tasks: int,
) -> dict[str, Any]:
    """The settings that make two runs the same run: what a resume must not change."""
    return {
        "env_id": options.env_id,
        "env_args": options.env_args,
        "env_version": environment.spec.metadata.get("version"),
        "model": model.display_name,
        "model_fingerprint": fingerprint(model),
        "num_examples": num_tasks,
        "rollouts_per_example": options.rollouts_per_example,
        "sampling_args": asdict(params),
        "seed": options.seed,
        "system_prompt": system_prompt,
        "backend": options.backend,
        "engine_args": options.engine_args,
    }


def open_environment(env_id: str, env_args: dict[str, Any]) -> Environment:
    """`adapter:name` or a bare name that some source has. Raises UnknownEnvironmentError with the nearest names."""
    adapter, colon, name = env_id.partition(":")
    if colon and adapter in environment_registry.list_adapters():
        return _made(adapter, name, env_args)
    known = environment_registry.list_environments()
    sources = [a for a, e in known if e == env_id]
    if not sources:
        names = [e for _, e in known]
        raise UnknownEnvironmentError(
            f"no environment {env_id!r}; {nearest(env_id, names)} (llenvs-fast env list shows all)"
        )
    if len(sources) > 1:
        choices = " or ".join(f"{source}:{env_id}" for source in sources)
        raise UnknownEnvironmentError(f"{env_id!r} is in several sources: say {choices}")
    return _made(sources[0], env_id, env_args)


def _made(adapter: str, name: str, env_args: dict[str, Any]) -> Environment:
    try:
        return environment_registry.get_adapter(adapter).get_environment(name, **env_args)
    except LLEnvsError:
        raise
    except Exception as error:  # of arguments that its source did not expect
        raise InvalidSettingError(f"{name} can't be made with the arguments {env_args}: {error}") from error


def sampling_params(args: dict[str, Any]) -> SamplingParams:
    """SamplingParams from a mapping; what is not a field of it goes to the engine as `extra`."""
    if args.get("n", 1) != 1:
        raise InvalidSettingError(f"sampling argument n={args['n']}: use -r for several samples of each task")
    if "seed" in args:
        raise InvalidSettingError(f"sampling argument seed={args['seed']}: use --seed, the run's own")
    args = {k: v for k, v in args.items() if k != "n"}
    if "stop" in args:
        stop = args.pop("stop")
        args["stop_sequences"] = (stop,) if isinstance(stop, str) else stop
    if isinstance(args.get("stop_sequences"), list):
        args["stop_sequences"] = tuple(args["stop_sequences"])
    extra = {k: v for k, v in args.items() if k not in _SAMPLING_FIELDS}
    fields_given = {k: _typed(k, v) for k, v in args.items() if k in _SAMPLING_FIELDS}
    return SamplingParams(**{"temperature": 1.0} | fields_given, extra=extra)


def _typed(name: str, value: Any) -> Any:
    """A sampling argument of the type that its field has. Raises InvalidSettingError for another."""
    default = getattr(SamplingParams(), name)
    if isinstance(default, tuple):
        fits = isinstance(value, tuple) and all(isinstance(v, str) for v in value)
        wanted = "a string or a list of strings"
    elif isinstance(default, bool):
        fits, wanted = isinstance(value, bool), "true or false"
    elif isinstance(default, int):
        fits, wanted = isinstance(value, int) and not isinstance(value, bool), "a whole number"
    else:
        fits, wanted = isinstance(value, int | float) and not isinstance(value, bool), "a number"
    if name == "max_tokens":
        fits, wanted = fits and value >= 1, "a whole number of at least 1"
    if not fits:
        raise InvalidSettingError(f"sampling argument {name}={value!r}: give {wanted}")
    return value


def probe(backend: ModelBackend, params: SamplingParams, system_prompt: str | None) -> None:
    """Generate one token, so that what no request could be run with is one error before the run, not one a rollout.

    Raises what the request ended with: a missing chat template, a role that it refuses, a bad sampling parameter.
    """
    system = () if system_prompt is None else (ChatMessage("system", system_prompt),)
    messages = (*system, ChatMessage("user", "Hello"))
    ids = None if backend.renderer is None else backend.renderer.render(messages)
    request = GenerationRequest(("probe", id(backend)), params, ids, messages, seed=0, max_tokens=1)
    try:
        unwrap(run_requests(backend, [request])[0])
    except InvalidSettingError as error:
        strange = [name for name in params.extra if name in str(error)]
        if not strange:
            raise
        raise InvalidSettingError(f"{error}; {nearest(strange[0], _SAMPLING_FIELDS)}") from error


def open_backend(kind: str, model: ResolvedModel, engine_args: dict[str, Any]) -> ModelBackend:
    from llenvs_fast.inference import backends

    make = {"vllm": "VLLMBackend", "huggingface": "HuggingFaceBackend"}[kind]
    try:
        backend: ModelBackend = getattr(backends, make)(str(model.path), **engine_args)
    except LLEnvsError:
        raise
    except Exception as error:  # of the engine, about the model or its options
        why = " ".join(str(error).split())
        raise EngineStartError(
            f"{kind} can't start with {model.display_name} and engine arguments {engine_args}: {why:.700}"
        ) from error
    return backend


def _directory(options: EvaluationOptions, model: ResolvedModel, settings: dict[str, Any]) -> Path | None:
    """Where rows go: a new directory with -s, the one named or found with --resume, else nowhere."""
    if options.resume is None:
        return run_directory(OUTPUTS, options.env_id, model.display_name) if options.save_results else None
    if options.resume:
        return Path(options.resume)
    runs = runs_directory(OUTPUTS, options.env_id, model.display_name)
    latest = latest_incomplete(runs, settings)
    if latest is None:
        raise JournalError(
            f"{str(runs)!r} has no incomplete run with these settings: start one with -s, or name it with --resume PATH"
        )
    return latest
