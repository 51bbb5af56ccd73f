"""A reading made by other code says so, is read again on demand, and both results stay and can be compared."""

from __future__ import annotations

import json

import pytest
from page_samples import Site, links, parsed
from sqlalchemy import update

from app.pages import revisions
from app.pages.revisions import job_of_revision
from app.tables import ReadingRow, RevisionRow
from legible_core import __version__
from legible_core.errors import NotFound

OFFER = "Read again and show the difference"


def made_by(site: Site, version: str, change: float = 0.0) -> None:
    """Let every stored result be of another version of the code, with its value moved by `change` logits."""
    with site.services.store.database.write() as connection:
        for row in connection.execute(RevisionRow.__table__.select()).all():
            summary = json.loads(row.summary)
            summary["value"] += change
            connection.execute(
                update(RevisionRow)
                .where(RevisionRow.id == row.id)
                .values(code_version=version, summary=json.dumps(summary))
            )
    site.forget_pages()


def said(html: str) -> str:
    return " ".join("".join(parsed(html).text).split())


def numbered(address: str, revision: int) -> str:
    return f"{address}&revision={revision}"


def test_what_this_code_made_needs_no_words(shared: Site) -> None:
    page = shared.client.get(shared.read("it was the best of times"))
    assert "made by" not in said(page.text)
    assert OFFER not in page.text


def test_an_old_reading_says_so_and_is_read_again_beside_itself(site: Site) -> None:
    address = site.read("it was the best")
    made_by(site, "0.0.9", change=0.5)
    page = site.client.get(address)
    assert page.status_code == 200
    assert f"made by older code, Legible 0.0.9; this is {__version__}." in said(page.text)
    assert OFFER in page.text
    assert len(site.services.queue.list()) == 1, "looking asks nothing of a worker"
    assert site.client.get(address.replace("?", ".json?")).json()["stored"] == {
        "revision": 1, "code_version": "0.0.9", "present_version": __version__, "renamed": 0,
        "revisions": [{"revision": 1, "code_version": "0.0.9", "created_at": pytest.approx(1e9, abs=1e10)}],
    }  # fmt: skip
    again = next(link for link in links(page.text) if "/again" in link)
    answer = site.client.post(again)
    assert answer.status_code == 303
    beside = answer.headers["location"]
    waiting = site.client.get(beside)
    assert "wait for a worker" in waiting.text
    site.work()
    jobs = len(site.services.queue.list())
    compared = site.client.get(beside)
    assert compared.status_code == 200
    assert "revision 1, by Legible 0.0.9" in compared.text
    assert f"revision 2, by Legible {__version__}" in compared.text
    document = site.client.get(beside.replace("/compare?", "/compare.json?")).json()
    assert (document["left"]["revision"], document["right"]["revision"]) == (1, 2)
    assert document["value"]["difference"] == pytest.approx(-0.5, abs=1e-4)
    assert all(row["difference"] == pytest.approx(0, abs=1e-5) for row in document["components"])
    assert len(site.services.queue.list()) == jobs

    newest = site.client.get(address)  # the page that was kept is not shown again
    assert f"Revision 2, made by Legible {__version__}." in said(newest.text)
    assert OFFER not in newest.text
    assert beside in links(newest.text)
    old = site.client.get(numbered(address, 1))
    assert "This is revision 1 of 2, made by Legible 0.0.9." in said(old.text)
    assert OFFER not in old.text
    assert {beside, address} <= links(old.text)
    assert all("revision=1" in link for link in links(old.text) if "component=" in link)
    first = site.client.get(numbered(address, 1).replace("?", ".json?")).json()
    last = site.client.get(address.replace("?", ".json?")).json()
    assert first["value"] - last["value"] == pytest.approx(0.5, abs=1e-4)
    assert first["stored"]["revision"] == 1
    assert site.client.get(numbered(address, 1).replace("?", "/csv?")).status_code == 200
    assert "This is revision 1 of 2" in site.client.get(numbered(address, 1) + "&embed=sum").text


def test_reading_again_takes_the_whole_question_along(site: Site) -> None:
    for query in ({"position": 1, "target": 9, "contrast": 11}, {"position": 1, "target": 9, "relative_to": "mean"}):
        address = site.read("it was the worst", **query)
        made_by(site, "9.9")
        page = site.client.get(address)
        assert "made by other code, Legible 9.9" in said(page.text)
        beside = site.client.post(next(link for link in links(page.text) if "/again" in link)).headers["location"]
        site.work()
        document = site.client.get(beside.replace("/compare?", "/compare.json?")).json()
        left, right = document["left"], document["right"]
        assert (left["position"], left["target"]["id"], left["relative_to"]) == (
            1, 9, query.get("relative_to", "contrast"),
        )  # fmt: skip
        assert left["contrast"] == right["contrast"]
        assert document["value"]["difference"] == pytest.approx(0, abs=1e-5)


def test_revisions_that_are_not_there_are_one_sentence(site: Site) -> None:
    address = site.read("it was the age")
    for revision, status in (("2", 404), ("99999999999999999999", 404), ("0", 422), ("x", 422)):
        answer = site.client.get(f"{address}&revision={revision}".replace("?", ".json?"))
        assert answer.status_code == status, revision
        assert set(answer.json()["error"]) == {"code", "message", "hint"}
    assert "it has only revision 1" in site.client.get(numbered(address, 2)).text
    compare = site.client.get("/compare.json", params={"left": address, "right": numbered(address, 7)})
    assert compare.status_code == 404
    again = site.client.post(address.replace("?", "/again?"), headers={"accept": "application/json"})
    assert again.status_code == 409
    assert "by this version of Legible" in again.json()["error"]["message"]
    nowhere = address.replace("target=", "target=1")
    assert site.client.post(nowhere.replace("?", "/again?")).status_code == 404
    assert len(site.services.queue.list()) == 1
    with pytest.raises(NotFound, match="not stored, so it has no revision 3"):
        job_of_revision(None, None, "0" * 64, 3)


def test_a_worker_of_the_same_old_code_adds_nothing(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    address = site.read("he could have been")
    monkeypatch.setattr(revisions, "__version__", "0.2.0")
    monkeypatch.setattr("app.pages.again.__version__", "0.2.0")
    site.forget_pages()
    page = site.client.get(address)
    assert f"made by older code, Legible {__version__}; this is 0.2.0." in said(page.text)
    beside = site.client.post(next(link for link in links(page.text) if "/again" in link)).headers["location"]
    site.work()
    jobs = len(site.services.queue.list())
    answer = site.client.get(beside)
    assert answer.status_code == 404, "it says so, and does not ask for ever"
    assert "no revision 2; it has only revision 1" in said(answer.text)
    assert len(site.services.queue.list()) == jobs
    with site.services.store.database.read() as connection:
        assert len(connection.execute(ReadingRow.__table__.select()).all()) == 1
