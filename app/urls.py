"""The only builder of addresses: every link, redirect and form goes through `Urls`, so a root path needs no thought.

urls = urls_for(request)
urls.reading("novel-legible", digest, position=11, target=1234)   # defaults are left out, not written as empty
urls.json(urls.model("novel-legible"))                            # the .json twin of any page
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode, urlsplit, urlunsplit

if TYPE_CHECKING:
    from starlette.requests import Request


@dataclass(frozen=True, slots=True)
class Urls:
    """Addresses under one root path ("" or "/prefix")."""

    root_path: str = ""

    def home(self, **query: object) -> str:
        return self._url((), query)

    def models(self) -> str:
        return self._url(("models",), {})

    def model(self, slug: str, **query: object) -> str:
        return self._url(("models", slug), query)

    def model_figure(self, slug: str, figure: str, form: str) -> str:
        """A figure's data; `form` is csv or json."""
        return self._url(("models", slug, "figures", f"{figure}.{form}"), {})

    def accounted(self, slug: str, table: str) -> str:
        """The numbers of a table of the accounting, without the ending .csv or .json."""
        return self._url(("models", slug, "accounting", table), {})

    def scans(self, slug: str) -> str:
        """Where the model page's form posts a scan to."""
        return self._url(("models", slug, "scans"), {})

    def against_parent(self, slug: str) -> str:
        """Where a child's form posts a prompt to, to be compared with its parent."""
        return self._url(("models", slug, "against-parent"), {})

    def layer(self, slug: str, layer: int, **query: object) -> str:
        return self._url(("models", slug, "layers", layer), query)

    def head(self, slug: str, head: object, **query: object) -> str:
        """`head` is a component id such as L6.h4."""
        return self._url(("models", slug, "heads", head), query)

    def unit(self, slug: str, unit: object, **query: object) -> str:
        """`unit` is a component id such as L11.u39."""
        return self._url(("models", slug, "units", unit), query)

    def unit_context(self, slug: str, unit: object, component: object, place: int) -> str:
        """Where to post to read a context that a scan kept."""
        return self._url(("models", slug, "units", unit, "contexts", component, place), {})

    def unit_figure(self, slug: str, unit: object, figure: str) -> str:
        """The numbers of a figure of a unit's page, without the ending .csv or .json."""
        return self._url(("models", slug, "units", unit, "figures", figure), {})

    def new_reading(self, slug: str) -> str:
        """Where the prompt box posts to."""
        return self._url(("models", slug, "readings"), {})

    def reading(
        self,
        slug: str,
        digest: str,
        *,
        position: int | None = None,
        target: int | None = None,
        contrast: int | None = None,
        relative_to: str | None = None,
        **query: object,
    ) -> str:
        """The permalink. `position` is 0-based, `target` and `contrast` are token ids."""
        explicit = {"position": position, "target": target, "contrast": contrast, "relative_to": relative_to}
        return self._url(("models", slug, "readings", digest), {**explicit, **query})

    def reading_part(self, slug: str, digest: str, part: str, **query: object) -> str:
        """Something below a reading: a panel, `delete`, `collect`, `csv`."""
        return self._url(("models", slug, "readings", digest, part), query)

    def why(self, slug: str, digest: str, operand: object, *, at: int | None = None, **query: object) -> str:
        """Why an operand of a stored prompt was on at a position, such as L5.p39.A at 11."""
        return self._url(("models", slug, "readings", digest, "why", operand), {"at": at, **query})

    def bounds(self, slug: str, digest: str, unit: object, **query: object) -> str:
        """What holds of a unit by construction at a prediction: `position`, `target`, `radius` of a box."""
        return self._url(("models", slug, "readings", digest, "bounds", unit), query)

    def values(self, slug: str, digest: str | None = None, *parts: str, **query: object) -> str:
        """Components over a text: the form, or a stored text by its digest."""
        return self._url(("models", slug, "values", *(() if digest is None else (digest, *parts))), query)

    def compare(self, form: str = "", **query: object) -> str:
        """Two readings side by side; `left` and `right` are permalinks, `form` is json or csv."""
        return self._url((f"compare.{form}" if form else "compare",), query)

    def generate(self, slug: str, digest: str | None = None, *parts: str, **query: object) -> str:
        """A checkpoint goes on with a text: the form, or the continuation of a stored text by its digest."""
        return self._url(("models", slug, "generate", *(() if digest is None else (digest, *parts))), query)

    def edit_lab(self, slug: str) -> str:
        """The experiments on edits that were made on a checkpoint."""
        return self._url(("models", slug, "edit-lab"), {})

    def pairs(self, slug: str, form: str = "", **query: object) -> str:
        """Minimal pairs: `good` and `bad` are the sentences, `form` is json, or delete where a form posts to."""
        tail = ("pairs.json",) if form == "json" else ("pairs", form) if form else ("pairs",)
        return self._url(("models", slug, *tail), query)

    def notes(self, slug: str, *parts: object) -> str:
        """What people say of a checkpoint; of a component (its form and history); `votes` of it; `import`."""
        return self._url(("models", slug, "notes", *parts), {})

    def findings(self, id: int | None = None, *parts: str, **query: object) -> str:
        """The collections, or one of them; `edit`, `add` and `delete` below it; `add_finding` chooses one."""
        return self._url(("findings", *(() if id is None else (id, *parts))), query)

    def add_finding(self, item: str) -> str:
        """Where something (by its address) is put into a collection."""
        return self._url(("findings", "add"), {"item": item})

    def monitors(self, id: int | None = None, *parts: object, **query: object) -> str:
        """The monitors, or one of them; below it `edit`, `delete` and its `streams`, each with `text`, `hits`, ..."""
        return self._url(("monitors", *(() if id is None else (id, *parts))), query)

    def search(self, **query: object) -> str:
        """`q` is what was typed, `side` promote or detect, `page` from 2 on."""
        return self._url(("search",), query)

    def help(self, word: str = "") -> str:
        """The glossary; `word` is the anchor of an entry."""
        return self._url(("help",), {}) + (f"#{quote(word)}" if word else "")

    def jobs(self, **query: object) -> str:
        return self._url(("jobs",), query)

    def job(self, job_id: int, **query: object) -> str:
        return self._url(("jobs", job_id), query)

    def job_part(self, job_id: int, part: str) -> str:
        """`cancel`, `retry` or `state` (what a waiting page polls)."""
        return self._url(("jobs", job_id, part), {})

    def runs(self) -> str:
        return self._url(("runs",), {})

    def run(self, name: str) -> str:
        return self._url(("runs", name), {})

    def run_part(self, name: str, part: str, **query: object) -> str:
        """`now` and `layers` (what a run's page polls) or `csv`."""
        return self._url(("runs", name, part), query)

    def static(self, name: str) -> str:
        """A static file; the query holds its content hash, so that it may be cached for ever."""
        return self._url(("static", *name.split("/")), {"v": _content_hash(name)})

    def json(self, url: str) -> str:
        """The .json twin of a page's address."""
        parts = urlsplit(url)
        path = parts.path.rstrip("/")
        path = f"{path}/index.json" if path == self.root_path else f"{path}.json"
        return urlunsplit(parts._replace(path=path))

    def _url(self, segments: tuple[object, ...], query: dict[str, object]) -> str:
        path = "/".join(quote(str(segment), safe="") for segment in segments)
        pairs = [(key, value) for key, value in query.items() if value is not None]
        return f"{self.root_path}/{path}" + (f"?{urlencode(pairs)}" if pairs else "")


def urls_for(request: Request) -> Urls:
    """The builder under the request's own root path."""
    return Urls(str(request.scope.get("root_path", "")).rstrip("/"))


@lru_cache(maxsize=256)
def _content_hash(name: str) -> str | None:
    from app.paths import static_dir

    path = static_dir().joinpath(*name.split("/"))
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12] if path.is_file() else None
