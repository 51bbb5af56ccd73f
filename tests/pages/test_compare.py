"""Two readings side by side: zeros of A against A, closing differences, other weights, and what is refused."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from page_samples import HOSTILE, Site, links, make_checkpoint, open_site, parsed

from app.figures import telling
from legible_core.config import FeedForward
from legible_core.registry import Checkpoint


@pytest.fixture(scope="module")
def twin(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """Other weights with the same tokenizer, and GELU units alone."""
    return make_checkpoint(tmp_path_factory.mktemp("twin"), "twin", scan=False, seed=1, units=FeedForward(48, 1.0, 0.0))


@pytest.fixture
def both(scanned: Checkpoint, twin: Checkpoint, tmp_path: Path) -> Iterator[Site]:
    made = open_site(tmp_path / "data", scanned)
    made.services.store.add_checkpoint(twin.slug, twin.hash, str(twin.path))
    made.services.catalogue.refresh()
    yield made
    made.services.close()


def compared(left: str, right: str, form: str = "") -> str:
    return f"/compare{form}?left={quote(left, safe='')}&right={quote(right, safe='')}"


def visible(html: str) -> str:
    return " ".join("".join(parsed(html).text).split())


def test_a_against_a_is_exactly_zero(shared: Site) -> None:
    address = shared.read("it was the best of times")
    data = shared.client.get(compared(address, address, ".json")).json()
    rows = [data["value"], *data["groups"], *data["floor"], *data["layers"], *data["components"]]
    assert len(data["components"]) == 2 * (4 + 48)
    assert {row["difference"] for row in rows} == {0.0}
    assert data["residual"] == 0.0
    assert data["notes"] == []
    assert [row["same"] for row in data["tokens"]] == [True]
    page = shared.client.get(compared(address, address))
    assert page.status_code == 200
    assert "every term of both readings is equal" in visible(page.text)
    assert 'class="t changed' not in page.text


def test_two_prompts_on_one_checkpoint_differ_by_what_the_components_say(shared: Site) -> None:
    left = shared.read("it was the best of times")
    base = shared.read("it was the worst age of wisdom")
    target = re.search(r"target=(\d+)", left)
    assert target is not None
    right = re.sub(r"target=\d+", target[0], base)
    assert shared.client.get(compared(left, right)).status_code == 200
    shared.work()
    data = shared.client.get(compared(left, right, ".json")).json()
    apart = [shared.client.get(a.replace("?", ".json?")).json() for a in (left, right)]
    assert data["value"]["difference"] == apart[1]["value"] - apart[0]["value"]
    total = sum(row["difference"] for row in [*data["components"], *data["floor"]])
    assert abs(data["value"]["difference"] - total) < data["tolerance"]
    assert abs(data["value"]["difference"] - sum(row["difference"] for row in data["groups"])) < data["tolerance"]
    sizes = [abs(row["difference"]) for row in data["components"]]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > 0
    found = {row["id"]: row for row in data["components"]}
    for layer, row in enumerate(apart[0]["units"]):
        assert found[f"L{layer}.u7"]["left"] == pytest.approx(row[7], abs=1e-7)
    page = shared.client.get(compared(left, right)).text
    assert data["components"][0]["id"] in visible(page)
    changes = page[page.index("Components by the size of their change") :].partition("</table>")[0]
    for row in data["components"][:30]:
        assert (f">{telling(row['difference'])}<" in changes) == bool(row["difference"])
    assert 'class="t changed' in page
    for link in links(page):
        if link.startswith("/models/") and "component=" in link:
            assert shared.client.get(link).status_code == 200
            break
    else:
        raise AssertionError("no component of the figures opens")


def test_both_figures_have_one_scale(shared: Site) -> None:
    left, right = shared.read("he was more than wise"), shared.read("it was not the best age")
    page = shared.client.get(compared(left, right)).text
    axes = re.findall(
        r'<text x="48"[^>]*text-anchor="middle">([^<]+)</text>|text-anchor="middle">(−[\d.]+)</text>', page
    )
    ends = [text for pair in axes for text in pair if text]
    half = len(ends) // 2
    assert half >= 1
    assert ends[:half] == ends[half:]


def test_units_of_different_weights_are_never_subtracted(both: Site) -> None:
    left = both.read("it was the best of times")
    form = {"left": left, "model": "twin", "prompt": "it was the best of times"}
    answer = both.client.post("/compare", data=form)
    assert answer.status_code == 303
    address = answer.headers["location"]
    waiting = both.client.get(address)
    assert 'hx-trigger="every' in waiting.text
    assert both.client.get(address.replace("/compare", "/compare.json")).status_code == 202
    assert both.client.get(address.replace("/compare", "/compare.csv")).status_code == 409
    both.work()
    explicit = both.client.get(address)
    assert explicit.status_code == 303, "an address names everything once it is known"
    address = explicit.headers["location"]
    page = both.client.get(address)
    assert page.status_code == 200
    assert "units and heads with the same number are different things" in visible(page.text)
    assert "What changed most" not in page.text
    data = both.client.get(address.replace("/compare", "/compare.json")).json()
    assert data["components"] == []
    assert data["residual"] is None
    assert data["alignment"] == "token"
    assert {row["id"] for row in data["groups"]} >= {"attention", "gelu", "set_operators", "floor"}
    assert next(row for row in data["groups"] if row["id"] == "set_operators")["right"] == 0.0
    table = list(csv.DictReader(io.StringIO(both.client.get(address.replace("/compare", "/compare.csv")).text)))
    components = [row for row in table if row["part"] == "component"]
    assert len(components) == 2 * 2 * (4 + 48)
    assert {row["difference"] for row in components} == {""}
    assert all(row["difference"] for row in table if row["part"] in ("group", "floor", "total", "layer"))


def test_the_form_reads_another_prompt_target_contrast_or_position(site: Site) -> None:
    left = site.read("it was the best of times")
    page = site.client.get(left).text
    assert 'action="/compare"' in page
    fields = {
        "left": left,
        "prompt": "it was the worst of times",
        "target": " worst",
        "contrast": " best",
        "position": "2",
    }
    address = site.client.post("/compare", data=fields).headers["location"]
    site.work()
    page = site.client.get(address)
    assert page.status_code == 200
    assert "The sides read different quantities: a logit on the left, a logit difference on the right." in visible(
        page.text
    )
    same = site.client.post("/compare", data={"left": left, "right": f"http://127.0.0.1:8321{left}"})
    assert same.headers["location"] == compared(left, left), "an address pasted whole loses our own host"
    chosen = site.client.get(f"/compare?left={quote(left, safe='')}")
    assert "Or with one that is stored" in chosen.text
    assert any(link.startswith("/compare?left=") for link in links(chosen.text))
    assert site.client.get("/compare").status_code == 200


def test_a_target_that_no_text_field_holds_is_named_by_its_id(site: Site) -> None:
    left = site.read("it was\n", position=1, target=11)
    tags = parsed(site.client.get(left).text).tags
    value = next(a["value"] for tag, a in tags if tag == "input" and a.get("name") == "target" and "id" in a)
    answer = site.client.post("/compare", data={"left": left, "target": value})
    assert "target%3D11" in answer.headers["location"]


@pytest.mark.parametrize(
    ("address", "status", "said"),
    [
        ("https://evil.example/models/tiny/readings/" + "a" * 64, 400, "is no reading of this server"),
        ("//evil.example/models/tiny/readings/" + "a" * 64, 400, "is no reading of this server"),
        ("http://[", 400, "is no reading of this server"),
        ("/models/tiny/units/L0.u1", 400, "is no reading of this server"),
        ("/models/tiny/readings/" + "a" * 63, 400, "is no reading of this server"),
        ("/models/tiny/readings/" + "a" * 64 + "#x", 400, "is no reading of this server"),
        ("javascript:alert(1)", 400, "is no reading of this server"),
        ("/models/tiny/readings/" + "a" * 64 + "?evil=1", 400, "has 'evil', unknown or twice"),
        ("/models/tiny/readings/" + "a" * 64 + "?target=1&target=2", 400, "has 'target', unknown or twice"),
        ("/models/tiny/readings/" + "a" * 64 + "?position=x", 400, "unusable position"),
        ("/models/tiny/readings/" + "a" * 64, 404, "it was deleted, or read on another machine"),
        ("/" + "x" * 700, 422, "right"),
    ],
)  # fmt: skip
def test_addresses_that_are_no_reading_here(shared: Site, address: str, status: int, said: str) -> None:
    left = shared.read("it was the best of times")
    for form in ("", ".json", ".csv"):
        answer = shared.client.get(compared(left, address, form))
        assert answer.status_code == status
        text = answer.json()["error"]["message"] if form == ".json" else visible(answer.text)
        assert said in text


def test_components_that_do_not_exist_and_sides_that_go(site: Site) -> None:
    left, right = site.read("it was the best"), site.read("it was the worst")
    assert site.client.get(compared(f"{left}&component=L1.u9", right)).status_code == 200
    missing = site.client.get(compared(f"{left}&component=L9.u0", right))
    assert missing.status_code == 404
    assert "There is no layer 9" in visible(missing.text)
    outside = site.client.get(compared(left, f"{right.partition('?')[0]}?position=99"))
    assert outside.status_code == 400
    assert "Position 99 is outside the prompt" in visible(outside.text)
    site.client.post(f"{right.partition('?')[0]}/delete")
    gone = site.client.get(compared(left, right))
    assert gone.status_code == 404
    assert "The right reading" in visible(gone.text)


def test_a_side_that_failed_says_why_and_can_be_tried_again(site: Site) -> None:
    from legible_core.errors import NotExact

    left = site.read("it was the best of times")
    address = site.client.post("/compare", data={"left": left, "prompt": "he was more"}).headers["location"]
    job = site.services.queue.claim("w", ["read"])
    assert job is not None
    site.services.queue.fail(job, NotExact("The terms sum to 3.0 and the logit is 4.0."))
    page = site.client.get(address)
    assert "The terms sum to 3.0 and the logit is 4.0." in visible(page.text)
    assert 'hx-trigger="every' not in page.text
    twin = site.client.get(address.replace("/compare?", "/compare.json?"))
    assert twin.status_code == 422
    assert twin.json()["error"]["code"] == "not_exact"
    assert twin.json()["jobs"]["right"]["state"] == "failed"
    assert site.client.post(f"/jobs/{job.id}/retry", data={"back": address}).headers["location"] == address
    site.work()
    assert site.client.get(address).status_code == 303


def test_hostile_text_stays_text(site: Site) -> None:
    left = site.read(f"it {HOSTILE} <img src=x onerror=alert(2)>")
    page = site.client.get(compared(left, site.read("it was")))
    assert page.status_code == 200
    assert "<script>alert" not in page.text
    assert not any(tag == "img" for tag, _ in parsed(page.text).tags)
    assert not any("style" in a or any(n.startswith("on") for n in a) for _, a in parsed(page.text).tags)
