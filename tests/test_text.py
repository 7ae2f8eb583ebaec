"""Bounding and scrubbing, on any text."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from server.text import bound, scrub_paths

# st.text() leaves surrogates out by default; these are what a hostile kernel prints.
ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=400)
MARKER = re.compile(r"\n\[\.\.\. (\d+) characters cut \.\.\.\]\n")


@given(ANY_TEXT, st.integers(min_value=-5, max_value=500))
def test_bound_keeps_its_promises(text: str, limit: int) -> None:
    short = bound(text, limit)
    assert len(short) <= max(limit, 0)
    assert "\x00" not in short
    short.encode()
    assert bound(short, limit) == short


@given(st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\x00"), max_size=200))
def test_short_clean_text_is_untouched(text: str) -> None:
    assert bound(text, 200) == text


@given(st.text("abc", min_size=101, max_size=3000), st.integers(min_value=60, max_value=100))
def test_the_marker_counts_what_was_cut(text: str, limit: int) -> None:
    short = bound(text, limit)
    found = MARKER.search(short)
    assert found is not None
    head, tail = short[: found.start()], short[found.end() :]
    assert text.startswith(head) and text.endswith(tail)
    assert len(head) + int(found[1]) + len(tail) == len(text)
    assert 0 <= len(head) - len(tail) <= 1


def test_head_and_tail_of_a_compiler_log_survive() -> None:
    log = "first error" + "x" * 100_000 + "final traceback"
    short = bound(log)
    assert short.startswith("first error") and short.endswith("final traceback") and len(short) <= 4000


def test_surrogates_and_nul_become_replacement_characters() -> None:
    assert bound("a\ud800b\x00c\udfff") == "a\ufffdb\ufffdc\ufffd"


def test_longest_path_wins_and_the_rest_stays() -> None:
    paths = {"/srv/work": "<work>", "/srv/work/job7": "<job>", "": "<never>"}
    text = 'File "/srv/work/job7/k.py" includes /srv/work/lib.h and /srv/other'
    assert scrub_paths(text, paths) == 'File "<job>/k.py" includes <work>/lib.h and /srv/other'


def test_paths_are_not_patterns_and_placeholders_are_not_searched() -> None:
    assert scrub_paths("/a.b /axb", {"/a.b": "<x>"}) == "<x> /axb"
    assert scrub_paths("/a", {"/a": "/b", "/b": "/a"}) == "/b"
    assert scrub_paths("/a", {}) == "/a"


@given(st.lists(st.sampled_from(["/srv/p", "/srv/p/q", "text", "/"]), max_size=20))
def test_no_path_survives(parts: list[str]) -> None:
    clean = scrub_paths("".join(parts), {"/srv/p": "<p>", "/srv/p/q": "<q>"})
    assert "/srv/p" not in clean
