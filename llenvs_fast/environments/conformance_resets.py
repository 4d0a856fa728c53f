"""The rules of an environment at rest: what it says of itself, what its resets give, and that they give it again."""

from __future__ import annotations

from typing import Any

from llenvs_fast.core.environment import EnvironmentSpec
from llenvs_fast.core.state import Observation, ObservationContent, State, StateMetadata
from llenvs_fast.core.tools import ToolDefinition
from llenvs_fast.environments.conformance_difference import difference
from llenvs_fast.environments.conformance_kit import Broken, Doubtful, Kit, Unreached, reset_options, short, told

MIN_TELLING_CHARS = 12  # shorter answers stand in observations by chance
MAX_TASKS_COMPARED = 8


def the_spec_is_sound(kit: Kit) -> None:
    """`spec`, `prompts`, `available_tools` and `reward_functions` have the types that the contract gives them."""
    environment, spec = kit.environment, kit.environment.spec
    limit = getattr(spec, "max_steps", 0)
    named = isinstance(getattr(spec, "name", None), str)
    if not isinstance(spec, EnvironmentSpec) or not named:
        raise Broken("spec to be an EnvironmentSpec with a name", short(spec), "return an EnvironmentSpec")
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 1):
        raise Broken("spec.max_steps to be None or at least 1", short(limit), "give None where there is no limit")
    prompts = environment.prompts
    if not isinstance(prompts, dict) or not all(isinstance(x, str) for pair in prompts.items() for x in pair):
        raise Broken("prompts to be a dict of texts", short(prompts), "leave out prompts that are not set")
    tools = environment.available_tools
    if not isinstance(tools, tuple) or not all(isinstance(tool, ToolDefinition) for tool in tools):
        raise Broken("available_tools to be a tuple of ToolDefinition", short(tools), "return () where there are none")
    for function in environment.reward_functions:
        if not isinstance(getattr(function, "name", None), str) or not callable(getattr(function, "compute", None)):
            raise Broken("reward functions with `name` and `compute`", short(function), "see core.reward")


def its_length_is_sound(kit: Kit) -> None:
    """`len` is the number of tasks: at least 1, and the same whenever it is asked for."""
    if not hasattr(kit.environment, "__len__"):
        if kit.spec.supports_len:
            raise Broken("a length, as spec.supports_len says", "no __len__", "add it, or set supports_len=False")
        raise Unreached("the environment has no length, and says so")
    lengths = [kit.call("len()", len, kit.environment) for _ in range(2)]
    if lengths[0] < 1:
        raise Broken("at least one task", f"a length of {lengths[0]}", "check its size, split or filter")
    if lengths[0] != lengths[1]:
        raise Broken("one length", f"{lengths[0]}, then {lengths[1]}", "fix the number of tasks when it is made")


def reset_gives_a_first_state(kit: Kit) -> None:
    """`reset` returns (State, dict), the state with an Observation and at step 0."""
    for task in kit.tasks:
        value = kit.reset_pair(task)
        match value:
            case (State(observation=Observation(), metadata=StateMetadata()) as state, dict()):
                pass
            case _:
                raise Broken("(State, dict), the state with an Observation", short(value), "return (state, info)")
        if state.metadata.step != 0:
            raise Broken("a first state at step 0", f"step {short(state.metadata.step)}", "begin with step=0")
        if state.metadata.is_terminal:
            raise Doubtful(f"task {task} to begin", "a first state that is terminal", "leave such tasks out")


def the_observation_is_text(kit: Kit) -> None:
    """A model can be shown the observation: texts that encode as UTF-8, and not all of them empty."""
    for task in kit.tasks:
        texts = shown_texts(kit.reset(task).observation)
        for text in texts:
            if not isinstance(text, str):
                raise Broken(f"text as the observation of task {task}", short(text), "write it as text")
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise Broken(f"task {task} in UTF-8", told(error), "encode with errors='replace'") from None
        if not any(text.strip() for text in texts):
            raise Broken(f"something to show of task {task}", "empty texts", "set Observation.prompt or task")


def shown_texts(observation: Observation) -> list[Any]:
    """All texts of an observation that a model reads, whatever they are."""
    parts = [part for part in (observation.task, observation.state) if part is not None]
    texts = [part.text if isinstance(part, ObservationContent) else part for part in parts]
    contents = [m.get("content") if isinstance(m, dict) else m for m in observation.messages]
    return [observation.prompt, *texts, *(content for content in contents if content is not None)]


