"""The reading's page says what its JSON says, needs no worker once stored, and keeps all choices in its address."""

from __future__ import annotations

import csv
import io
import re

import pytest
from page_samples import HOSTILE, SLUG, Site, links, parsed, title

from app.figures import signed
from app.pages.view import exponent, percent, short
from legible_core.errors import LegibleError


def visible(html: str) -> str:
    return " ".join("".join(parsed(html).text).split())


def test_first_reading_waits_then_appears_and_its_address_becomes_explicit(site: Site) -> None:
    answer = site.client.post("/", data={"prompt": "it was the best", "model": SLUG})
    assert answer.status_code == 303
    address = answer.headers["location"]
    waiting = site.client.get(address)
    assert waiting.status_code == 200
    assert "wait for a worker" in waiting.text
    assert 'hx-trigger="every' in waiting.text
    assert "Place 1 in the line" in waiting.text or "No worker is alive yet" in waiting.text
    twin = site.client.get(address.replace("?", ".json?"))
    assert twin.status_code == 202
    assert twin.json()["job"]["state"] == "waiting"
    assert len(site.services.queue.list()) == 1, "asking again is the same job"

    site.work()
    assert site.client.get(address).status_code == 303
    polled = site.client.get(address, headers={"hx-request": "true"})
    assert polled.status_code == 200
    explicit = polled.headers["hx-replace-url"]
    assert re.search(r"position=\d+&target=\d+$", explicit)
    page = site.client.get(explicit)
    assert page.status_code == 200
    assert 'hx-trigger="every' not in page.text, "a stored reading polls nothing"
    assert len(site.services.queue.list()) == 1, "a stored reading asks nothing of a worker"


def test_the_sum_line_is_the_json(shared: Site) -> None:
    address = shared.read("it was the worst of times")
    page = shared.client.get(address)
    data = shared.client.get(address.replace("?", ".json?")).json()
    found = re.search(r'<section class="sum".*?</section>', page.text, re.DOTALL)
    assert found is not None
    line = visible(found[0])
    for name, key in (("attention", "attention"), ("set operators", "set_operators"), ("GELU", "gelu")):
        assert f"{name} {signed(data['groups'][key])}" in line
    for term in data["floor"]:
        assert signed(term["value"]) in line
    assert f"= {short(data['sum'])}" in line
    assert f"logit {short(data['value'])}" in line
    assert f"residual {exponent(data['residual'])}" in line
    if data["shares"]["net"] is not None:
        assert f"legible share {percent(data['shares']['net'])} of net" in line
    total = sum(data["groups"].values())
    assert total == pytest.approx(data["sum"], abs=1e-4)
    assert abs(data["value"] - data["sum"]) <= data["tolerance"]


def test_the_figure_has_every_head_and_the_strongest_units(shared: Site) -> None:
    address = shared.read("it was the age of wisdom")
    page = shared.client.get(address).text
    data = shared.client.get(address.replace("?", ".json?")).json()
    labels = {attrs["aria-label"] for tag, attrs in parsed(page).tags if tag == "a" and "aria-label" in attrs}
    for layer in data["layers"]:
        for head, value in enumerate(layer["heads"]):
            assert f"L{layer['layer']}.h{head} {signed(value)}" in labels
    for contributor in data["top"]:
        if contributor["kind"] != "head":
            assert f"{contributor['glyph']} {contributor['id']} {signed(contributor['value'])}" in labels
        assert f"component={contributor['id']}" in page


def test_csv_adds_up_to_the_value(shared: Site) -> None:
    address = shared.read("she could have been")
    data = shared.client.get(address.replace("?", ".json?")).json()
    answer = shared.client.get(address.replace("?", "/csv?"))
    assert answer.headers["content-type"].startswith("text/csv")
    assert "attachment" in answer.headers["content-disposition"]
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert len(rows) == len(data["floor"]) + 2 * 4 + 2 * 48
    assert sum(float(row["term"]) for row in rows) == pytest.approx(data["sum"], abs=1e-4)
    assert {row["kind"] for row in rows} >= {"floor", "head", "intersection", "difference", "gelu"}


def test_another_position_target_contrast_and_scale_are_addresses(site: Site) -> None:
    address = site.read("it was the best of times")
    page = site.client.get(address).text
    base, third = address.partition("?")[0], "position=2&target=9"
    for query in ("position=1", "position=2&target=9", f"{third}&contrast=11", f"{third}&relative_to=mean"):
        first = site.client.get(f"{base}?{query}")
        assert first.status_code == 200
        site.work()
        done = site.client.get(f"{base}?{query}")
        if done.status_code == 303:
            done = site.client.get(done.headers["location"])
        assert done.status_code == 200
        assert "Strongest contributors" in done.text
    assert "logit − mean" in done.text
    contrasted = site.client.get(f"{base}?position=2&target=9&contrast=11").text
    assert "logit difference" in contrasted
    assert re.search(r"\?position=\d+&amp;target=\d+&amp;contrast=\d+", page), "predictions offer a contrast"


