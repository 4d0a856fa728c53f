"""The rules of an environment in motion: what a step gives, how episodes end, and whether a step can be taken again."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy

from llenvs_fast.core.environment import StepResult
from llenvs_fast.core.state import Action, Observation, State
from llenvs_fast.environments.conformance_difference import difference
from llenvs_fast.environments.conformance_kit import (
    PLAIN,
    Broken,
    Doubtful,
    Kit,
    Unreached,
    comparable,
    label,
    reset_options,
    short,
    told,
)

MAX_WALK = 64
STEPS_A_THREAD = 12


def step_gives_a_result(kit: Kit) -> None:
    """`step` returns a StepResult whose next state is one step further in the same episode."""
    for action in kit.plain_actions():
        for task in kit.tasks:
            state = kit.reset(task)
            result = kit.step(state, action)
            if not isinstance(result, StepResult):
                raise Broken("a StepResult", short(result), "return a StepResult")
            after = result.next_state
            if not isinstance(after, State) or not isinstance(after.observation, Observation):
                raise Broken("a State with an Observation as next_state", short(after), "return a State")
            if not isinstance(result.info, dict):
                raise Broken("a dict as info", short(result.info), "return {} where there is nothing to say")
            seen = after.metadata.step, after.metadata.episode_id
            wanted = state.metadata.step + 1, state.metadata.episode_id
            if seen != wanted:
                raise Broken(f"step and episode_id {wanted}", short(seen), "carry the metadata on, with step + 1")


def flags_agree(kit: Kit) -> None:
    """`terminated` and the next state's `is_terminal` go together, and a terminal state is the end of its episode."""
    for action in kit.plain_actions():
        for result in kit.walk(kit.tasks[0], action, MAX_WALK):
            flags = {"terminated": result.terminated, "truncated": result.truncated}
            flags["is_terminal"] = result.next_state.metadata.is_terminal
            if not all(isinstance(flag, bool) for flag in flags.values()):
                raise Broken("flags that are bool", short(flags), "convert them: bool(flag)")
            cut = flags["truncated"] and not result.terminated  # where a state that was cut off stands is its own word
            if not cut and flags["terminated"] != flags["is_terminal"]:
                raise Broken("terminated and is_terminal alike", short(flags), "set is_terminal where it terminates")


def the_step_limit_is_kept(kit: Kit) -> None:
    """Episodes of one turn end with it, and no episode goes on after `spec.max_steps`."""
    if not kit.spec.is_multi_turn and not kit.walk(kit.tasks[0], PLAIN, 1)[-1].done:
        raise Broken("an end after one turn", "it goes on", "set is_multi_turn=True, or terminate")
    limit = kit.spec.max_steps
    if limit is None or limit > MAX_WALK:
        raise Unreached(f"spec.max_steps is {limit}: no limit that can be walked to")
    walk = kit.walk(kit.tasks[0], kit.opening or PLAIN, limit)
    if not walk[-1].done and not walk[-1].next_state.metadata.is_terminal:
        raise Doubtful(
            f"an end at step {limit}, as spec.max_steps says", "it goes on", "the runner enforces it; truncate there"
        )


def a_step_leaves_its_state_alone(kit: Kit) -> None:
    """`step` does not change the state that it is given."""
    kit.must_be_pure()
    for action in kit.plain_actions():
        state = kit.reset(kit.tasks[0])
        try:
            before = deepcopy(state)
        except Exception as error:
            raise Unreached(f"the state can't be copied: {told(error)}") from None
        if difference(before, state):
            raise Unreached("a copy of the state is not equal to it")
        kit.step(state, action)
        if (found := difference(before, state)) is not None:
            raise Broken("the state as it was before the step", found, "copy what changes: dataclasses.replace")


def a_step_can_be_taken_again(kit: Kit) -> None:
    """As `spec.pure_step` promises, the same state and action give the same result."""
    kit.must_be_pure()
    for action in kit.plain_actions():
        for task in kit.tasks:
            state = kit.reset(task)
            _must_be_equal(f"{label(action)} twice", kit.step(state, action), kit.step(state, action))


