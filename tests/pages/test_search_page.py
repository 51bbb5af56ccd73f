"""The search page and the layers' pages: what they list, their addresses, what is refused, and what they cost."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote_plus

import pytest
from page_samples import SLUG, Site, links, make_checkpoint, open_site, parsed, title
from sqlalchemy import event

from app.indexing import look
from app.names_index import NamesIndex
from app.pages.layers import PAGE
from app.pages.search import Asked, _whole
from app.search_query import parse_query
from app.urls import Urls
from benchmarks import synthetic
from legible_core.naming.names import Names
from legible_core.registry import Checkpoint
from legible_core.units import Unit, parse

LAYERS = synthetic.config_of(2, 84, 6, vocabulary=300)


@pytest.fixture(scope="module")
def searched(scanned: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A workbench whose names are indexed: the scanned checkpoint and a made-up one with 336 units a layer."""
    made = open_site(tmp_path_factory.mktemp("searched"), scanned)
    other = synthetic.make_checkpoint(tmp_path_factory.mktemp("made-up"), "made-up", LAYERS)
    made.services.store.add_checkpoint(other.slug, other.hash, str(other.path))
    alone(made)
    look(made.services.queue, NamesIndex(made.services.store.database), made.services.catalogue.checkpoints())
    made.work()
    yield made
    made.services.close()


def alone(site: Site) -> None:
    """Without the shipped checkpoints, which would take their time to be indexed."""
    site.services.catalogue._roots = ()
    site.services.catalogue.refresh()


def ask(site: Site, q: str, **query: object) -> dict[str, Any]:
    answer = site.client.get("/search.json", params={"q": q, **query})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_a_token_on_the_promote_side_lists_units_best_rank_first(searched: Site) -> None:
    names = Names.load(searched.checkpoint.path)
    assert names is not None
    expected = {
        (unit.id, rank): token
        for layer in range(2)
        for unit in names.units(layer)
        for rank, token in enumerate(unit.promotes, 1)
        if token.display == "·worst"
    }
    rows: list[dict[str, Any]] = []
    for number in (1, 2, 3):
        for group in ask(searched, 'promotes:" worst" in:units model:tiny', page=number)["groups"]:
            rows += [row for row in group["rows"] if not row["rare"]]
    assert {(row["id"], row["rank"]) for row in rows} == set(expected)
    assert [row["rank"] for row in rows] == sorted(row["rank"] for row in rows)
    for row in rows:
        assert row["weight"] == pytest.approx(expected[row["id"], row["rank"]].weight)
    page = searched.client.get("/search", params={"q": "' worst'", "side": "promote"})
    assert page.status_code == 200
    assert "Promote “·worst”" in "".join(parsed(page.text).text)
    assert rows[0]["href"] in links(page.text)


def test_a_bare_word_is_looked_for_in_labels_and_tokens(searched: Site) -> None:
    ready = NamesIndex(searched.services.store.database).ready()
    labels = ready[searched.services.catalogue.get("made-up").hash].labels
    label = next(label for label, counts in labels.items() if min(counts) > 0)
    found = ask(searched, f"{label} model:made-up")
    assert [group["name"] for group in found["groups"]] == ["label-promote", "label-detect"]
    assert all(len(group["rows"]) == 10 for group in found["groups"] if group["more"])
    found = ask(searched, "worst")
    assert {"promote", "detect"} <= {group["name"] for group in found["groups"]}
    for group in found["groups"]:
        if group["all"]:
            whole = searched.client.get(group["all"])
            assert whole.status_code == 200
            assert whole.text.count("<tr>") > len(group["rows"])
    assert [label["name"] for label in ask(searched, "valence")["labels"]]


def test_names_of_operands_that_are_mostly_on_say_so(searched: Site) -> None:
    names = Names.load(searched.checkpoint.path)
    assert names is not None
    unit = next(u for u in names.units(0) if any(names.operand(parse(o)).mostly_on for o in u.operands))
    for id, given in ((unit.id, unit.operands), *((o, (o,)) for o in unit.operands)):
        said = {names.operand(parse(o)).mostly_on for o in given} - {None}
        (row,) = [row for group in ask(searched, f"{id} model:tiny")["groups"] for row in group["rows"]]
        assert {piece["note"] for piece in row["formula"]} - {None} == said


