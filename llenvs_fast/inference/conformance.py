"""The contract of a backend as a set of checks that any backend can be put through.

    from llenvs_fast.inference.conformance import check_backend

    def test_my_backend_keeps_the_contract():
        check_backend(lambda: MyBackend(...))

Each check states one rule in its docstring, which is the message where a backend breaks it. A rule that a backend
leaves no way to see, such as seeds where it has none, is reported as unreached, with the reason: never as kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from llenvs_fast.core.errors import BackendProtocolError, EmptyPromptError, PromptTooLongError, RecoverableInputError
from llenvs_fast.inference.backend import ModelBackend, unwrap
from llenvs_fast.inference.protocol import (
    ChatMessage,
    Finished,
    GenerationRequest,
    GenerationResult,
    SamplingParams,
    StopReason,
)

REQUESTS = 8


class Unreached(Exception):  # noqa: N818 - the answer of a check, not a fault
    """This backend shows nothing of what the check looks at."""


@dataclass(frozen=True)
class Conformance:
    """The checks by how they went: broken rules with what was seen, unreached ones with the reason."""

    kept: list[str] = field(default_factory=list)
    broken: dict[str, str] = field(default_factory=dict)
    unreached: dict[str, str] = field(default_factory=dict)


def check_backend(
    make_backend: Callable[[], ModelBackend],
    params: SamplingParams | None = None,
    *,
    close: bool = True,
    patience_s: float = 60.0,
) -> Conformance:
    """Make one backend, put it through all checks, close it. Raises AssertionError that lists the broken rules.

    `params` are how to sample where a check does not care; keep `max_tokens` small. `close=False` leaves a backend that
    is shared with others open. A backend that has not ended anything for `patience_s` has lost it.
    """
    kit = Kit(make_backend(), params or SamplingParams(max_tokens=12), patience_s)
    conformance = Conformance()
    for check in CHECKS if close else CHECKS[:-1]:
        try:
            check(kit)
            conformance.kept.append(check.__name__)
        except Unreached as reason:
            conformance.unreached[check.__name__] = str(reason)
        except Exception as error:
            conformance.broken[check.__name__] = f"{(check.__doc__ or '').strip()} {type(error).__name__}: {error}"
            if not kit.is_clear():
                break  # what comes next would only be about what is left
    if conformance.broken:
        listed = "\n".join(f"- {name}: {what}" for name, what in conformance.broken.items())
        raise AssertionError(f"{type(kit.backend).__name__} breaks the contract of backends:\n{listed}")
    return conformance


class Kit:
    """A backend under examination, and what the checks need to talk to it."""

    def __init__(self, backend: ModelBackend, params: SamplingParams, patience_s: float) -> None:
        self.backend = backend
        self.params = params
        self.patience_s = patience_s
        self._keys: Iterator[int] = iter(range(1 << 30))

    def conversation(self, i: int) -> tuple[ChatMessage, ...]:
        """Conversations of different lengths that ask for different things."""
        return (ChatMessage("user", f"Repeat the number {i} after me: " + " ".join([str(i)] * (i + 1))),)

    def request(self, i: int = 0, **fields: object) -> GenerationRequest:
        messages = self.conversation(i)
        ids = self.backend.renderer.render(messages) if self.backend.renderer is not None else None
        request = GenerationRequest(("conformance", next(self._keys)), self.params, ids, messages)
        return replace(request, **fields)  # type: ignore[arg-type]

    def requests(self, count: int = REQUESTS, **fields: object) -> list[GenerationRequest]:
        return [self.request(i, **fields) for i in range(count)]

    def run(self, requests: Sequence[GenerationRequest]) -> list[GenerationResult]:
        self.backend.submit(requests)
        ended = self.collect([r.key for r in requests])
        return [unwrap(ended[r.key]) for r in requests]

    def collect(self, keys: Sequence[Hashable]) -> dict[Hashable, Finished]:
        """Poll until all of these have ended, each of them once and nothing else."""
        ended: dict[Hashable, Finished] = {}
        last_s = time.monotonic()
        while len(ended) < len(keys):
            for finished in self.backend.poll(timeout_s=1.0):
                _must(finished.key in keys, f"request {finished.key!r} ended, which was not in flight")
                _must(finished.key not in ended, f"request {finished.key!r} ended twice")
                both = (finished.result is None) == (finished.error is None)
                _must(not both, f"request {finished.key!r} ended with {finished.result} and {finished.error!r}")
                ended[finished.key] = finished
                last_s = time.monotonic()
            waited_s = time.monotonic() - last_s
            lost = len(ended) < len(keys) and (self.backend.in_flight == 0 or waited_s > self.patience_s)
            _must(not lost, f"{len(keys) - len(ended)} of {len(keys)} requests never ended")
        _must(self.backend.in_flight == 0, f"all requests ended, and in_flight is {self.backend.in_flight}")
        return ended

    def is_clear(self) -> bool:
        """Poll what a failed check left behind out of the way of the next one; False where that can't be done."""
        deadline = time.monotonic() + self.patience_s
        try:
            while self.backend.in_flight and time.monotonic() < deadline:
                self.backend.poll(timeout_s=1.0)
            return not self.backend.in_flight
        except Exception:
            return False


