"""Every page asks the database as often over many rows as over few: the statements are counted."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from page_samples import SLUG, Site, open_site, without_shipped
from run_samples import make_run
from sqlalchemy import event, insert, select

from app.collections import Item
from app.tables import (
    JobEventRow,
    JobRow,
    LeadingRow,
    MonitorBlockRow,
    MonitorHitRow,
    MonitorRow,
    MonitorStreamRow,
    PromptRow,
    ReadingRow,
    RevisionRow,
    VoteRow,
    WorkerRow,
)
from legible_core.registry import Checkpoint

FEW, MANY = 2, 20
AUTHOR = "Ada"


@contextmanager
def counted(site: Site) -> Iterator[list[str]]:
    """The statements that the database is asked meanwhile."""
    asked: list[str] = []

    def note(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        asked.append(statement)

    engine = site.services.store.database.engine
    event.listen(engine, "before_cursor_execute", note)
    try:
        yield asked
    finally:
        event.remove(engine, "before_cursor_execute", note)


class Rows:
    """A workbench whose tables are filled by copies of what real work left there."""

    def __init__(self, site: Site, address: str, monitor: str) -> None:
        self.site, self.address, self.monitor = site, address, monitor
        self.digest = address.split("/")[4].partition("?")[0]
        self.database = site.services.store.database
        self.size = 1
        self.digests = [self.digest]
        site.services.collections.save(None, base=0, title="first", text="*text*", author=AUTHOR, items=())

    def all_of(self, table: Any, **where: Any) -> list[dict[str, Any]]:
        query = select(*table.__table__.c).filter_by(**where)
        with self.database.read() as connection:
            return [dict(row._mapping) for row in connection.execute(query)]

    def grow(self, size: int) -> None:
        """Have `size` of everything: readings, notes, votes, findings, monitors, streams, hits, jobs, workers."""
        reading = self.all_of(ReadingRow, digest=self.digest)[0]
        prompt, revision = self.all_of(PromptRow, digest=self.digest)[0], self.all_of(RevisionRow)[0]
        leading = self.all_of(LeadingRow, reading_id=reading["id"])
        jobs, monitor = self.all_of(JobRow, state="done"), self.all_of(MonitorRow)[0]
        stream = self.all_of(MonitorStreamRow)[0]
        hits, blocks = (self.all_of(t, stream_id=stream["id"]) for t in (MonitorHitRow, MonitorBlockRow))
        assert leading
        assert jobs
        assert hits
        assert blocks
        with self.database.write() as connection:

            def copy(table: Any, row: dict[str, Any], **changes: Any) -> Any:
                given = {key: value for key, value in {**row, **changes}.items() if key != "id"}
                return connection.execute(insert(table).values(**given)).inserted_primary_key[0]

            for number in range(self.size, size):
                digest = hashlib.sha256(str(number).encode()).hexdigest()
                self.digests.append(digest)
                copy(PromptRow, prompt, digest=digest)
                made = copy(ReadingRow, reading, digest=digest)
                summary = json.dumps({**json.loads(revision["summary"]), "digest": digest})
                copy(RevisionRow, revision, reading_id=made, summary=summary)
                for row in leading:
                    copy(LeadingRow, row, reading_id=made)
                for job in jobs[:2]:
                    at = copy(JobRow, job, key=f"copy:{number}:{job['id']}", subject=digest)
                    connection.execute(insert(JobEventRow).values(job_id=at, at=1.0, event="done", attempt=1))
                    copy(JobRow, job, key=f"wait:{number}:{job['id']}", subject=digest, state="waiting", result=None)
                copy(MonitorRow, monitor, name=f"copy {number}")
                text = copy(MonitorStreamRow, stream)
                for table, rows in ((MonitorHitRow, hits), (MonitorBlockRow, blocks)):
                    for row in rows:
                        copy(table, row, stream_id=text)
                now = stream["updated_at"]
                worker = {"host": "h", "pid": number, "version": "1", "started_at": now, "seen_at": now}
                connection.execute(insert(WorkerRow).values(id=f"w{number}", **worker))
        services, hash = self.site.services, self.site.checkpoint.hash
        for number in range(self.size, size):
            for component in (f"L0.u{number}", f"L1.u{number}"):
                services.notes.save(hash, component, base=0, name=f"n {number}", text="negation", author=AUTHOR)
            services.collections.save(None, base=0, title=f"more {number}", text="", author=AUTHOR, items=())
            with self.database.write() as connection:
                vote = {"component": "L0.u3", "label": "a", "author": f"p{number}", "vote": "right", "voted_at": 1.0}
                connection.execute(insert(VoteRow).values(checkpoint_hash=hash, **vote))
        place = {"position": reading["position"], "target": reading["target"]}
        items = [Item(SLUG, digest, **place) for digest in self.digests]
        items += [Item(SLUG, component=f"L0.u{number}") for number in range(size)]
        found = services.collections.get(1)
        services.collections.save(1, base=found.revision, title="first", text="*t*", author=AUTHOR, items=items)
        self.size = size

    def pages(self) -> dict[str, str]:
        query = self.address.partition("?")[2]
        other = f"/models/{SLUG}/readings/{self.digests[1]}?{query}"
        return {
            "home": "/",
            "reading": self.address,
            "panel of a reading": f"{self.address}&component=L0.u3",
            "a reading's JSON": self.address.replace("?", ".json?"),
            "an embed": f"{self.address}&embed=figure,panel",
            "causal checks": self.address.replace("?", "/causal?"),
            "unit": f"/models/{SLUG}/units/L0.u3",
            "a unit's JSON": f"/models/{SLUG}/units/L0.u3.json",
            "head": f"/models/{SLUG}/heads/L1.h0",
            "layer": f"/models/{SLUG}/layers/0",
            "layer, named by people": f"/models/{SLUG}/layers/0?human=1",
            "model": f"/models/{SLUG}",
            "models": "/models",
            "notes": f"/models/{SLUG}/notes",
            "note": f"/models/{SLUG}/notes/L0.u3",
            "search": "/search?q=negation",
            "search by token": "/search?q=%22it%22",
            "compare": f"/compare?left={self.address.replace('?', '%3F').replace('&', '%26')}"
            f"&right={other.replace('?', '%3F').replace('&', '%26')}",
            "compare, nothing chosen": "/compare",
            "monitors": "/monitors",
            "monitor": self.monitor,
            "a monitor's JSON": f"{self.monitor}.json",
            "stream": f"{self.monitor}/streams/1",
            "collections": "/findings",
            "collection": "/findings/1",
            "a collection's JSON": "/findings/1.json",
            "jobs": "/jobs",
            "job": "/jobs/1",
            "runs": "/runs",
            "run": "/runs/one",
        }


@pytest.fixture(scope="module")
def rows(scanned: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rows]:
    root = tmp_path_factory.mktemp("counts")
    make_run(root / "runs" / "one")
    patch = pytest.MonkeyPatch()
    without_shipped(patch)
    site = open_site(root / "data", scanned, runs=(str(root / "runs"),))
    address = site.read("it was the best of times")
    fields = {"name": "of times", "model": SLUG, "conditions": "L1.p2.A above 0.35\nL0.u3", "gate": "none"}
    monitor = site.client.post("/monitors", data=fields).headers["location"]
    site.client.post(f"{monitor}/streams", data={"text": "it was the best of times it was the worst " * 4})
    for path in ("units/L0.u3", "heads/L1.h0"):
        site.client.get(f"/models/{SLUG}/{path}")
    site.client.get(address.replace("?", "/causal?"))
    site.client.get("/search?q=negation")
    site.work()
    yield Rows(site, address, monitor)
    site.services.close()
    patch.undo()


def test_a_page_asks_no_more_often_where_there_is_more(rows: Rows) -> None:
    def statements() -> dict[str, list[str]]:
        """Of every page, made anew: nothing kept, and the checkpoints just looked at."""
        found = {}
        for kind, address in rows.pages().items():
            rows.site.client.get(address)  # it may begin what it then finds
            rows.site.forget_pages()
            rows.site.client.app.state.kept_pages.clear()  # type: ignore[attr-defined]
            rows.site.services.catalogue.refresh()
            with counted(rows.site) as asked:
                answer = rows.site.client.get(address, follow_redirects=True)
            assert answer.status_code == 200, kind
            found[kind] = asked
        return found

    rows.grow(FEW)
    few = statements()
    rows.grow(MANY)
    many = statements()
    more = {kind: (len(few[kind]), len(asked)) for kind, asked in many.items() if len(asked) != len(few[kind])}
    assert not more
    assert len(few["collection"]) > 1, "statements are counted"
    text = rows.site.client.get("/findings/1").text
    assert text.count("<li>") >= 2 * MANY, "what was added is on the page"
    assert "Components have the names of the newest scan, not those of the day this was written." in text
