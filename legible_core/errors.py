"""Errors that reach a person: one clear sentence, the same body in HTML, JSON and the terminal."""

from __future__ import annotations

from typing import Any


class LegibleError(Exception):
    """What was wrong, what is allowed, what to do, in one sentence.

    `code` is a stable machine-readable word, `hint` an optional further step, `status` the HTTP status that the
    web process answers with.
    """

    code = "invalid"
    status = 400

    def __init__(
        self, message: str, *, code: str | None = None, hint: str | None = None, status: int | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        if code is not None:
            self.code = code
        if status is not None:
            self.status = status

    def body(self) -> dict[str, Any]:
        """The error body that HTML, JSON and CLI share."""
        return {"error": {"code": self.code, "message": self.message, "hint": self.hint}}


class NotFound(LegibleError):
    """A checkpoint, component, reading or file that does not exist."""

    code = "not_found"
    status = 404


class TooLarge(LegibleError):
    """Input over a stated limit."""

    code = "too_large"
    status = 413


class Conflict(LegibleError):
    """The request contradicts what is already stored."""

    code = "conflict"
    status = 409


class Corrupt(LegibleError):
    """A checkpoint, card or stored row that does not hold what it claims."""

    code = "corrupt_checkpoint"
    status = 422


class NotExact(LegibleError):
    """A reading whose terms do not sum to the logit within tolerance; both numbers are in the message."""

    code = "not_exact"
    status = 500


class Unavailable(LegibleError):
    """A resource (disk, database, worker) that cannot serve the request now."""

    code = "unavailable"
    status = 503
