"""Waiting, failed, cancelled, tried again and filled: every panel that a worker fills goes through all of them.

Empty and stale panels need no worker: what a checkpoint without names, a store without anything and a reading of other
code show (docs/states.md lists every panel).
"""

from __future__ import annotations

from pathlib import Path

import pytest
from page_samples import SLUG, Site, links, make_checkpoint, open_site, parsed

from app.jobs import Job
from legible_core.errors import LegibleError
from legible_core.registry import Checkpoint

REASON, HINT = "The disk of this test is full.", "Empty it first."
POLLS = 'hx-trigger="every'
DIGEST = "{digest}"
PANELS = {
    "reading": f"/models/{SLUG}/readings/{DIGEST}?position=2",
    "head panel": "{reading}&component=L1.h0",
    "unit panel": "{reading}&component={quiet}",
    "comparison": "/compare?left={left}&right={left}%26relative_to%3Dmean",
    "why": f"/models/{SLUG}/readings/{DIGEST}/why/L1.p3.A?at=2",
    "values": "{values}",
    "generation": "{generation}",
    "pair": f"/models/{SLUG}/pairs?good=it+was+the+best&bad=it+was+the+worst",
    "unit page": f"/models/{SLUG}/units/L1.u3",
    "head page": f"/models/{SLUG}/heads/L1.h1",
}


def said(html: str) -> str:
    return " ".join("".join(parsed(html).text).split())


def opened(site: Site, address: str) -> str:
    """The page as after a restart of the web process, whichever address it has become."""
    site.forget_pages()
    site.client.app.state.kept_pages.clear()  # type: ignore[attr-defined]
    answer = site.client.get(address)
    while answer.status_code in (303, 307):
        answer = site.client.get(answer.headers["location"])
    assert answer.status_code == 200, said(answer.text)
    return answer.text


def active(site: Site) -> list[Job]:
    return [job for job in site.services.queue.list() if job.active]


def place(site: Site, name: str) -> str:
    """The panel's address, once what it needs beforehand is made."""
    reading = site.read("it was the best of times")
    digest = reading.partition("/readings/")[2].partition("?")[0]
    top = {row["id"] for row in site.client.get(reading.replace("?", ".json?")).json()["top"]}
    quiet = next(unit for unit in (f"L1.u{number}" for number in range(48)) if unit not in top)
    made = {"reading": reading, "digest": digest, "quiet": quiet, "values": "", "generation": ""}
    made["left"] = reading.replace("?", "%3F").replace("=", "%3D").replace("&", "%26")
    if name == "values":
        form = {"text": "it was the best", "components": "L1.u3,L1.p3.A"}
        made["values"] = site.client.post(f"/models/{SLUG}/values", data=form).headers["location"]
    if name == "generation":
        form = {"prompt": "it was", "tokens": "3", "temperature": "0", "seed": "0"}
        made["generation"] = site.client.post(f"/models/{SLUG}/generate", data=form).headers["location"]
    return PANELS[name].format(**made)


def retries(html: str) -> set[str]:
    return {link for link in links(html) if link.endswith("/retry")}


@pytest.mark.parametrize("name", PANELS)
def test_a_panel_waits_fails_is_tried_again_and_is_filled(site: Site, name: str) -> None:
    address = place(site, name)
    waiting = opened(site, address)
    assert POLLS in waiting
    assert 'role="status"' in waiting
    assert active(site), "what is waited for is in line"
    assert not retries(waiting)

    while (job := site.services.queue.claim("test", list(site.worker.handlers))) is not None:
        assert site.services.queue.fail(job, LegibleError(REASON, hint=HINT))
        failed = opened(site, address)
    assert REASON in said(failed)
    assert "fault" in failed or 'role="status"' in failed
    assert retries(failed)

    for again in retries(failed):
        assert site.client.post(again, data={"back": address}).status_code == 303
    waiting = opened(site, address)
    assert REASON not in said(waiting)
    assert POLLS in waiting
    for job in active(site):
        site.services.queue.cancel(job.id)
    cancelled = opened(site, address)
    assert "cancelled" in said(cancelled)
    for again in retries(cancelled):
        assert site.client.post(again, data={"back": address}).status_code == 303
    for _ in range(4):  # a panel that is filled may ask for the next one
        opened(site, address)
        site.work()
    filled = opened(site, address)
    assert POLLS not in filled
    assert not retries(filled)
    assert not active(site)


def test_without_names_every_page_says_what_is_missing(tmp_path: Path) -> None:
    bare: Checkpoint = make_checkpoint(tmp_path / "checkpoints", scan=False)
    site = open_site(tmp_path / "data", bare)
    base = f"/models/{SLUG}"
    for path in (base, f"{base}/layers/1", f"{base}/units/L1.u3", f"{base}/heads/L1.h0"):
        assert "legible scan" in said(opened(site, path)), path
    answer = site.client.get(f"{base}?embed=figure")
    assert answer.status_code == 404
    assert "legible scan" in said(answer.text)
    address = site.read("it was the best")
    page = opened(site, address)
    assert "Strongest contributors" in page, "a reading needs no names"
    site.services.close()


def test_a_store_without_anything_says_how_to_begin(tmp_path: Path, scanned: Checkpoint) -> None:
    site = open_site(tmp_path / "data", scanned)
    for path, words in {
        "/jobs": "No worker is alive, so new readings wait.",
        "/findings": "No findings yet",
        f"/models/{SLUG}/notes": "Nobody has",
        "/compare": "There is no reading yet.",
        "/search?q=xyzzy": "Noth",
    }.items():
        assert words in said(opened(site, path)), path
    site.services.close()
