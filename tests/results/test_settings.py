from __future__ import annotations

from typing import Any

import pytest

from llenvs_fast.core.errors import JournalError, SettingsMismatchError
from llenvs_fast.results.settings import REDACTED, check_resumable, kept_settings
from tests.results.rows import SETTINGS


def test_every_changed_field_is_listed_with_both_values() -> None:
    current = SETTINGS | {"model": "other", "sampling_args": {"temperature": 0.0, "top_p": 0.9}}
    with pytest.raises(SettingsMismatchError) as error:
        check_resumable("runs/1", SETTINGS, current)
    for change in (
        'model: saved "owner/model", current "other"',
        "sampling_args.temperature: saved 0.7, current 0.0",
        r'sampling_args.stop: saved ["\n\n"], current absent',
        "sampling_args.top_p: saved absent, current 0.9",
    ):
        assert change in str(error.value)
    assert "env_id" not in str(error.value)


@pytest.mark.parametrize("n", [40, 41, 1000])
def test_the_number_of_examples_may_grow(n: int) -> None:
    check_resumable("runs/1", SETTINGS, SETTINGS | {"num_examples": n})


@pytest.mark.parametrize(
    "change", [{"num_examples": 39}, {"num_examples": None}, {"rollouts_per_example": 8}, {"rollouts_per_example": 3}]
)
def test_nothing_shrinks_and_samples_stay(change: dict[str, Any]) -> None:
    with pytest.raises(SettingsMismatchError, match=next(iter(change))):
        check_resumable("runs/1", SETTINGS, SETTINGS | change)


def test_the_same_number_in_another_spelling_is_the_same() -> None:
    check_resumable("runs/1", {"temperature": 1}, {"temperature": 1.0})


@pytest.mark.parametrize(
    "name",
    [
        *("api_key", "API-KEY", "openai_api_key", "apikey", "token", "hf_token", "access_token", "password"),
        *("client_secret", "Authorization", "X-Api-Key", "credentials"),
    ],
)
def test_a_setting_named_like_a_secret_is_not_kept(name: str) -> None:
    assert kept_settings({"client": {name: "sk-test-CANARY123"}}) == {"client": {name: REDACTED}}


@pytest.mark.parametrize("name", ["api_key_var", "max_tokens", "eos_token", "token_ids", "secretary", "keys"])
def test_a_setting_that_only_sounds_like_a_secret_is_kept(name: str) -> None:
    assert kept_settings({name: "value"}) == {name: "value"}


def test_headers_are_judged_by_their_name() -> None:
    kept = kept_settings({"header": ["Authorization: Bearer CANARY123", "X-Team: blue"]})
    assert kept == {"header": [f"Authorization: {REDACTED}", "X-Team: blue"]}


def test_a_known_secret_is_replaced_wherever_it_stands_but_not_a_placeholder() -> None:
    kept = kept_settings({"url": "http://h/?k=CANARY123", "note": "EMPTY"}, secrets=("CANARY123", "EMPTY"))
    assert kept == {"url": f"http://h/?k={REDACTED}", "note": "EMPTY"}


def test_a_setting_that_json_cannot_hold_is_refused() -> None:
    with pytest.raises(JournalError, match=r"sampling_args\.temperature"):
        kept_settings({"sampling_args": {"temperature": float("nan")}})
