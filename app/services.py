"""What a page may use: the settings, the store, the job queue, the checkpoints and the tokenizers of this process.

    @router.get("/models/{slug}")
    def model(slug: str, services: Annotated[Services, Depends(services)]) -> Response: ...

`request.app.state.services` is the same object. Nothing here imports torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastapi import Request

if TYPE_CHECKING:
    from app.catalogue import Catalogue
    from app.jobs import Queue
    from app.settings import Settings
    from app.store import Store


@dataclass(frozen=True, slots=True)
class Services:
    """The web process's long-lived objects; all are safe to use from the thread pool."""

    settings: Settings
    store: Store
    queue: Queue
    catalogue: Catalogue


def services(request: Request) -> Services:
    """FastAPI dependency: the services of the running application."""
    found: Services = request.app.state.services
    return found