def _must(holds: bool, otherwise: str) -> None:
    """An assertion that `python -O` leaves in."""
    if not holds:
        raise AssertionError(otherwise)


# the rules ------------------------------------------------------------------------------------------------------------


def every_request_ends_once(kit: Kit) -> None:
    """Every request ends exactly once, with its key, and none other does."""
    kit.run(kit.requests())
    _must(kit.backend.poll() == [], "a poll with nothing in flight returned something")


def results_belong_to_their_requests(kit: Kit) -> None:
    """A result answers the request of its key, whatever was submitted with it and in whichever order."""
    alone = [kit.run([kit.request(i)])[0] for i in range(REQUESTS)]
    requests = kit.requests()
    for order in (requests, requests[::-1]):
        order = [replace(r, key=("again", r.key)) for r in order]
        for start in range(0, REQUESTS, 3):
            kit.backend.submit(order[start : start + 3])
        ended = kit.collect([r.key for r in order])
        together = [unwrap(ended["again", r.key]) for r in requests]
        for request, result, expected in zip(requests, together, alone, strict=True):
            seen, right = result.prompt_tokens, expected.prompt_tokens
            _must(seen == right, f"a prompt of {right} tokens got the result of one with {seen}")
            right_ids = request.prompt_ids is None or result.prompt_ids == request.prompt_ids
            _must(right_ids, "the result holds the prompt_ids of another request")
        same = sum(a.text == b.text for a, b in zip(alone, together, strict=True))  # numerics may change a few
        greedy = kit.params.temperature == 0
        _must(not greedy or 2 * same > REQUESTS, f"{REQUESTS - same} of {REQUESTS} texts differ from those made alone")


def a_key_in_flight_is_refused(kit: Kit) -> None:
    """A second request with a key that is in flight raises BackendProtocolError, and costs the first one nothing."""
    first = kit.request()
    kit.backend.submit([first])
    try:
        kit.backend.submit([kit.request(1, key=first.key)])
    except BackendProtocolError:
        unwrap(kit.collect([first.key])[first.key])
    else:
        raise AssertionError("it was taken")


def a_key_is_free_again_after_its_end(kit: Kit) -> None:
    """A key may be used again once its request has ended."""
    request = kit.request()
    _must(len(kit.run([request]) + kit.run([request])) == 2, "one of two ends is missing")


def aborted_requests_end_once(kit: Kit) -> None:
    """An aborted request ends once, with an error or with the result it had; unknown keys are no matter."""
    requests = kit.requests(params=replace(kit.params, max_tokens=64))
    kit.backend.submit(requests)
    kit.backend.abort([requests[0].key])
    early = kit.backend.poll()
    kit.backend.abort([r.key for r in requests[1:]] + [("conformance", "never submitted")])
    keys = [r.key for r in requests]
    seen = [f.key for f in early]
    _must(len(set(seen)) == len(seen), f"ended twice before the abort: {seen}")
    _must(set(seen) <= set(keys), f"ended, and was not in flight: {set(seen) - set(keys)}")
    kit.collect([key for key in keys if key not in seen])


