"""The pages of monitors: made, edited, watched with, followed as NDJSON, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from page_samples import SLUG, Site, make_checkpoint, open_site, parsed, sample_text

from app.pages import monitor_streams, monitors
from app.pages.home import legible_shares
from legible_client import Client
from legible_core.config import FeedForward
from legible_core.drift import Counted, drift
from legible_core.hits import context_text
from legible_core.naming.names import Names
from legible_core.tokens import Tokenizer
from legible_core.units import parse

TEXT = sample_text(5, 200)
FIELDS = {"name": "of <b>times</b>", "model": SLUG, "conditions": "L1.p2.A above 0.35\nL0.u3\n", "gate": "none"}


def make(site: Site, **more: str) -> str:
    answer = site.client.post("/monitors", data={**FIELDS, **more})
    assert answer.status_code == 303, answer.text
    return str(answer.headers["location"])


def watch(site: Site, monitor: str, **form: str) -> str:
    answer = site.client.post(f"{monitor}/streams", data=form)
    assert answer.status_code == 303, answer.text
    return str(answer.headers["location"])


def visible(html: str) -> str:
    return " ".join("".join(parsed(html).text).split())


def lines(site: Site, stream: str, **query: object) -> list[dict[str, Any]]:
    answer = site.client.get(f"{stream}/hits", params={"wait": 0, **query})
    assert answer.headers["content-type"].startswith("application/x-ndjson")
    return [json.loads(line) for line in answer.text.splitlines()]


def test_a_monitor_is_made_used_edited_and_deleted(site: Site) -> None:
    assert "The first one" in visible(site.client.get("/monitors").text)
    monitor = make(site)
    assert "Nothing was read yet." in visible(site.client.get(monitor).text)
    stream = watch(site, monitor, text=TEXT)
    waiting = site.client.get(stream)
    assert 'hx-trigger="every' in waiting.text
    assert site.client.get(f"{stream}.json").status_code == 202
    assert lines(site, stream) == [
        {"progress": {"tokens": 0, "hits": 0, "kept": 0}},
        {"again": f"{stream}/hits?after=-1"},
    ]
    site.work()
    data = site.client.get(f"{stream}.json").json()
    assert data["complete"] is True
    assert data["tokens"] == len(site.services.tokenizers.call("encode", site.checkpoint.tokenizer_path, TEXT))
    assert 0 < data["kept"] <= data["hits"] < data["tokens"]
    assert sum(span["count"] for span in data["spans"]) == data["kept"]
    page = site.client.get(stream)
    assert 'hx-trigger="every' not in page.text
    assert page.text.count('<b class="t a') == data["kept"]
    assert "<b>times" not in page.text
    for address in ("/monitors", monitor, f"{monitor}/edit", stream):
        shown = site.client.get(address)
        assert shown.status_code == 200
        assert "<b>times</b>" in visible(shown.text) or address.endswith("edit")
    found = site.client.get(f"{monitor}.json").json()
    assert (found["tokens"], found["hits"]) == (data["tokens"], data["hits"])
    assert sum(bucket["hits"] for bucket in found["buckets"]) == data["hits"]
    listed = site.client.get("/monitors.json").json()["monitors"]
    assert [(m["name"], m["hits"], m["streams"]) for m in listed] == [(FIELDS["name"], data["hits"], 1)]
    edited = {**FIELDS, "conditions": "L1.p2.A above 0.4", "gate": "stop", "revision": "1"}
    assert site.client.post(monitor, data=edited).headers["location"] == monitor
    assert "A hit stops the text" in visible(site.client.get(monitor).text)
    late = site.client.post(monitor, data=edited)
    assert late.status_code == 409
    assert "Someone changed this monitor (revision 2)" in visible(late.text)
    assert site.client.post(f"{stream}/delete").headers["location"] == monitor
    assert site.client.get(stream).status_code == 404
    assert site.client.post(f"{monitor}/delete").headers["location"] == "/monitors"
    assert site.client.get(monitor).status_code == 404


def test_drift_is_tested_against_the_scan_and_says_what_it_assumes(site: Site) -> None:
    monitor = make(site, conditions="L0.p1.A above 0.2\nL0.u1\nL1.u47\nL1.h0")
    watch(site, monitor, text=TEXT)
    watch(site, monitor, text="it was", generate="4")
    site.work()
    rows = {row["component"]: row for row in site.client.get(f"{monitor}.json").json()["drift"]}
    names = Names.load(site.checkpoint.path)
    assert names is not None
    assert rows["L0.p1.A"]["expected"] == names.operand(parse("L0.p1.A")).on
    assert rows["L0.u1"]["expected"] == names.component(parse("L0.u1")).on
    tokens = len(site.services.tokenizers.call("encode", site.checkpoint.tokenizer_path, TEXT))
    for name in ("L0.p1.A", "L0.u1"):
        found = rows[name]["found"]
        assert found["tokens"] == tokens, "what the checkpoint wrote is left out"
        again = drift(rows[name]["expected"], [Counted(tokens, found["on"])])
        assert again is not None
        assert (found["p"], found["method"]) == (again.p, "binomial")
        assert found["adjusted"] >= found["p"]
    for name in ("L1.u47", "L1.h0"):
        assert rows[name]["found"] is None
        assert "no rails" in rows[name]["why"]
    assert "exact binomial" in visible(site.client.get(monitor).text)


def test_pieces_are_accepted_followed_and_closed(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monitor = make(site)
    stream = watch(site, monitor, open="1")
    assert site.services.queue.list() == []
    data = TEXT.encode()
    for start, last in ((0, 0), (401, 0), (777, 1)):
        stop = {0: 401, 401: 777, 777: len(data)}[start]
        answer = site.client.post(
            f"{stream}/text", params={"last": last}, content=data[start:stop],
            headers={"content-type": "text/plain"},
        )  # fmt: skip
        assert answer.status_code == 202
        assert answer.json()["received"] == stop
        site.work()
    monkeypatch.setattr(monitor_streams, "FOLLOWED", 7)
    found = lines(site, stream)
    hits = [line["hit"] for line in found if "hit" in line]
    summary = found[-1]["summary"]
    assert [hit["token"] for hit in hits] == sorted({hit["token"] for hit in hits})
    assert len(hits) == summary["kept"]
    for hit in hits:
        assert data[hit["offset"] :].startswith(hit["text"].encode())
        assert TEXT[: len(data[: hit["offset"]].decode())].endswith(hit["context"][: -len(hit["text"])])
    middle = hits[3]["token"]
    assert [line["hit"] for line in lines(site, stream, after=middle) if "hit" in line] == hits[4:]
    assert site.client.post(f"{stream}/text", content=b"more").status_code == 409
    other = watch(site, monitor, open="1")
    assert "It is open for more text." in visible(site.client.get(other).text)
    assert site.client.post(f"{other}/close").status_code == 303
    site.work()
    assert site.client.get(f"{other}.json").json()["complete"] is True


def test_offsets_and_contexts_are_those_of_the_text_that_a_form_sent(site: Site) -> None:
    monitor = make(site, conditions="L1.h0 above 0")
    text = "it\r\n🙂 best\r\n\r\nit"
    sent = text.encode()
    tokenizer = Tokenizer.load(site.checkpoint.tokenizer_path)
    read = tokenizer.encode(text)
    assert "\ufffd" in "".join(tokenizer.text(index) for index in read), "a character is in several tokens"
    for form in ({"text": text}, {"text": text, "generate": "3"}):
        stream = watch(site, monitor, **form)
        site.work()
        hits = [line["hit"] for line in lines(site, stream) if "hit" in line]
        assert [hit["id"] for hit in hits[: len(read)]] == read
        for hit in hits[: len(read)]:
            there = sent[hit["offset"] :].replace(b"\r\n", b"\n")
            assert there.startswith(tokenizer.token_bytes(hit["id"])), hit
        for place, hit in enumerate(hits):
            assert hit["context"] == context_text(tokenizer, [row["id"] for row in hits[: place + 1]])
        assert hits[len(read) - 1]["context"] == text.replace("\r\n", "\n")
        assert [hit["offset"] for hit in hits[len(read) :][:1]] == [len(sent)] * ("generate" in form)


def test_totals_are_those_of_all_streams_and_the_page_says_what_is_of_the_newest(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monitor = make(site, conditions="L1.h0 above 0")
    for _ in range(3):
        watch(site, monitor, text="it was the best")
    site.work()
    monkeypatch.setattr(monitors, "STREAMS", 2)
    data = site.client.get(f"{monitor}.json").json()
    [line] = site.client.get("/monitors.json").json()["monitors"]
    assert (data["tokens"], data["hits"]) == (line["tokens"], line["hits"])
    assert data["tokens"] == 3 * data["streams"][0]["tokens"] == data["hits"] == data["kept"]
    assert (data["streams_in_all"], len(data["streams"])) == (3, 2)
    assert "the newest 2 of 3 streams" in visible(site.client.get(monitor).text)
    assert "100 % at the tallest" in visible(site.client.get(monitor).text)


def test_an_edit_without_a_usable_revision_says_which_field(shared: Site) -> None:
    monitor = make(shared, name="revised")
    told = {"accept": "application/json"}
    missing = shared.client.post(monitor, data={**FIELDS, "name": "revised"}, headers=told)
    assert (missing.status_code, "The field revision is missing" in missing.json()["error"]["message"]) == (422, True)
    for address in (monitor, "/monitors"):
        for typed in ("9" * 5000, "٣", "-1", "x"):
            answer = shared.client.post(address, data={**FIELDS, "revision": typed}, headers=told)
            assert (answer.status_code, answer.json()["error"]["code"]) == (422, "bad_revision")


def test_a_failed_or_cancelled_job_is_told_to_who_follows(site: Site) -> None:
    stream = watch(site, make(site), text=TEXT)
    job = site.services.queue.list()[0]
    site.client.post(f"/jobs/{job.id}/cancel", data={"back": stream})
    assert lines(site, stream)[-1]["error"]["code"] == "cancelled"
    assert "try again" in visible(site.client.get(stream).text)
    assert "watch stream" in visible(site.client.get("/jobs").text)


def test_a_gate_edits_what_is_generated_and_the_page_says_where(site: Site) -> None:
    monitor = make(site, conditions="L1.h1 above 0", gate="edit", edits="L1.u3:scale=-4\n")
    stream = watch(site, monitor, text="it was the", generate="5")
    site.work()
    data = site.client.get(f"{stream}.json").json()
    assert data["written"]
    assert len(data["edited"]) >= 1
    assert "The gate edited the pass at" in visible(site.client.get(stream).text)
    assert "L1.u3:scale=-4" in site.client.get(f"{monitor}/edit").text


@pytest.mark.parametrize(
    ("more", "status", "said"),
    [
        ({"conditions": "L1.p2.A above 0.9\nL1.p2.A below 0.1"}, 422, "contradict each other"),
        ({"conditions": "L1.u2 above 0.9\nL1.p2.A below 0.5"}, 422, "contradict each other"),
        ({"conditions": "L7.u2 above 0.9"}, 404, "tiny: There is no layer 7"),
        ({"conditions": "whatever"}, 400, "no component id"),
        ({"conditions": "L1.u2 over 3"}, 422, "is no condition"),
        ({"conditions": "L1.u2 above ٣"}, 422, "is no condition"),
        ({"conditions": "L1.u2 above 0.5 for ٣"}, 422, "is no condition"),
        ({"conditions": ""}, 422, "at least one condition"),
        ({"name": " "}, 422, "name must be"),
        ({"model": "nobody"}, 404, "nobody"),
        ({"gate": "edit", "edits": "L1.u2:nothing"}, 400, "edit"),
        ({"gate": "edit", "edits": "L9.u2:zero"}, 400, "layer 9"),
        ({"gate": "open"}, 422, "no gate"),
    ],
)  # fmt: skip
def test_what_cannot_be_a_monitor_is_refused_beside_what_was_typed(
    shared: Site, more: dict[str, str], status: int, said: str
) -> None:
    answer = shared.client.post("/monitors", data={**FIELDS, **more})
    assert (answer.status_code, said in visible(answer.text)) == (status, True), visible(answer.text)
    assert more.get("conditions", "L1.p2.A above 0.35").strip() in answer.text
    program = shared.client.post("/monitors", data={**FIELDS, **more}, headers={"accept": "application/json"})
    assert (program.status_code, said in program.json()["error"]["message"]) == (status, True)


def test_the_form_begins_with_a_checkpoint_that_its_examples_fit(shared: Site, tmp_path: Path) -> None:
    plain = make_checkpoint(tmp_path / "models", "all-gelu", scan=False, units=FeedForward(48))
    own = open_site(tmp_path / "data", plain)
    assert not re.search(r"<option selected>all-gelu", own.client.get("/monitors").text)
    own.services.store.add_checkpoint(SLUG, shared.checkpoint.hash, str(shared.checkpoint.path))
    own.services.catalogue.refresh()
    [chosen] = re.findall(r"<option selected>([^<]+)<", own.client.get("/monitors").text)
    shares = [dict(legible_shares(c)).get("operands nameable", 0.0) for c in own.services.catalogue.checkpoints()]
    found = own.services.catalogue.get(chosen)
    assert found.config.feed_forward.n_pairs > 0
    assert dict(legible_shares(found))["operands nameable"] >= 0.9 * max(shares)
    assert "<option selected>all-gelu<" in own.client.get("/monitors?model=all-gelu").text
    refused = own.client.post("/monitors", data={**FIELDS, "model": "all-gelu", "conditions": "L1.p2.A above 0.9"})
    assert "all-gelu: There is no operand L1.p2.A" in visible(refused.text)
    assert "<option selected>all-gelu<" in refused.text


def test_texts_and_addresses_that_are_refused(shared: Site) -> None:
    definition = {"name": "by a program", "conditions": [{"component": "L0.u1", "above": 0.5}]}
    made = shared.client.post("/monitors", data={"model": SLUG, "definition": json.dumps(definition)})
    monitor = made.headers["location"]
    assert shared.client.get(f"{monitor}.json").json()["definition"] == definition
    post, program = shared.client.post, {"accept": "application/json"}
    for place, form, code in (
        ("/monitors", {"model": SLUG, "definition": '{"name": "x"}'}, "bad_monitor"),
        ("/monitors", {"model": SLUG, "definition": json.dumps(definition), "name": "y"}, "bad_field"),
        (f"{monitor}/streams", {"text": "it", "open": "1", "generate": "2"}, "bad_field"),
        (f"{monitor}/streams", {"text": "it", "open": "yes"}, "bad_field"),
    ):
        answer = post(place, data=form, headers=program)
        assert (answer.status_code, answer.json()["error"]["code"]) == (422, code)
    moved = post(monitor, data={**FIELDS, "revision": "1", "model": "other"}, headers=program)
    assert (moved.status_code, "There is no checkpoint 'other'" in moved.text) == (404, True)
    assert post(f"{monitor}/streams", data={"text": ""}).status_code == 400
    for field, typed in (("generate", "x"), ("generate", "٣"), ("seed", "9" * 5000), ("temperature", "٣")):
        answer = post(f"{monitor}/streams", data={"text": "it", "generate": "2", field: typed})
        assert (answer.status_code, f"The field {field} is" in visible(answer.text)) == (400, True)
    assert post(f"{monitor}/streams", data={"text": "it was " * 100, "generate": "3"}).status_code == 413
    stream = watch(shared, monitor, open="1")
    assert post(f"{stream}/text", json={"a": 1}).status_code == 415
    assert post(f"{stream}/text", content=b"x" * ((1 << 20) + 1)).status_code == 413
    for address in ("/monitors/99", "/monitors/99999999999", f"{monitor}/streams/99", f"{monitor}/streams/99/hits"):
        assert shared.client.get(address).status_code == 404
    other = make(shared, name="another")
    assert shared.client.get(stream.replace(monitor, other)).status_code == 404
    assert shared.client.get(f"{stream}/hits", params={"wait": 1e9}).status_code == 422


def test_the_client_sends_pieces_and_yields_hits_and_the_summary(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monitor = make(site)
    client = Client("http://127.0.0.1:8321", sleep=lambda seconds: None)

    def send(path: str, body: bytes | None, kind: str = "application/x-www-form-urlencoded") -> tuple[int, str, bytes]:
        given = {"accept": "application/json"} | ({} if body is None else {"content-type": kind})
        answer = site.client.request("GET" if body is None else "POST", path, content=body, headers=given)
        site.work()
        return answer.status_code, answer.headers.get("location", ""), answer.content

    monkeypatch.setattr(client, "_send", send)
    found = list(client.watch(int(monitor.rsplit("/", 1)[1]), [TEXT[:300], TEXT[300:].encode()], wait=0))
    stream = site.services.monitors.streams(int(monitor.rsplit("/", 1)[1]))[0]
    assert [row["hit"]["token"] for row in found[:-1]] == [hit.token for hit in site.services.monitors.hits(stream.id)]
    assert found[-1]["summary"]["hits"] == stream.hits
