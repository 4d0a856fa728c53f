from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from llenvs_fast.inference.backends.scripted_tokens import ByteTokenizer
from llenvs_fast.inference.stopping import StopMatch, StopWatch, find_stop

decode = ByteTokenizer().decode


def test_the_match_that_is_complete_first_wins_and_the_longer_of_two():
    assert find_stop("abcdef", ["ef", "bcd", "cd"]) == StopMatch(1, "bcd")
    assert find_stop("abcdef", ["abcdef", "c"]) == StopMatch(2, "c")


def test_no_stop_string_and_an_empty_one_stop_nothing():
    assert find_stop("abc", []) is None
    assert find_stop("abc", ["", "x"]) is None


texts = st.text("ab é🙂\n", max_size=60)


@given(texts, st.lists(st.text("ab é🙂\n", min_size=1, max_size=4), max_size=3))
def test_watching_token_by_token_finds_what_a_search_of_the_whole_text_finds(text: str, stops: list[str]):
    ids = list(text.encode())
    watch = StopWatch(stops, decode)
    found = next((m for n in range(1, len(ids) + 1) if (m := watch.completed(ids[:n]))), None)
    assert found == find_stop(text, stops)