def the_episode_id_is_kept(kit: Kit) -> None:
    """The option `episode_id` becomes the id of the episode; without it there is a text of the environment's own."""
    task = kit.tasks[0]
    wanted, got = reset_options(task)["episode_id"], kit.reset(task).metadata.episode_id
    if got != wanted:
        raise Broken(f"episode_id={wanted!r}", short(got), "read options['episode_id']")
    own = kit.call(f"reset of task {task}", kit.environment.reset, options={"task_index": task})[0].metadata.episode_id
    if not isinstance(own, str) or not own:
        raise Broken("an episode id without one in the options", short(own), "make one, such as uuid4().hex")


def the_task_index_is_heeded(kit: Kit) -> None:
    """Different task indices give different tasks."""
    length = kit.length
    if not kit.spec.supports_task_index:
        raise Unreached("spec.supports_task_index is False")
    if length == 1:
        raise Unreached("there is one task only")
    tasks = range(min(MAX_TASKS_COMPARED, MAX_TASKS_COMPARED if length is None else length))
    first = kit.reset(tasks[0])
    for task in tasks[1:]:
        other = kit.reset(task)
        if difference((first.observation, first.hidden), (other.observation, other.hidden)):
            return
    raise Broken("different tasks", f"the same task for the indices 0 to {tasks[-1]}", "read options['task_index']")


def an_index_outside_is_refused(kit: Kit) -> None:
    """A task index outside 0 … len − 1 raises an Exception."""
    length = kit.length
    if not kit.spec.supports_task_index or length is None:
        raise Unreached("there is no length or no task index")
    for index in (length, length + 1000, -1):
        value = kit.attempt(f"reset of task {index}", kit.environment.reset, options=reset_options(index))
        if not isinstance(value, Exception):
            what = told(value) if isinstance(value, BaseException) else "a task"
            raise Broken(f"an Exception for task_index={index} with len {length}", what, "check the index in reset")


def resets_are_repeatable(kit: Kit) -> None:
    """A task is the same whenever it is reset."""
    _must_have_index(kit)
    for task in kit.tasks:
        _must_be_equal(f"task {task} twice", kit.reset(task), kit.reset(task), "derive all draws from the task index")


def resets_do_not_depend_on_order(kit: Kit) -> None:
    """A task is the same whichever tasks were reset before it."""
    _must_have_index(kit)
    forwards = {task: kit.reset(task) for task in kit.tasks}
    for task in reversed(kit.tasks):
        _must_be_equal(f"task {task} after others", forwards[task], kit.reset(task), "keep no state between resets")


def instances_agree(kit: Kit) -> None:
    """Instances made with the same arguments have the same tasks, also one made after another was closed."""
    _must_have_index(kit)
    if kit.make is None:
        raise Unreached("only an instance was given: give a factory")
    first = {task: kit.reset(task) for task in kit.tasks}
    for _ in range(2):
        other: Any = kit.call("making another instance", kit.make)
        for task in kit.tasks:
            pair = first[task], kit.reset(task, other)
            _must_be_equal(f"task {task} of two instances", *pair, "draw from seeds, not from the process or hash()")
        if hasattr(other, "close"):  # what its caches and workers remember goes with it
            kit.attempt("close()", other.close)


def ground_truth_is_not_shown(kit: Kit) -> None:
    """The gold answer of a task does not stand in its first observation (answers of 12 characters and more)."""
    telling = 0
    for task in kit.tasks:
        state = kit.reset(task)
        gold = (kit.gold(state) or "").strip()
        telling += len(gold) >= MIN_TELLING_CHARS
        if len(gold) >= MIN_TELLING_CHARS and any(gold in text for text in shown_texts(state.observation)):
            raise Doubtful(f"task {task} without its answer", f"{short(gold)} in it", "keep it in State.hidden alone")
    if not telling:
        raise Unreached(f"no gold answer of {MIN_TELLING_CHARS} characters or more is known")


def closing_twice_is_safe(kit: Kit) -> None:
    """`close` may be called twice."""
    if kit.make is None:
        raise Unreached("only an instance was given, which is not the checks' to close: give a factory")
    if not hasattr(kit.environment, "close"):
        raise Unreached("the environment has no close()")
    instance: Any = kit.call("making another instance", kit.make)
    for which in ("first", "second"):
        kit.call(f"the {which} close()", instance.close)


def _must_have_index(kit: Kit) -> None:
    if not kit.spec.supports_task_index:
        raise Unreached("spec.supports_task_index is False: every reset is an episode of its own")


def _must_be_equal(what: str, a: State, b: State, remedy: str) -> None:
    if (found := difference(a, b)) is not None:
        raise Broken(f"{what} to be equal", found, remedy)
