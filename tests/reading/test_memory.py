from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legible_core.memory import ByteCache


def test_the_least_recently_used_goes_first():
    cache: ByteCache[str, int] = ByteCache(30)
    for key in "abc":
        cache.put(key, ord(key), 10)
    assert cache.get("a") == ord("a")
    cache.put("d", ord("d"), 10)
    assert "b" not in cache
    assert all(key in cache for key in "acd")
    assert cache.used == 30


def test_what_is_too_large_is_not_kept_and_drives_nothing_out():
    cache: ByteCache[str, int] = ByteCache(30)
    cache.put("a", 1, 30)
    cache.put("b", 2, 31)
    assert cache.get("a") == 1
    assert cache.get("b") is None
    cache.put("a", 3, 31)
    assert cache.get("a") is None
    assert cache.used == 0


def test_made_once_while_it_is_kept():
    cache: ByteCache[str, list[int]] = ByteCache(8)
    made = []

    def make() -> list[int]:
        made.append(1)
        return [1]

    assert cache.get_or_make("a", make, len) is cache.get_or_make("a", make, len)
    cache.drop("a")
    cache.drop("a")
    cache.get_or_make("a", make, len)
    cache.clear()
    assert len(cache) == cache.used == 0
    assert len(made) == 2


def test_a_negative_limit_is_refused():
    with pytest.raises(ValueError, match="negative"):
        ByteCache(-1)


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 40))), st.integers(0, 100))
def test_never_over_its_limit_and_always_its_books_right(steps, limit):
    cache: ByteCache[str, int] = ByteCache(limit)
    sizes: dict[str, int] = {}
    for key, size in steps:
        cache.put(key, size, size)
        sizes[key] = size
        assert cache.used <= limit
        assert cache.used == sum(sizes[k] for k in sizes if k in cache)
        assert (key in cache) == (size <= limit)