def nothing_gives_nothing(kit: Kit) -> None:
    """No requests, no results."""
    kit.backend.submit([])
    kit.backend.abort([])
    _must(kit.backend.poll() == [], "a poll after an empty submit returned something")
    _must(kit.backend.generate_chat_batch([], kit.params) == [], "an empty batch returned something")


def a_bad_prompt_costs_only_itself(kit: Kit) -> None:
    """An empty prompt, one that fills the context or one with an unknown token is an error of its own alone."""
    if kit.backend.renderer is None:
        raise Unreached("the backend reads messages, and what is a bad one is its provider's business")
    good = kit.request()
    ids = tuple(good.prompt_ids or ())
    bad: list[tuple[GenerationRequest, type[Exception]]] = [
        (replace(kit.request(), prompt_ids=()), EmptyPromptError),
        (replace(kit.request(), prompt_ids=(*ids, -1)), RecoverableInputError),
    ]
    requests = [good]
    if (context := kit.backend.capabilities.max_context_length) is not None:
        filling = [(ids * context)[:n] for n in (context - 1, context, context + 1)]
        requests.append(replace(kit.request(), prompt_ids=filling[0]))
        bad += [(replace(kit.request(), prompt_ids=long), PromptTooLongError) for long in filling[1:]]
    requests[1:1] = [request for request, _ in bad]
    kit.backend.submit(requests)
    ended = kit.collect([r.key for r in requests])
    for request, error in bad:
        got = ended[request.key].error
        shown = "is no" if got is None else f"ended with {type(got).__name__}, not"
        _must(isinstance(got, error), f"a prompt of {len(request.prompt_ids or ())} tokens {shown} {error.__name__}")
    unwrap(ended[good.key])
    if context is not None:
        last = unwrap(ended[requests[-1].key])
        _must(last.completion_tokens == 1, f"room for one token, and {last.completion_tokens} came")


def a_batch_keeps_its_order(kit: Kit) -> None:
    """`generate_chat_batch` returns one result to each conversation, in order."""
    batch = kit.backend.generate_chat_batch([kit.conversation(i) for i in range(REQUESTS)], kit.params)
    alone = [kit.backend.generate_chat(kit.conversation(i), kit.params) for i in range(REQUESTS)]
    counts = [[r.prompt_tokens for r in results] for results in (batch, alone)]
    _must(counts[0] == counts[1], f"prompt tokens of the batch {counts[0]}, of the same alone {counts[1]}")


def figures_add_up(kit: Kit) -> None:
    """The figures grow by what the results say."""
    before = kit.backend.figures.copy()
    results = kit.run(kit.requests())
    grown = kit.backend.figures.since(before)
    counted = (grown.requests, grown.prompt_tokens, grown.completion_tokens)
    summed = (len(results), sum(r.prompt_tokens for r in results), sum(r.completion_tokens for r in results))
    _must(counted == summed, f"requests, prompt and completion tokens: figures {counted}, results {summed}")


def a_turn_is_no_longer_than_max_tokens(kit: Kit) -> None:
    """No reply has more than `max_tokens` tokens; one that was cut says MAX_TOKENS and has just as many."""
    for limit in (1, 2, 5):
        by_params = kit.requests(params=replace(kit.params, max_tokens=limit))
        by_request = kit.requests(max_tokens=limit)
        for result in kit.run([*by_params, *by_request]):
            _must(result.completion_tokens <= limit, f"{result.completion_tokens} tokens with max_tokens={limit}")
            cut = result.finish_reason is StopReason.MAX_TOKENS
            _must(not cut or result.completion_tokens == limit, f"cut after {result.completion_tokens}, not {limit}")


