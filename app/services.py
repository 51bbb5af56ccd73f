"""What a page may use: the settings, the store, the job queue, the checkpoints and the tokenizers of this process.

    @router.get("/models/{slug}")
    def model(slug: str, services: Annotated[Services, Depends(services)]) -> Response: ...

`request.app.state.services` is the same object. Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from starlette.requests import Request

from app.settings import Settings

if TYPE_CHECKING:
    from app.catalogue import Catalogue
    from app.collections import Collections
    from app.jobs import Queue
    from app.monitors import Monitors
    from app.notes import Notes
    from app.store import Store
    from legible_core.token_service import TokenizerService


@dataclass(frozen=True, slots=True)
class Services:
    """The process's long-lived objects; all are safe to use from the thread pool."""

    settings: Settings
    store: Store
    queue: Queue
    catalogue: Catalogue
    tokenizers: TokenizerService

    @property
    def notes(self) -> Notes:
        """What people say of components."""
        from app.notes import Notes

        return Notes(self.store.database)

    @property
    def collections(self) -> Collections:
        """Findings: readings and components in an order, with a text."""
        from app.collections import Collections

        return Collections(self.store.database)

    @property
    def monitors(self) -> Monitors:
        """Monitors, the texts under them, and what they flagged."""
        from app.monitors import Monitors

        return Monitors(self.store.database)

    def close(self) -> None:
        self.tokenizers.close()
        self.store.database.close()


def services(request: Request) -> Services:
    """FastAPI dependency: the services of the running application."""
    found: Services = request.app.state.services
    if "embed" in request.query_params and request.method in ("GET", "HEAD"):
        from app.reading_only import ReadingOnlyQueue

        # A page elsewhere may show what there is; it must not be able to make this server work.
        request.state.queue = ReadingOnlyQueue(found.queue)
        return replace(found, queue=request.state.queue)
    return found


def open_services(settings: Settings) -> Services:
    """Open the database (migrating it) and everything else; raises LegibleError when it cannot be used."""
    from app.catalogue import Catalogue
    from app.database import Database
    from app.jobs import Queue
    from app.store import Store
    from legible_core.token_service import TokenizerService

    database = Database.open(settings, migrate=True)
    store = Store(database)
    queue = Queue(database, lease_seconds=settings.lease_seconds, max_attempts=settings.max_attempts)
    return Services(settings, store, queue, Catalogue(store), TokenizerService())


@contextmanager
def opened(settings: Settings) -> Iterator[Services]:
    """The services for the length of a command: `with opened(Settings.load(data_dir=...)) as services`."""
    made = open_services(settings)
    try:
        yield made
    finally:
        made.close()