def an_earlier_state_can_be_stepped(kit: Kit) -> None:
    """As `spec.pure_step` promises, a state gives the same result after its episode and others have gone on."""
    kit.must_be_pure()
    for action in kit.plain_actions():
        first = kit.reset(kit.tasks[0])
        states, results = [first], [kit.step(first, action)]
        while len(states) < 4 and not results[-1].done:
            states.append(results[-1].next_state)
            results.append(kit.step(states[-1], action))
        kit.walk(kit.tasks[-1], action, 3)
        for state, result in zip(states, results, strict=True):
            _must_be_equal(f"step {state.metadata.step} after going on", result, kit.step(state, action))
    if kit.spec.is_multi_turn and kit.opening is None:
        raise Unreached("of the actions that were tried each ended the episode: only first steps were compared")


def threads_agree(kit: Kit) -> None:
    """As `spec.pure_step` promises, two threads that step at once get what one gets alone."""
    kit.must_be_pure()
    action = kit.plain_actions()[-1]
    states = [kit.reset(task) for task in (kit.tasks[0], kit.tasks[-1])]
    alone = [kit.step(state, action) for state in states]

    def stepped(state: State) -> list[StepResult]:
        return [kit.step(state, action) for _ in range(STEPS_A_THREAD)]

    with ThreadPoolExecutor(len(states)) as threads:
        together = list(threads.map(stepped, states))
    for result, again in zip(alone, together, strict=True):
        for one in again:
            _must_be_equal("a step beside another thread's", result, one)


def states_can_be_pickled(kit: Kit) -> None:
    """States survive pickle, so that they can go to other processes."""
    state = kit.reset(kit.tasks[0])
    try:
        again = pickle.loads(pickle.dumps(state))
    except Exception as error:
        raise Doubtful("a state that pickles", told(error), "keep plain data in State.hidden") from None
    if (found := difference(state, again)) is not None:
        raise Doubtful("the same state out of pickle", found, "keep plain data in State.hidden")


def reset_batches_agree(kit: Kit) -> None:
    """`reset_batch` gives what single resets give, in order; a bad index is an exception in its own slot."""
    if not hasattr(kit.environment, "reset_batch"):
        raise Unreached("the environment has no reset_batch")
    tasks = [*kit.tasks, *reversed(kit.tasks)]
    options = [reset_options(task) for task in tasks]
    bad = kit.length is not None and kit.spec.supports_task_index
    options[1:1] = [reset_options(-1)] if bad else []
    many = kit.call("reset_batch", kit.environment.reset_batch, options)
    _must_be_aligned("reset_batch", many, len(options))
    if bad and not isinstance(many.pop(1), Exception):
        raise Broken("an exception in the slot of task_index=-1", "a state", "check each index")
    for task, one in zip(tasks, many, strict=True):
        alone = kit.reset(task)
        state = one[0] if isinstance(one, tuple) else one
        if (found := difference(alone, state)) is not None and kit.spec.supports_task_index:
            raise Broken(f"task {task} of a batch as it is alone", found, "make both from the same code")
    _must_be_aligned("reset_batch", kit.call("reset_batch of nothing", kit.environment.reset_batch, []), 0)


def step_batches_agree(kit: Kit) -> None:
    """`step_batch` gives what single steps give, in order."""
    if not hasattr(kit.environment, "step_batch"):
        raise Unreached("the environment has no step_batch")
    kit.must_be_pure()
    actions = [*kit.plain_actions(), Action.from_text("")]
    pairs = [(kit.reset(task), action) for task in kit.tasks for action in actions]
    states, actions = [state for state, _ in pairs], [action for _, action in pairs]
    many = kit.call("step_batch", kit.environment.step_batch, states, actions)
    _must_be_aligned("step_batch", many, len(pairs))
    for state, action, one in zip(states, actions, many, strict=True):
        alone = kit.attempt(f"step with {label(action)}", kit.environment.step, state, action)
        if isinstance(alone, BaseException) or isinstance(one, BaseException):
            if type(alone) is not type(one):
                raise Broken(f"{label(action)} in a batch as alone", f"{short(alone)} and {short(one)}", "share code")
            continue
        _must_be_equal(f"{label(action)} in a batch and alone", alone, one)
    nothing = kit.call("step_batch of nothing", kit.environment.step_batch, [], [])
    _must_be_aligned("step_batch", nothing, 0)


def _must_be_aligned(method: str, values: object, count: int) -> None:
    if not isinstance(values, list) or len(values) != count:
        got = f"{len(values)} slots" if isinstance(values, list) else short(values)
        raise Broken(f"a list of {count} from {method} of {count}", got, "return one slot for each argument")


def _must_be_equal(what: str, a: StepResult, b: StepResult) -> None:
    if (found := difference(comparable(a), comparable(b))) is not None:
        raise Broken(f"{what} to give the same", found, "make step a function of state and action alone")