def test_pages_follow_each_other_without_gap_or_repetition(searched: Site) -> None:
    address: str | None = "/search?q=" + quote("kind:intersection model:made-up")
    seen: list[str] = []
    while address is not None:
        page = searched.client.get(address.replace("/search?", "/search.json?")).json()
        seen += [row["id"] for group in page["groups"] for row in group["rows"]]
        address = page["after"]
    ids = {name for name in seen if ".u" in name}
    assert len(seen) == len(set(seen))
    assert len(ids) == 2 * LAYERS.feed_forward.n_pairs


def test_ids_lead_to_their_pages(searched: Site) -> None:
    for q, href in (
        ("L1.u7", f"/models/{SLUG}/units/L1.u7"), ("l0.h2", f"/models/{SLUG}/heads/L0.h2"),
        ("L0.h1.c3", f"/models/{SLUG}/heads/L0.h1"), ("L1.p2.B", f"/models/{SLUG}/units/L1.u2"),
    ):  # fmt: skip
        rows = [row for group in ask(searched, q)["groups"] for row in group["rows"] if row["slug"] == SLUG]
        assert [row["href"] for row in rows] == [href]
        assert searched.client.get(href).status_code == 200
    assert ask(searched, "L77.u1")["groups"] == []


@pytest.mark.parametrize(
    ("q", "status", "said"),
    [
        ("x" * 10_000, 413, "The search is 10,000 characters long; the limit is 1,000 characters."),
        ("colour:red", 422, "There is no filter 'colour'; the filters are promotes, detects, label, model"),
        ("kind:big", 422, "The filter kind cannot be 'big'; it is intersection, difference"),
        ("class:LOUD", 422, "The filter class cannot be 'LOUD'; it is "),
        ("half-life:soon ∃ *", 422, "<3, >32 or 1.5-3, in tokens"),
        ("negation model:nobody", 404, "There is no checkpoint 'nobody'; there are: "),
        ("A ∩", 422, "incomplete"),
        ("* → *", 422, "says nothing"),
        ("layer:3", 422, "alone is no search"),
    ],
)  # fmt: skip
def test_a_wrong_search_is_one_sentence_beside_its_box(searched: Site, q: str, status: int, said: str) -> None:
    page = searched.client.get("/search", params={"q": q})
    assert page.status_code == status
    assert said in "".join(parsed(page.text).text)
    assert 'id="search"' in page.text
    assert len(page.content) < 40_000
    answer = searched.client.get("/search.json", params={"q": q})
    assert answer.status_code == status
    assert said.partition("; ")[0] in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "q", ["%", "_", "'; DROP TABLE jobs; --", "w?rst", "[a-z]", "\x00\x1b", "‮שלום", "<script>alert(1)</script>", "\\"]
)
def test_hostile_text_finds_nothing_and_stays_text(searched: Site, q: str) -> None:
    page = searched.client.get("/search", params={"q": q})
    assert page.status_code in (200, 422)
    assert "<script>alert" not in page.text
    assert all(char.isprintable() for char in title(page.text))
    assert searched.client.get("/jobs").status_code == 200


def test_unknown_filters_of_a_page_are_named_with_the_valid_ones(searched: Site) -> None:
    for path in (f"/models/{SLUG}/layers/0", "/search"):
        for twin in ("", ".json"):
            answer = searched.client.get(f"{path}{twin}", params={"colour": "red"})
            assert answer.status_code == 422
            assert "no filter" in answer.text
            assert "colour" in answer.text
    assert searched.client.get(f"/models/{SLUG}/layers/0?embed=units").status_code == 200


def test_a_page_past_the_end_is_not_taken_for_nothing_found(searched: Site) -> None:
    said = ask(searched, "∃ *", page=50)["said"]
    assert "page 50" in said
    assert "page" not in ask(searched, "xyzzy never written")["said"]


def test_the_whole_of_a_group_of_words_with_a_quote_is_an_address_that_works(searched: Site) -> None:
    assert "'5\" nail'" in unquote_plus(_whole(Urls(""), Asked(), parse_query('5" nail'), "promote", "x"))


