"""What a form asks is read or refused: no field dropped, no value guessed, no byte replaced."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlencode

import pytest
from httpx import Response
from page_samples import SLUG, Site, parsed

from app.commands.models import add_checkpoint
from app.pages.asking import find_prompt
from legible_core.child import save_child
from legible_core.interventions_text import edit_text, parse_edit

FORM = {"content-type": "application/x-www-form-urlencoded", "accept": "application/json"}
JSON = {"accept": "application/json"}
PROMPT = "it was the best"
EDIT = "L1.u5:scale=3"
PLACES = ("/", f"/models/{SLUG}/readings")
READING = f"/models/{SLUG}/readings/{'0' * 64}"
# Every other form, with a field as it may be mistyped and the one that was meant.
FORMS = {
    "/compare": ("contrst", "contrast"),
    "/findings": ("item", "items"),
    "/findings/1": ("revisions", "revision"),
    "/findings/1/add": ("items", "item"),
    "/jobs/1/cancel": ("bak", "back"),
    "/jobs/1/retry": ("bak", "back"),
    "/monitors": ("condition", "conditions"),
    "/monitors/1": ("modell", "model"),
    "/monitors/1/streams": ("temprature", "temperature"),
    f"/models/{SLUG}/generate": ("token", "tokens"),
    f"/models/{SLUG}/notes/L1.u3": ("txt", "text"),
    f"/models/{SLUG}/notes/L1.u3/votes": ("casts", "cast"),
    f"/models/{SLUG}/pairs/delete": ("goods", "good"),
    f"/models/{SLUG}/scans": ("samples", "sample"),
    f"/models/{SLUG}/values": ("component", "components"),
    f"{READING}/collect": ("onn", "on"),
}
PART = b'--x\r\nContent-Disposition: form-data; name="%b"%b\r\n\r\n1\r\n'


def refusal(answer: Response) -> str:
    assert 400 <= answer.status_code < 500, answer.text
    return str(answer.json()["error"]["message"])


def visible(html: str) -> str:
    return " ".join("".join(parsed(html).text).split())


def edits_at(site: Site, address: str) -> list[str]:
    digest = address.partition("/readings/")[2][:64]
    return [edit_text(edit) for edit in find_prompt(site.services, digest).edits]


def test_every_prompt_form_reads_under_its_edits(site: Site, tmp_path: Path) -> None:
    for place in PLACES:
        answer = site.client.post(place, data={"prompt": PROMPT, "model": SLUG, "edits": EDIT})
        assert edits_at(site, answer.headers["location"]) == [EDIT]
    answer = site.client.post("/", data={"prompt": "", "model": SLUG, "example": "0", "edits": EDIT})
    assert edits_at(site, answer.headers["location"]) == [EDIT]
    saved = save_child(site.checkpoint, (parse_edit("L1.u3:zero"),), tmp_path / "quiet")
    add_checkpoint(site.services, saved.path, "quiet")
    answer = site.client.post("/models/quiet/against-parent", data={"prompt": PROMPT, "edits": EDIT})
    sides = answer.request.url.copy_with(raw_path=answer.headers["location"].encode()).params
    for side in ("left", "right"):
        assert edits_at(site, sides[side]) == [EDIT]
    for fields, words in (({"bos": "yes"}, "no begin-of-text token"), ({"chat": "1"}, "no chat template")):
        for place in (*PLACES, "/models/quiet/against-parent"):
            answer = site.client.post(place, data={"prompt": PROMPT, **fields}, headers=JSON)
            assert words in refusal(answer)
    answer = site.client.post(PLACES[1], data={"prompt": PROMPT, "model": "quiet"}, headers=JSON)
    assert f"names 'quiet', but this address reads {SLUG}" in refusal(answer)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"bos": "banana"}, "The field bos is 'banana'; send yes or no, or leave it out."),
        ({"chat": "0"}, "The field chat is '0'; send 1, or leave it out."),
        (
            {"edit": EDIT},
            "A prompt has no field 'edit'; did you mean edits? "
            "Its fields are prompt, model, example, edits, bos, chat.",
        ),
    ],
)
def test_an_unknown_field_or_value_is_refused_with_those_allowed(
    shared: Site, fields: dict[str, str], words: str
) -> None:
    for place in PLACES:
        assert refusal(shared.client.post(place, data={"prompt": PROMPT, **fields}, headers=JSON)) == words
    answer = shared.client.post(PLACES[1], data={"prompt": PROMPT, "example": "0"}, headers=JSON)
    assert "example is for the home page" in refusal(answer)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"prompt=%ff%fe%80", "bytes that are not UTF-8 text"),
        (b"prompt=\xff", "bytes that are not UTF-8 text"),
        (b"prompt=%e2%82&edits=", "bytes that are not UTF-8 text"),
        (b"prompt=a&prompt=b", "the field 'prompt' more than once"),
        (urlencode({f"f{n}": "" for n in range(21)}).encode(), "more than 20 fields; send at most 20"),
    ],
)
def test_a_form_that_would_be_read_as_another_text_is_refused(shared: Site, body: bytes, words: str) -> None:
    for place in PLACES:
        assert words in refusal(shared.client.post(place, content=body, headers=FORM))


@pytest.mark.parametrize(
    ("prompt", "status", "said"),
    [
        ("", 400, "The prompt is empty"),
        ("it was " * 200, 413, "this checkpoint reads at most 64"),
        ("x" * 1_100_000, 413, "the limit is 1,000,000 bytes"),
    ],
)  # fmt: skip
def test_prompts_that_cannot_be_read(shared: Site, prompt: str, status: int, said: str) -> None:
    before = len(shared.services.queue.list())
    answer = shared.client.post("/", data={"prompt": prompt, "model": SLUG})
    assert answer.status_code == status
    assert said in visible(answer.text)
    assert len(shared.services.queue.list()) == before


@pytest.mark.parametrize("number", ["99", "-1", "²", "9" * 5000])
def test_an_example_that_is_not_there(shared: Site, number: str) -> None:
    answer = shared.client.post("/", data={"example": number})
    assert answer.status_code == 404
    assert "There is no example" in visible(answer.text)


def test_a_form_of_utf_8_is_read_as_it_is(site: Site) -> None:
    text = "it was — é"
    sent = [urlencode({"prompt": text}).encode(), f"prompt={text}".replace(" ", "+").encode()]
    found = {site.client.post(PLACES[1], content=body, headers=FORM).headers["location"] for body in sent}
    parts = {"prompt": (None, text.encode())}
    found.add(site.client.post(PLACES[1], files=parts).headers["location"])
    assert len(found) == 1
    digest = found.pop().partition("/readings/")[2][:64]
    assert find_prompt(site.services, digest).text == text


@pytest.mark.parametrize(
    ("kind", "body", "words"),
    [
        ("application/json", b'{"prompt": "it was"}', "A prompt is sent as a form, not as application/json."),
        ("multipart/form-data", b"--x--", "without a boundary; name the boundary in the content type"),
        ("multipart/form-data; boundary=x", b"prompt=it", "send at most 20 parts, each with a name"),
        ("multipart/form-data; boundary=x", b"--x\r\nContent-Disposition: form-data\r\n\r\nit\r\n--x--", "with a name"),
        ("multipart/form-data; boundary=x", b"--x\r\n: form-data\r\n\r\nit\r\n--x--", "with a name"),
        (
            "multipart/form-data; boundary=x",
            b'--x\r\nContent-Disposition: form-data; name="prompt"; filename="a.txt"\r\n\r\nit\r\n--x--\r\n',
            "A prompt holds a file; send fields of text only.",
        ),
        (
            "multipart/form-data; boundary=x",
            b'--x\r\nContent-Disposition: form-data; name="prompt"\r\n\r\nit\xff\r\n--x--\r\n',
            "not UTF-8",
        ),
        (f"{FORM['content-type']}; charset=latin-1", b"prompt=it", "in the charset latin-1; send UTF-8."),
    ],
)
def test_a_form_that_cannot_be_read_says_what_is_allowed(
    shared: Site, kind: str, body: bytes, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    answer = shared.client.post(PLACES[1], content=body, headers={**JSON, "content-type": kind})
    assert words in refusal(answer)
    assert not [record for record in caplog.records if record.name.startswith("python_multipart")]


@pytest.mark.parametrize(("place", "fields"), FORMS.items())
def test_every_form_refuses_what_it_would_drop(shared: Site, place: str, fields: tuple[str, str]) -> None:
    wrong, right = fields
    said = f"has no field {wrong!r}; did you mean {right}? Its fields are "
    assert said in refusal(shared.client.post(place, data={wrong: "1"}, headers=JSON))
    page = shared.client.post(place, data={wrong: "1"})
    assert page.status_code == 422
    assert said in visible(page.text)
    parts = "multipart/form-data; boundary=x"
    field = PART % (right.encode(), b"")
    for kind, body, status, said in (
        ("application/json", b'{"prompt": "it was"}', 415, "is sent as a form, not as application/json."),
        (FORM["content-type"], f"{right}=1&{right}=2".encode(), 400, f"the field {right!r} more than once"),
        (FORM["content-type"], b"&".join(b"f%d=" % n for n in range(21)), 400, "send at most 20"),
        (parts, field, 400, "cannot be read as multipart/form-data; send at most 20 parts"),
        (parts, field * 21 + b"--x--\r\n", 400, "cannot be read as multipart/form-data; send at most 20 parts"),
        (parts, PART % (right.encode(), b'; filename="a"') + b"--x--\r\n", 400, "holds a file; send fields of text"),
    ):
        answer = shared.client.post(place, content=body, headers={**JSON, "content-type": kind})
        assert (answer.status_code, said in refusal(answer)) == (status, True), answer.text
    large = shared.client.post(place, content=b"x" * (4 << 20 | 1), headers=FORM)
    assert (large.status_code, large.json()["error"]["code"]) == (413, "too_large")


def test_the_list_of_jobs_refuses_a_filter_that_it_lacks(shared: Site) -> None:
    for address, said in (("/jobs?state=x", "has no filter"), ("/jobs.json?page=-1", "page")):
        answer = shared.client.get(address, headers=JSON)
        assert answer.status_code == 422
        assert said in refusal(answer)
    assert shared.client.get("/jobs").status_code == 200
