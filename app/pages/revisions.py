"""What code made a stored reading: said on its page where it is not the present one, with the way to the difference.

    revised(services, urls, slug, stored, chosen)      # the line above the reading; None where nothing needs saying
    job_of_revision(job, newest, digest, revision)     # the job behind ?revision=N that is not stored

A revision is never changed; reading again under other code adds one, and `?revision=` opens each (app/pages/again.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from app.jobs import Job
from app.pages.reading_view import Chosen
from app.services import Services
from app.store_types import StoredReading
from app.urls import Urls
from legible_core import __version__
from legible_core.errors import NotFound


@dataclass(frozen=True, slots=True)
class Revised:
    """One sentence, the form's address where the present code has not read this yet, and links: (text, address)."""

    said: str
    again: str | None
    links: tuple[tuple[str, str], ...]


def revised(services: Services, urls: Urls, slug: str, stored: StoredReading, chosen: Chosen) -> Revised | None:
    """None for the only revision of a reading, made by the present code."""
    found = services.store.revisions(stored)
    newest = found[-1] if found else None
    if newest is None or (len(found) == 1 and stored.code_version == __version__):
        return None

    def address(revision: int | None) -> str:
        return urls.reading(slug, stored.digest, **{**chosen.query(), "revision": revision})

    links = []
    if stored.revision != newest.revision:
        said = f"This is revision {stored.revision} of {newest.revision}, made by Legible {stored.code_version}."
        links = [
            ("the newest", address(None)),
            ("the difference", difference(urls, address(stored.revision), address(newest.revision))),
        ]
    else:
        made = "older" if _older(stored.code_version) else "other"
        said = (
            f"Revision {stored.revision}, made by Legible {stored.code_version}."
            if stored.code_version == __version__
            else f"This reading was made by {made} code, Legible {stored.code_version}; this is {__version__}."
        )
        if len(found) > 1:
            before = found[-2]
            earlier = f"revision {before.revision}, by Legible {before.code_version}"
            links = [
                (earlier, address(before.revision)),
                ("what changed", difference(urls, address(before.revision), address(stored.revision))),
            ]
    query = {**chosen.query(), "component": None, "revision": None}
    again = urls.reading_part(slug, stored.digest, "again", **query) if newest.code_version != __version__ else None
    return Revised(said, again, tuple(links))


def difference(urls: Urls, left: str, right: str) -> str:
    """Two revisions side by side."""
    return urls.compare(left=left, right=right)


def revisions_json(services: Services, stored: StoredReading) -> dict[str, Any]:
    """What the JSON twin says of the row that the reading was taken from."""
    return {
        "revision": stored.revision,
        "code_version": stored.code_version,
        "present_version": __version__,
        "revisions": services.store.revisions(stored),
    }


def job_of_revision(job: Job | None, newest: StoredReading | None, digest: str, revision: int) -> Job:
    """The job that makes the revision after the newest; `NotFound` for any other that is not stored."""
    if newest is None:
        raise NotFound(
            f"The reading {digest[:12]} is not stored, so it has no revision {revision}.",
            hint="Leave the revision out of the address to read it.",
        )
    if job is None or job.state == "done" or revision != newest.revision + 1:
        has = "only revision 1" if newest.revision == 1 else f"revisions 1 to {newest.revision}"
        raise NotFound(
            f"The reading {digest[:12]} has no revision {revision}; it has {has}.",
            hint="Leave the revision out of the address for the newest. Reading again adds one where the worker runs "
            "other code than the newest was made by.",
        )
    return job


def _older(version: str) -> bool:
    """Whether a version lies before the present one; False where one of the two is no plain number."""
    try:
        return [int(part) for part in version.split(".")] < [int(part) for part in __version__.split(".")]
    except ValueError:
        return False