def text_and_ids_agree(kit: Kit) -> None:
    """`text` is what the sampled ids say, and the counts are the numbers of ids."""
    renderer = kit.backend.renderer
    if renderer is None:
        raise Unreached("the backend deals in text")
    for result in kit.run(kit.requests()):
        if result.token_ids is None or result.prompt_ids is None:
            raise AssertionError("token_ids or prompt_ids are missing")
        counts = (result.prompt_tokens, result.completion_tokens)
        numbers = (len(result.prompt_ids), len(result.token_ids))
        _must(counts == numbers, f"prompt and completion tokens are counted as {counts}, and the ids are {numbers}")
        shown = renderer.decode(result.token_ids)
        _must(shown == result.text, f"the ids say {shown!r}, and the text is {result.text!r}")
        eos = {*renderer.eos_token_ids, *renderer.end_of_turn_ids}
        ended = bool(result.token_ids) and result.token_ids[-1] in eos
        said = result.finish_reason is StopReason.END_OF_TEXT
        _must(ended == said or not eos, f"{result.finish_reason.name}, and the last id is {result.token_ids[-1:]}")


def a_stop_string_cuts_the_text(kit: Kit) -> None:
    """The text ends before a stop string, even one spread over tokens, and the reason and the string are told."""
    (free,) = kit.run([kit.request()])
    text = free.text or ""
    if len(text) < 4:
        raise Unreached(f"the reply {text!r} is too short to stop in")
    stop = text[len(text) // 2 - 1 : len(text) // 2 + 1]
    (result,) = kit.run([kit.request(params=replace(kit.params, stop_sequences=(stop,)))])
    _must(stop not in (result.text or ""), f"the stop string {stop!r} is in {result.text!r}")
    if result.finish_reason is StopReason.STOP_SEQUENCE:
        _must(result.stop_match == stop, f"stopped at {stop!r}, and stop_match is {result.stop_match!r}")
    elif text.startswith(result.text or ""):
        raise AssertionError(f"the text was cut at {stop!r}, and the reason is {result.finish_reason.name}")


def logprobs_are_those_of_the_sampled_tokens(kit: Kit) -> None:
    """Where logprobs are asked for, each sampled token has one, and it is none of a probability over 1."""
    if not kit.backend.capabilities.supports_logprobs:
        raise Unreached("the backend has no logprobs")
    for result in kit.run(kit.requests(3, params=replace(kit.params, logprobs=True, num_logprobs=2))):
        entries = result.token_logprobs or ()
        _must(len(entries) == result.completion_tokens, f"{len(entries)} logprobs, {result.completion_tokens} tokens")
        same = result.token_ids is None or tuple(e.token_id for e in entries) == result.token_ids
        _must(same, "the logprobs are those of other tokens than token_ids")
        _must(all(e.logprob <= 1e-4 for e in entries), "a log-probability is over 0")


def a_seed_decides_the_draw(kit: Kit) -> None:
    """At temperature 1 the same seed gives the same text, in any company, and different seeds give different ones."""
    if not kit.backend.capabilities.supports_seed:
        raise Unreached("the backend has no seeds")
    params = replace(kit.params, temperature=1.0)
    seeded = [kit.request(0, params=params, seed=seed) for seed in range(REQUESTS)]
    first = [r.text for r in kit.run(seeded)]
    again = [r.text for r in kit.run([*kit.requests(3, params=params, seed=99), *seeded[::-1]])][:2:-1]
    same = sum(a == b for a, b in zip(first, again, strict=True))  # numerics may change a few
    _must(2 * same > REQUESTS, f"{REQUESTS - same} of {REQUESTS} texts changed with the company")
    _must(len(set(first)) > 1, "all seeds gave the same text")


def closing_twice_is_safe(kit: Kit) -> None:
    """A backend is a context manager, and may be closed twice."""
    with kit.backend as entered:
        _must(entered is kit.backend, "`with` gives something else than the backend")
    kit.backend.close()


CHECKS: tuple[Callable[[Kit], None], ...] = (
    every_request_ends_once,
    results_belong_to_their_requests,
    a_key_in_flight_is_refused,
    a_key_is_free_again_after_its_end,
    aborted_requests_end_once,
    nothing_gives_nothing,
    a_bad_prompt_costs_only_itself,
    a_batch_keeps_its_order,
    figures_add_up,
    a_turn_is_no_longer_than_max_tokens,
    text_and_ids_agree,
    a_stop_string_cuts_the_text,
    logprobs_are_those_of_the_sampled_tokens,
    a_seed_decides_the_draw,
    closing_twice_is_safe,
)