def test_panels_have_addresses_and_heads_ask_the_worker_once(site: Site) -> None:
    address = site.read("it was the best of times")
    unit = site.client.get(f"{address}&component=L1.u20")
    assert unit.status_code == 200
    head = site.client.get(f"{address}&component=L0.h1")
    assert "Looking closer" in head.text or "No worker is alive" in head.text
    site.work()
    head = site.client.get(f"{address}&component=L0.h1")
    assert "Where it looks" in head.text
    assert "Shaded: where L0.h1 looks" in head.text
    assert 'aria-current="true"' in head.text
    before = len(site.services.queue.list())
    assert site.client.get(f"{address}&component=L0.h1").status_code == 200
    assert len(site.services.queue.list()) == before
    data = site.client.get(address.replace("?", ".json?")).json()
    named = next(c["id"] for c in data["top"] if c["kind"] == "gelu")
    assert site.client.get(f"{address}&component={named}").status_code == 200
    assert len(site.services.queue.list()) == before, "a contributor needs no worker"


def test_a_panel_that_failed_can_be_tried_again(site: Site) -> None:
    address = site.read("it was the best of times") + "&component=L0.h1"
    site.client.get(address)
    job = site.services.queue.claim("w", ["component"])
    assert job is not None
    site.services.queue.fail(job, LegibleError("The worker ran out of memory."))
    page = site.client.get(address)
    assert "The worker ran out of memory." in visible(page.text)
    assert "residual" in visible(page.text), "the reading itself stays"
    again = site.client.post(f"/jobs/{job.id}/retry", data={"back": address})
    assert again.headers["location"] == address
    site.work()
    assert "Where it looks" in site.client.get(address).text
    unit = f"/models/{SLUG}/heads/L0.h1"
    assert "Where it looks" in site.client.get(unit).text


@pytest.mark.parametrize(
    ("query", "status", "said"),
    [
        ("position=99", 400, "Position 99 is outside the prompt"),
        ("position=-1", 422, "position"),
        ("position=x", 422, "position"),
        ("position=1&target=999999", 400, "not in this checkpoint"),
        ("position=1&target=9&contrast=9", 400, "contrast"),
        ("position=1&target=9&relative_to=nonsense", 422, "relative_to"),
        ("position=1&relative_to=contrast", 400, "contrast token"),
        ("position=9223372036854775808", 400, "tokens have positions 0 to"),
        ("target=99999999999999999999999", 400, "is not in this checkpoint's vocabulary"),
        ("target=1&contrast=2147483648", 400, "is not in this checkpoint's vocabulary"),
        ("component=L9.h0", 404, "There is no layer 9"),
        ("component=L0.h9", 404, "There is no head 9"),
        ("component=L0.u999", 404, "There is no unit 999"),
        ("component=nonsense", 400, "is no component id"),
        ("component=embed.token", 400, "has no panel"),
    ],
)  # fmt: skip
def test_bad_values_are_one_sentence(shared: Site, query: str, status: int, said: str) -> None:
    address = shared.read("it was the best of times")
    start, _, explicit = address.partition("?")
    url = f"{start}?{explicit}&{query}" if query.startswith("component") else f"{start}?{query}"
    answer = shared.client.get(url)
    assert answer.status_code == status, visible(answer.text)
    assert said in visible(answer.text)
    body = shared.client.get(url.replace("?", ".json?"))
    if not query.startswith("component"):
        assert body.status_code == status
        assert said in body.json()["error"]["message"]


def test_what_was_refused_leads_back_to_the_reading(shared: Site) -> None:
    address = shared.read("the cat")
    path = address.partition("?")[0]
    # From a page below it as well: that page would only be refused again.
    for asked in (f"{address}&component=L9.u0", f"{path}/bounds/L0.u47", f"{path}/why/L9.p0.A?at=1"):
        refused = shared.client.get(asked)
        assert refused.status_code == 404
        assert f'<a href="{path}">Back to the reading</a>' in refused.text
    assert "Back to the reading" not in shared.client.get("/models/none").text


def test_lists_tell_readings_of_one_prompt_apart(site: Site) -> None:
    site.read("the cat sat on the")
    site.read("the cat sat on the", position=1, target=5)
    site.read("the cat sat on the", target=5, contrast=6)
    site.read("the cat sat on the", target=5, relative_to="mean")
    home = site.client.get("/").text
    assert home.count("at position 1, ") == 1
    assert home.count("against another token, ") == 1
    assert home.count("relative to the mean, ") == 1