def test_what_is_not_indexed_yet_says_so(scanned: Checkpoint, tmp_path: Path) -> None:
    own = open_site(tmp_path / "data", scanned)
    alone(own)
    try:
        page = own.client.get("/search", params={"q": "worst"}).text
        assert f"{SLUG} is being indexed and is not searched yet." in " ".join("".join(parsed(page).text).split())
        assert 'hx-trigger="every' in page
        own.work()
        page = own.client.get("/search", params={"q": "worst"}).text
        assert "is being indexed" not in page
        assert f"/models/{SLUG}/" in "".join(links(page))
    finally:
        own.services.close()


def test_a_checkpoint_without_names_is_listed_as_such(tmp_path: Path) -> None:
    bare = open_site(tmp_path / "data", make_checkpoint(tmp_path / "models", scan=False))
    alone(bare)
    try:
        found = ask(bare, "L0.u3")
        assert SLUG in found["unnamed"]
        assert f"/models/{SLUG}/units/L0.u3" in [row["href"] for group in found["groups"] for row in group["rows"]]
        assert bare.client.get(f"/models/{SLUG}/layers/0?sort=label&kind=gelu").status_code == 200
    finally:
        bare.services.close()


# ---- layers ----------------------------------------------------------------------------------------------------------


def layer(site: Site, **query: object) -> dict[str, Any]:
    found: dict[str, Any] = site.client.get("/models/made-up/layers/1.json", params=query).json()  # type: ignore[arg-type]
    return found


