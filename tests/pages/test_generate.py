"""A text goes on: the model's own tokens, streamed, resumed after a lost worker, linked to readings, deleted."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from page_samples import SLUG, Site, links, parsed

from app.worker import Worker
from legible_core.checkpoint import load
from legible_core.generate import choose, continuation
from legible_core.sampling import Sampling

TEXT = "it was the best of"


def start(site: Site, prompt: str = TEXT, **settings: object) -> str:
    answer = site.client.post(f"/models/{SLUG}/generate", data={"prompt": prompt, **settings})
    assert answer.status_code == 303, answer.text
    return str(answer.headers["location"])


def data(site: Site, address: str) -> dict[str, object]:
    return dict(site.client.get(address.replace("?", ".json?")).json())


def visible(html: str) -> str:
    return " ".join("".join(parsed(html).text).split())


def test_greedy_tokens_are_the_models_own_and_each_leads_to_its_reading(site: Site) -> None:
    address = start(site, tokens=6)
    first = site.client.get(address)
    assert 'hx-trigger="every' in first.text
    assert site.client.get(address.replace("?", ".json?")).status_code == 202
    site.work()
    found = data(site, address)
    model = load(site.checkpoint)
    ids = site.services.tokenizers.call("encode", site.checkpoint.tokenizer_path, TEXT)
    rows: list[dict[str, object]] = found["tokens"]  # type: ignore[assignment]
    assert 1 <= len(rows) <= 6
    for row in rows:
        with torch.no_grad():
            assert row["id"] == int(model(torch.tensor([ids]))[0, -1].argmax())
        assert row["rank"] == 1
        ids.append(row["id"])
    page = site.client.get(address)
    assert 'hx-trigger="every' not in page.text
    for row in rows:
        reading = str(row["href"])
        assert reading in links(page.text)
        site.client.get(reading)
        site.work()
        twin = site.client.get(reading.replace("?", ".json?")).json()
        assert twin["target"]["id"] == row["id"]
        assert twin["target"]["probability"] == pytest.approx(row["probability"], rel=1e-4)
        assert twin["value"] == pytest.approx(row["value"], abs=1e-5)
        named = np.array(twin["units"])[:, : site.checkpoint.config.feed_forward.n_named]
        layer, unit = np.unravel_index(named.argmax(), named.shape)
        assert row["unit"] == f"L{layer}.u{unit}"
        assert row["term"] == pytest.approx(named.max(), abs=1e-5)


def test_the_same_seed_writes_the_same_and_another_does_not(site: Site) -> None:
    texts = []
    for seed in (1, 1, 2):
        address = start(site, tokens=12, temperature=1.5, seed=seed)
        assert "temperature=1.5&seed=" in address
        site.work()
        texts.append([row["id"] for row in data(site, address)["tokens"]])  # type: ignore[attr-defined]
    assert texts[0] == texts[1] != texts[2]
    assert len(site.services.queue.list()) == 2, "one continuation is one job"


def test_draws_follow_the_distribution_and_depend_on_seed_and_place_alone() -> None:
    logits = torch.tensor([0.0, 1.0, 2.0, -30.0])
    share = torch.softmax(logits / 0.7, 0)
    drawn = [choose(logits, Sampling(1, 0.7, seed), 3).id for seed in range(4000)]
    assert np.bincount(drawn, minlength=4) / 4000 == pytest.approx(share.numpy(), abs=0.03)
    assert choose(logits, Sampling(9, 0.7, 5), 3) == choose(logits, Sampling(4, 0.7, 5), 3)
    tie = choose(torch.tensor([1.0, 3.0, 3.0]), Sampling(1), 0)
    assert (tie.id, tie.rank) == (1, 1)


def test_a_lost_worker_is_gone_on_from_and_every_token_is_there_once(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.worker.PROGRESS_SECONDS", -1.0)
    address = start(site, tokens=8, temperature=1.0, seed=3)

    class Killed(BaseException):
        pass

    real = Worker.between_batches

    def dies(self: Worker, job: object, done: float | None, total: float | None) -> None:
        if done == 3:
            raise Killed
        real(self, job, done, total)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(Worker, "between_batches", dies)
        with pytest.raises(Killed):
            site.worker.work_once()
    page = site.client.get(address)
    assert page.text.count('<b class="t">') == 3, "what was written so far is in sight"
    site.services.queue.abandon(site.worker.id)
    asked: list[int] = []
    whole = continuation

    def counted(*given: object, **more: object) -> object:
        asked.append(len(more["done"]))  # type: ignore[arg-type]
        return whole(*given, **more)  # type: ignore[arg-type]

    monkeypatch.setattr("legible_core.generate.continuation", counted)
    site.work()
    assert asked == [3]
    rows = data(site, address)["tokens"]
    other = start(site, prompt=TEXT, tokens=9, temperature=1.0, seed=3)
    site.work()
    again = data(site, other)["tokens"]
    assert [row["id"] for row in rows] == [row["id"] for row in again][: len(rows)]  # type: ignore[attr-defined]


def test_cancelling_keeps_what_is_there_and_can_be_tried_again(site: Site) -> None:
    address = start(site)
    job = site.services.queue.list()[0]
    assert site.client.post(f"/jobs/{job.id}/cancel", data={"back": address}).headers["location"] == address
    page = site.client.get(address)
    assert "It was cancelled." in visible(page.text)
    twin = site.client.get(address.replace("?", ".json?"))
    assert twin.status_code == 422
    assert twin.json()["error"]["code"] == "cancelled"
    assert twin.json()["complete"] is False
    assert len(site.services.queue.list()) == 1, "looking does not start it again"
    site.client.post(f"/jobs/{job.id}/retry", data={"back": address})
    site.work()
    assert data(site, address)["complete"] is True


def test_deleting_forgets_the_text_the_continuation_and_its_readings(site: Site) -> None:
    address = start(site, prompt="a secret of hers", tokens=3)
    site.work()
    start(site, prompt="\0")
    start(site, prompt="   ")
    jobs = site.client.get("/jobs").text
    assert "go on with “⟨00⟩”" in jobs
    assert "go on with “···”" in jobs
    reading = str(data(site, address)["tokens"][0]["href"])  # type: ignore[index]
    site.client.get(reading)
    site.work()
    assert site.client.get(reading).status_code == 200
    assert "secret" in site.client.get("/jobs").text
    path = address.partition("?")[0]
    assert site.client.post(f"{path}/delete").status_code == 303
    for url in (address, address.replace("?", ".json?"), reading):
        assert site.client.get(url).status_code == 404
    assert "secret" not in site.client.get("/jobs").text + site.client.get("/").text


def test_it_ends_where_the_context_does_and_says_so(site: Site) -> None:
    address = start(site, prompt="it was " * 29, tokens=256)
    site.work()
    count = len(site.services.tokenizers.call("encode", site.checkpoint.tokenizer_path, "it was " * 29))
    rows = data(site, address)["tokens"]
    assert len(rows) <= 64 - count  # type: ignore[arg-type]
    assert "the context has no room for 256" in visible(site.client.get(address).text)


def test_an_end_of_text_ends_it() -> None:
    class Always:
        """A model that writes token 2 for ever."""

        token_embedding = torch.zeros(3, 1)

        def new_cache(self) -> None:
            return None

        def residual(self, ids: torch.Tensor, cache: object) -> torch.Tensor:
            return torch.zeros(1, ids.shape[1], 1)

        def logits(self, residual: torch.Tensor) -> torch.Tensor:
            return torch.tensor([0.0, 0.0, 1.0])

    model: object = Always()
    assert [w.id for w in continuation(model, [1], Sampling(5), stop={2})] == [2]  # type: ignore[arg-type]
    assert len(list(continuation(model, [1], Sampling(5)))) == 5  # type: ignore[arg-type]
    assert not list(continuation(model, [1], Sampling(5), done=[0, 2], stop={2}))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "status", "said"),
    [
        ({"prompt": ""}, 400, "The text is empty"),
        ({"prompt": "it was " * 100}, 413, "needs room for one more"),
        ({"prompt": "it", "tokens": "0"}, 400, "ask for 1 to 256"),
        ({"prompt": "it", "tokens": "x"}, 400, "is no number"),
        ({"prompt": "it", "temperature": "nan"}, 400, "is outside 0"),
        ({"prompt": "it", "temperature": "-1"}, 400, "is outside 0"),
        ({"prompt": "it", "seed": "-1"}, 400, "The seed -1 is outside"),
    ],
)  # fmt: skip
def test_what_is_refused_is_one_sentence(shared: Site, fields: dict[str, str], status: int, said: str) -> None:
    answer = shared.client.post(f"/models/{SLUG}/generate", data=fields)
    assert answer.status_code == status
    assert said in visible(answer.text)


def test_the_form_is_filled_in_and_addresses_are_checked(shared: Site) -> None:
    page = shared.client.get(f"/models/{SLUG}/generate", params={"prompt": "it <was>"})
    assert "it &lt;was&gt;" in page.text
    assert shared.client.get(f"/models/{SLUG}/generate/{'0' * 64}").status_code == 404
    address = start(shared, tokens=2)
    for query in ("tokens=0", "tokens=999", "temperature=nan", "temperature=9", "seed=-1", "seed=99999999999"):
        assert shared.client.get(f"{address.partition('?')[0]}?{query}").status_code == 422
