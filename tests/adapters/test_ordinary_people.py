"""An ordinary model's pages for people: nothing serious by axe-core's rules, and every control by keyboard."""

from __future__ import annotations

import sys
from pathlib import Path
from urllib.parse import urlencode

import pytest
from family_samples import save
from playwright.sync_api import Route, sync_playwright

sys.path.append(str(Path(__file__).parents[1] / "pages"))
sys.path.append(str(Path(__file__).parents[1] / "journeys"))
from focus_samples import in_the_way
from journey_samples import chromium
from page_samples import open_site
from test_people_journey import AXE, findings

from legible_core.ordinary import adding

PROMPT = "It was the best of times, it was the"


def test_its_pages_have_nothing_serious(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Without a server: the browser's requests are answered by the application itself."""
    root = tmp_path_factory.mktemp("people")
    site = open_site(root / "data", adding.add(save("gpt2", root / "gpt2"), root / "data" / "ordinary", slug="tiny"))
    posted = [
        site.client.post(f"/models/{slug}/readings", data={"prompt": PROMPT}) for slug in ("tiny", "novel-legible")
    ]
    site.work()
    reading, legible = (site.client.get(one.headers["location"]).headers["location"] for one in posted)
    pages = {
        "model": "/models/tiny", "layer": "/models/tiny/layers/1", "unit": "/models/tiny/units/L1.u3",
        "head": "/models/tiny/heads/L1.h2", "reading": f"{reading}&component=L1.u3",
        "beside a legible one": f"/compare?{urlencode({'left': legible, 'right': reading})}",
    }  # fmt: skip
    for address in pages.values():
        site.client.get(address)
    site.work()
    origin = str(site.client.base_url)

    def answer(route: Route) -> None:
        found = site.client.get(route.request.url.removeprefix(origin))
        route.fulfill(status=found.status_code, headers=dict(found.headers), body=found.content)

    wrong: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        page = browser.new_page(reduced_motion="reduce")
        page.route("**/*", answer)
        for name, address in pages.items():
            page.goto(origin + address)
            page.evaluate(AXE.read_text(encoding="utf-8"))
            wrong += [f"{name}: {said}" for said in findings(page) + in_the_way(page)]
        page.unroute_all(behavior="ignoreErrors")
        browser.close()
    site.services.close()
    assert wrong == []