def test_a_layer_comes_in_pages(searched: Site) -> None:
    total = LAYERS.feed_forward.d_ff
    seen = []
    for number in range(1, -(-total // PAGE) + 1):
        page = layer(searched, sort="on", page=number)
        seen += page["rows"]
        assert (page["first"], page["passing"], page["pages"]) == ((number - 1) * PAGE + 1, total, -(-total // PAGE))
    assert sorted(row["index"] for row in seen) == list(range(total))
    shares = [row["on"] for row in seen if row["on"] is not None]
    assert shares == sorted(shares, reverse=True)
    assert layer(searched, page=9999)["page"] == -(-total // PAGE), "a page past the end is the last one"
    html = searched.client.get("/models/made-up/layers/1?page=2&sort=on").text
    following = next(link for link in links(html) if "page=3" in link)
    assert "sort=on" in following
    assert 'rel="next"' in html


def test_layer_filters_are_what_the_names_say(searched: Site) -> None:
    names = Names.load(searched.services.catalogue.get("made-up").path)
    assert names is not None
    units = [names.component(Unit(1, unit)) for unit in range(LAYERS.feed_forward.d_ff)]

    def passing(**query: object) -> set[str]:
        rows: list[dict[str, Any]] = []
        while True:
            page = layer(searched, page=len(rows) // PAGE + 1, **query)
            rows += page["rows"]
            if len(rows) >= page["passing"]:
                return {row["id"] for row in rows}

    short = {unit.id for unit in units if unit.half_life is not None and 1 <= unit.half_life <= 3}
    assert passing(half_min=1, half_max=3) == short
    label = next(unit.label.text for unit in units if unit.label is not None and unit.label.kind == "class")
    labelled = {
        unit.id
        for unit in units
        if label in [found.text for found in (unit.label, *unit.operand_labels) if found and found.kind != "tokens"]
    }
    assert passing(label=label) == labelled
    assert passing(label="%") == set()
    assert passing(q="·WORST") == {unit.id for unit in units if "·worst" in unit.formula}
    assert passing(kind="difference", **{"class": "SELECTIVE"}) == {
        unit.id for unit in units if unit.kind == "difference" and str(unit.cls) == "SELECTIVE"
    }
    page = searched.client.get("/models/made-up/layers/1?kind=difference&label=negation&half_max=3").text
    assert "no filter" in page
    for bad in ("half_min=-1", "half_min=soon", "page=0", f"q={'x' * 81}"):
        assert searched.client.get(f"/models/made-up/layers/1?{bad}").status_code == 422


# ---- cost ------------------------------------------------------------------------------------------------------------


@contextmanager
def counting(site: Site) -> Iterator[list[str]]:
    """The statements that run meanwhile."""
    engine = site.services.store.database.engine
    seen: list[str] = []

    def note(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        seen.append(statement)

    event.listen(engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        event.remove(engine, "before_cursor_execute", note)


def cost(site: Site, address: str) -> int:
    """How many statements a page takes that is not kept."""
    site.client.app.state.kept_pages.clear()  # type: ignore[attr-defined]
    site.services.catalogue.entries()
    with counting(site) as seen:
        assert site.client.get(address).status_code == 200
    return sum(not statement.startswith(("BEGIN", "COMMIT")) for statement in seen)


def test_a_page_takes_as_many_queries_however_much_it_shows(searched: Site) -> None:
    for few, many in (
        (f"/models/{SLUG}/layers/0", "/models/made-up/layers/0"),
        ("/search?q=L0.u1", "/search?q=L0.u2"),
        ("/search?q=xyzzy", "/search?q=worst"),
        ("/search?q=kind:existential+model:tiny", "/search?q=kind:intersection"),
        (f"/models/{SLUG}/units/L0.u1", "/models/made-up/units/L0.u1"),
        (f"/models/{SLUG}/heads/L0.h1", "/models/made-up/heads/L0.h1"),
        (f"/models/{SLUG}", "/models/made-up"),
    ):
        for address in (few, many):
            searched.client.get(address)
        searched.work()  # what a page asks a worker for is there
        assert cost(searched, few) == cost(searched, many) <= 12, (few, many)


def test_the_jobs_page_takes_as_many_queries_for_one_job_as_for_thirty(site: Site) -> None:
    site.services.queue.submit("read", "k0", {"slug": SLUG})
    one = cost(site, "/jobs")
    for number in range(30):
        site.services.queue.submit("read", f"k{number}", {"slug": SLUG})
    assert cost(site, "/jobs") == one


def test_a_page_of_the_largest_layer_is_small(searched: Site) -> None:
    for address in ("/models/made-up/layers/0", "/search?q=worst", "/search?q=kind:intersection"):
        assert len(gzip.compress(searched.client.get(address).content)) < 50_000


def test_a_kept_page_is_made_again_when_its_names_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.pages.kept.TRUST_SECONDS", 0.0)
    own = synthetic.make_checkpoint(tmp_path, SLUG, LAYERS)
    site = open_site(tmp_path / "data", own)
    try:
        first = site.client.get(f"/models/{SLUG}/layers/0").text
        with counting(site) as seen:
            assert site.client.get(f"/models/{SLUG}/layers/0").text == first
        assert len(seen) <= 4
        synthetic.write_names(own.path, LAYERS, own.hash, seed=7)
        assert site.client.get(f"/models/{SLUG}/layers/0").text != first
    finally:
        site.services.close()


def test_pages_of_units_are_kept_until_something_that_they_show_changes(
    scanned: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.pages.keeper.TRUST_SECONDS", 0.0)
    site = open_site(tmp_path / "data", scanned, token="secret", allowed_hosts="lab.example")
    site.client.headers["authorization"] = "Bearer secret"
    try:
        address = f"/models/{SLUG}/units/L0.u3"
        site.client.get(address)
        site.work()  # what it looks up with the worker is there, so that it polls no more
        first = site.client.get(address)
        assert 'hx-trigger="every' not in first.text
        with counting(site) as seen:
            again = site.client.get(address)
        assert (again.text, again.headers) == (first.text, first.headers)
        asked = [statement for statement in seen if statement.startswith("SELECT")]
        assert len(asked) <= 4, "the newest event, reading, note and vote"
        assert site.client.get(address, headers={"authorization": ""}).status_code == 401, "kept behind the guard"
        site.read("it was the best of times")
        with counting(site) as seen:
            site.client.get(address)
        assert len(seen) > 4, "made again: a reading was stored"
        waiting = site.client.get(address).text
        assert "hx-trigger" in waiting, "it looks at the reading's text, and polls"
        site.work()
        assert site.client.get(address).text != waiting
    finally:
        site.services.close()