def test_a_target_typed_as_text(site: Site) -> None:
    address = site.read("it was the best of times")
    base = address.partition("?")[0]
    answer = site.client.get(f"{base}?position=2&target_text=%20worst")
    assert answer.status_code == 303
    assert re.search(r"\?position=2&target=\d+$", answer.headers["location"])
    split = site.client.get(f"{base}?position=2&target_text=zebra%20zebra")
    assert split.status_code == 400
    assert "and a target is one token" in visible(split.text)
    typed = site.client.get(f"{address}&target_text=zebra%20%22zebra")
    assert typed.status_code == 400
    assert "and a target is one token" in visible(typed.text)
    assert 'value="zebra &#34;zebra"' in typed.text
    assert 'id="desk"' in typed.text, "the reading stays on the screen"
    assert 'role="alert"' not in site.client.get(address).text
    told = site.client.get(f"{address}&target_text=zebra%20zebra", headers={"accept": "application/json"})
    assert (told.status_code, "one token" in told.json()["error"]["message"]) == (400, True)
    versus = site.client.get(f"{base}?position=2&target=9&contrast_text=zebra%20zebra")
    assert "and a contrast is one token" in visible(versus.text)


def test_the_form_for_another_token_keeps_what_is_read(site: Site) -> None:
    address = site.read("it was the best of times", position=2, target=9, relative_to="mean")
    fields = {
        attrs["name"]: attrs["value"]
        for tag, attrs in parsed(site.client.get(address).text).tags
        # `on` is the tokens' form and `left` the comparison's.
        if tag == "input" and attrs.get("type") == "hidden" and attrs["name"] not in ("on", "left")
    }
    assert fields == {"position": "2", "target": "9", "relative_to": "mean"}
    base = address.partition("?")[0]
    other = site.client.get(base, params={**fields, "target_text": " worst", "contrast_text": ""})
    assert re.search(r"\?position=2&target=\d+&relative_to=mean$", other.headers["location"])
    versus = site.client.get(base, params={**fields, "target_text": "", "contrast_text": " worst"})
    assert re.search(r"\?position=2&target=9&contrast=\d+$", versus.headers["location"])


@pytest.mark.parametrize("prompt", ["a\x00b\x07", "مرحبا", "👩‍👩‍👧 好 it", "it\r\nwas", "\n\nit", "\u202eit"])
def test_odd_prompts_are_read_and_shown_as_chips(shared: Site, prompt: str) -> None:
    address = shared.read(prompt)
    page = shared.client.get(address)
    assert page.status_code == 200
    data = shared.client.get(address.replace("?", ".json?")).json()
    for token in data["tokens"]:
        assert token["display"] in "".join(parsed(page.text).text)
    home = shared.client.get("/").text
    assert "\u202e" not in title(page.text)
    assert "\u202e" not in home, "a direction mark of one text must not turn the page around"


def test_hostile_text_stays_text(shared: Site) -> None:
    address = shared.read(f"it {HOSTILE} <img src=x onerror=alert(2)>")
    tail = address.partition("?")[2]
    pages = [address, f"{address}&component=L0.h0", "/", "/jobs", "/models", f"/models/{SLUG}"]
    data = shared.client.get(address.replace("?", ".json?")).json()
    pages += [f"/models/{SLUG}/{part}" for part in ("layers/0", "units/L0.u3", "heads/L0.h0")]
    pages += [f"{address}&component=%3Cscript%3E"]
    assert any("onerror" in token["display"] for token in data["tokens"])
    assert tail
    for url in pages:
        html = shared.client.get(url).text
        reader = parsed(html)
        for tag, attrs in reader.tags:
            assert not any(name.startswith("on") for name in attrs), (url, tag, attrs)
            assert "style" not in attrs, (url, tag)
            assert not any(name.startswith("hx-on") for name in attrs)
            if tag == "script":
                assert attrs.get("src") or attrs.get("type") == "application/json", url
            assert tag != "img"
            for name in ("href", "action", "src"):
                assert not re.match(r"(?i)[a-z]+:|//", attrs.get(name, "")), url
        assert "<script>alert" not in html
        assert "<img src=x" not in html


def test_delete_forgets_the_prompt_everywhere(site: Site) -> None:
    address = site.read("a secret of hers")
    assert site.client.get(address).status_code == 200
    assert "secret" in site.client.get("/").text
    start = address.partition("?")[0]
    gone = site.client.post(f"{start}/delete")
    assert gone.status_code == 303
    for url in (address, f"{start}.json", f"{start}/csv"):
        assert site.client.get(url).status_code == 404
    for url in ("/", "/jobs", "/jobs.json", "/index.json"):
        assert "secret" not in site.client.get(url).text
    assert site.client.post(f"{start}/delete").status_code == 404


