"""The two sides of a comparison: permalinks checked, readings found or submitted."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlsplit

from pydantic import ValidationError

from app.jobs import Job
from app.pages.asking import Prompt, find_prompt, read_key, submit_reading
from app.pages.reading_view import Chosen
from app.pages.readings import Asked, find_stored, request_of
from app.pages.revisions import job_of_revision
from app.services import Services
from app.store import StoredReading
from app.urls import Urls
from legible_core.errors import LegibleError, NotFound
from legible_core.registry import Checkpoint

MAX_ADDRESS = 600
_PATH = re.compile(r"/models/(?P<slug>[A-Za-z0-9_.-]{1,100})/readings/(?P<digest>[0-9a-f]{64})")
_NAMES = ("position", "target", "contrast", "relative_to", "component", "revision")
FORM = "/models/NAME/readings/DIGEST?position=…&target=…"


@dataclass(frozen=True, slots=True)
class Side:
    """One side: what its address names, and the reading where it is stored, else the job that makes it."""

    name: str
    slug: str
    prompt: Prompt
    asked: Asked
    checkpoint: Checkpoint | None
    stored: StoredReading | None
    job: Job | None

    @property
    def chosen(self) -> Chosen:
        """Everything explicit; only of a stored side."""
        assert self.stored is not None
        stored = self.stored
        component = self.asked.component or None
        return Chosen(
            stored.position, stored.target, stored.contrast, stored.relative_to, component, self.asked.revision
        )

    def address(self, urls: Urls) -> str:
        """The permalink, as explicit as it can be."""
        query = self.asked.explicit() if self.stored is None else self.chosen.query()
        return urls.reading(self.slug, self.prompt.digest, **query)


def permalink(urls: Urls, name: str, address: str) -> tuple[str, str, Asked]:
    """Slug, digest and query of a reading's address on this server.

    Raises LegibleError for anything else: another site's address, another page, or parts that no permalink has.
    """
    try:
        parts = urlsplit(address)
        pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        raise _foreign(name, address) from None
    path = parts.path.removeprefix(urls.root_path) if parts.path.startswith(f"{urls.root_path}/") else ""
    found = _PATH.fullmatch(path)
    ours = not parts.scheme and not parts.netloc and not parts.fragment and address.isprintable()
    if found is None or not ours or len(address) > MAX_ADDRESS:
        raise _foreign(name, address)
    for key in [key for key, _ in pairs]:
        if key not in _NAMES or [k for k, _ in pairs].count(key) > 1:
            raise LegibleError(
                f"The {name} address has {key[:40]!r}, unknown or twice; a reading's address names each of "
                f"{', '.join(_NAMES)} at most once.",
                code="bad_address",
            )
    try:
        asked = Asked.model_validate({key: value for key, value in pairs if value})
    except ValidationError as error:
        field = str(error.errors()[0]["loc"][0])
        raise LegibleError(
            f"The {name} address has an unusable {field}: {error.errors()[0]['msg'][:100]}.", code="bad_address"
        ) from None
    return found["slug"], found["digest"], asked


def look(services: Services, urls: Urls, name: str, address: str) -> Side:
    """A side by its address; a reading that is not stored yet is submitted, once.

    Raises NotFound when its prompt is unknown here, and LegibleError when its checkpoint cannot read what is asked.
    """
    slug, digest, asked = permalink(urls, name, address)
    try:
        prompt = find_prompt(services, digest)
    except NotFound:
        raise NotFound(
            f"The {name} reading, {digest[:12]}, is not here; it was deleted, or read on another machine.",
            hint="The other side still opens under its own address. The same prompt, read again, has the same address.",
        ) from None
    if not services.catalogue.names(slug, prompt.checkpoint_hash):
        slug = prompt.slug  # the slug moved to other weights, or never named these
    stored, job = find_stored(services, digest, asked), None
    checkpoint = _checkpoint(services, prompt.checkpoint_hash)
    if stored is None:
        request = request_of(prompt, asked)
        request.check(services.catalogue.get(prompt.checkpoint_hash).config)
        job = services.queue.find(read_key(request))
        if asked.revision is not None:
            newest = find_stored(services, digest, asked.model_copy(update={"revision": None}))
            return Side(
                name, slug, prompt, asked, checkpoint, None, job_of_revision(job, newest, digest, asked.revision)
            )
        if job is not None and job.state == "done":
            answered = asked.model_copy(update={"target": (job.result or {}).get("target")})
            stored = find_stored(services, digest, answered)
        if job is None or (job.state == "done" and stored is None):
            job = submit_reading(services, request, slug=prompt.slug, text=prompt.text)
    return Side(name, slug, prompt, asked, checkpoint, stored, job)


def _checkpoint(services: Services, checkpoint_hash: str) -> Checkpoint | None:
    """None when the checkpoint is gone, which does not stop a stored reading from being compared."""
    try:
        return services.catalogue.get(checkpoint_hash)
    except LegibleError:
        return None


def _foreign(name: str, address: str) -> LegibleError:
    return LegibleError(
        f"The {name} address {address[:80]!r} is no reading of this server; "
        f"give one of the form {FORM}, without a host.",
        code="bad_address",
    )
