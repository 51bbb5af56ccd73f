"""What can go wrong with a server, as types; the message is the server's own sentence where it said one."""

from __future__ import annotations


class ClientError(Exception):
    """`message` is one sentence, `code` the server's word for it, `hint` what to do, `status` the HTTP status."""

    def __init__(
        self, message: str, *, code: str = "client", hint: str | None = None, status: int | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.hint = hint
        self.status = status

    def __str__(self) -> str:
        return f"{self.message} {self.hint}" if self.hint else self.message


class Refused(ClientError):
    """The server understood and refused (4xx): a prompt that is too long, a token that splits, a missing token."""


class Unknown(Refused):
    """A checkpoint, reading, component or page that the server does not have (404)."""


class ServerFailed(ClientError):
    """The server failed (5xx) or answered with something that is not its JSON, after every retry."""


class Unreachable(ClientError):
    """No answer: nothing listens there, or the connection broke, after every retry that was allowed."""


class TimedOut(ClientError):
    """A job had not ended within the time given; it goes on, and asking again goes on waiting for the same one."""


class JobFailed(ClientError):
    """The job ended without a result: failed (its reason is the message) or cancelled."""