def test_a_tab_that_shows_or_awaits_what_is_deleted_elsewhere_says_so(site: Site) -> None:
    stored = site.read("it was the best of times")
    waiting = site.client.post("/", data={"prompt": "it was", "model": SLUG}).headers["location"]
    assert "hx-refresh" not in site.client.get(waiting, headers={"hx-request": "true"}).headers
    for address in (waiting, stored):
        deleted = site.client.post(f"{address.partition('?')[0]}/delete")
        assert deleted.headers["clear-site-data"] == '"cache"', "the way back does not show it again"
        polled = site.client.get(address, headers={"hx-request": "true"})
        assert (polled.status_code, polled.headers["hx-refresh"]) == (404, "true"), "it loads itself, and so the error"
        assert "hx-refresh" not in site.client.get(address).headers


def test_deletion_elsewhere_is_noticed(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    from app.pages import readings

    monkeypatch.setattr(readings, "TRUST_SECONDS", 0.0)
    address = site.read("it was the age")
    assert site.client.get(address).status_code == 200
    assert site.client.get(address).status_code == 200
    site.services.store.delete(address.partition("?")[0].rpartition("/")[2])
    assert site.client.get(address).status_code == 404


def test_collecting(site: Site) -> None:
    address = site.read("he was more than wise")
    start, _, query = address.partition("?")
    assert "Collected" not in site.client.get("/").text
    answer = site.client.post(f"{start}/collect?{query}", data={"on": "1"})
    assert answer.headers["location"] == address
    assert "collected ✓" in site.client.get(address).text
    assert "Collected" in site.client.get("/").text
    site.client.post(f"{start}/collect?{query}", data={"on": "0"})
    assert "collected ✓" not in site.client.get(address).text


def test_a_failed_reading_says_why_and_can_be_tried_again(site: Site) -> None:
    from legible_core.errors import NotExact

    answer = site.client.post(f"/models/{SLUG}/readings", data={"prompt": "it was never"})
    job = site.services.queue.claim("w", ["read"])
    assert job is not None
    site.services.queue.fail(job, NotExact("The terms sum to 3.0 and the logit is 4.0, over the tolerance of 1e-4."))
    page = site.client.get(answer.headers["location"])
    assert "The terms sum to 3.0 and the logit is 4.0" in visible(page.text)
    assert "Try again" in page.text
    assert 'hx-trigger="every' not in page.text
    back = answer.headers["location"]
    twin = site.client.get(back.partition("?")[0] + ".json")
    assert twin.status_code == 422, "a program that polls ends"
    assert twin.json()["error"] == twin.json()["job"]["error"]
    assert twin.json()["error"]["code"] == "not_exact"
    again = site.client.post(f"/jobs/{job.id}/retry", data={"back": back})
    assert again.headers["location"] == back
    site.work()
    assert site.client.get(back).status_code == 303
    foreign = site.client.post(f"/jobs/{job.id}/retry", data={"back": "//evil.example/"})
    assert foreign.headers["location"] == "/jobs"


def test_a_stored_reading_opens_without_its_checkpoint(site: Site) -> None:
    address = site.read("it was the best of times")
    before = visible(re.search(r'<section class="sum".*?</section>', site.client.get(address).text, re.DOTALL)[0])  # type: ignore[index]
    site.services.store.remove_checkpoint(SLUG)
    site.services.catalogue.refresh()
    site.forget_pages()
    page = site.client.get(address)
    assert page.status_code == 200
    assert visible(re.search(r'<section class="sum".*?</section>', page.text, re.DOTALL)[0]) == before  # type: ignore[index]
    assert site.client.get(f"{address}&component=L0.h1").status_code == 200
    identity = site.checkpoint.hash
    gone = f"The checkpoint tiny ({identity[:12]}) is not here any more"
    another = address.replace("position=", "position=1&was=")
    assert f"{gone}; it was forgotten." in visible(site.client.get(another).text)
    site.services.store.add_checkpoint(SLUG, identity, "/gone/tiny")
    site.services.catalogue.refresh()
    assert f"{gone}: there is no checkpoint folder '/gone/tiny'." in visible(site.client.get(another).text)


def test_page_of_a_long_prompt_is_small_and_titled(shared: Site) -> None:
    address = shared.read("it was the best of times worst age " * 6)
    page = shared.client.get(address)
    assert len(page.content) < 150_000
    assert SLUG in title(page.text)
    assert "→" in title(page.text)


def test_links_of_the_page_open(shared: Site) -> None:
    address = shared.read("it was the best of times")
    start = address.partition("?")[0]
    page = shared.client.get(address).text
    for link in sorted(links(page)):
        url = f"{start}{link}" if link.startswith("?") else link
        if url.startswith("#") or url.endswith(("/delete", "/collect")) or "/collect?" in url:
            continue
        assert shared.client.get(url).status_code in (200, 303), url
