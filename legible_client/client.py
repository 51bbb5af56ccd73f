"""The client: addresses, requests with retries, and waiting for jobs. Needs the standard library and legible_core."""

from __future__ import annotations

import http.client
import ipaddress
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import IO, Any
from urllib.parse import quote, urlencode, urlsplit

from legible_client.errors import ClientError, JobFailed, Refused, ServerFailed, TimedOut, Unknown, Unreachable
from legible_core.interventions import Edit
from legible_core.interventions_text import as_edits, edit_text
from legible_core.reading import Reading

FIRST_WAIT, LONGEST_WAIT = 0.2, 5.0  # seconds between retries: doubled each time
FIRST_POLL, LONGEST_POLL = 0.05, 2.0  # seconds between looks at a job


@dataclass(frozen=True)
class Job:
    """How far a job is: `state` waiting, running, done, failed or cancelled; `place` in the line, 1 for the next."""

    id: int
    state: str
    stage: str | None = None
    place: int | None = None
    done: float | None = None
    total: float | None = None


Progress = Callable[[Job], None]


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect is looked at, never followed: the token goes to no other server."""

    def redirect_request(self, *_: Any) -> None:
        return None


class Client:
    """One server. `address` may hold a root path; `timeout` is for one answer, in seconds.

    A GET is tried `retries` times more when the server fails (5xx) or the connection breaks, with growing pauses; a
    POST never, so nothing happens twice. `token` is what `legible serve` printed; by default the environment's
    LEGIBLE_TOKEN.
    """

    def __init__(
        self,
        address: str = "http://127.0.0.1:8321",
        *,
        token: str | None = None,
        timeout: float = 30.0,
        retries: int = 4,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        parts = urlsplit(address)
        if parts.scheme not in ("http", "https") or not parts.netloc or parts.query or parts.fragment:
            raise ValueError(f"{address[:200]!r} is no server's address; give one such as http://127.0.0.1:8321.")
        self.origin = f"{parts.scheme}://{parts.netloc}"
        self.root = parts.path.rstrip("/")
        self.timeout = timeout
        self.retries = retries
        self._token = os.environ.get("LEGIBLE_TOKEN") if token is None else token
        self._sleep = sleep
        direct = [urllib.request.ProxyHandler({})] if _loopback(parts.hostname or "") else []
        self._opener = urllib.request.build_opener(_NoRedirect, *direct)

    # ---- what there is -----------------------------------------------------------------------------------------------

    def models(self) -> dict[str, Any]:
        """The checkpoints of the server, as its page of them says."""
        return self.page("/models")

    def model(self, slug: str) -> dict[str, Any]:
        """One checkpoint's page."""
        return self.page(f"/models/{quote(slug, safe='')}")

    def search(self, words: str, **query: object) -> dict[str, Any]:
        """Search the names of all checkpoints, as the box on every page does."""
        return self.page("/search?" + urlencode({"q": words, **query}))

    def page(self, address: str, *, timeout: float = 300.0, progress: Progress | None = None) -> dict[str, Any]:
        """The JSON of any page, by its address as the browser shows it or from the root path on.

        Where the page waits for a job, so does this, up to `timeout` seconds, telling `progress` each new state.
        Raises `JobFailed` or `TimedOut`, and `Unknown` for a page that has no JSON.
        """
        path = self._twin(address)
        until, pause, told = time.monotonic() + timeout, FIRST_POLL, None
        while True:
            status, data = self._get(path)
            if status != 202:
                return data
            facts = data.get("job")
            if not isinstance(facts, dict):  # a page that fills part by part has no single job
                pause = self._pause("The page is not whole", pause, until, timeout)
                continue
            job = _job(facts)
            if progress is not None and job != told:
                progress(job)
            told = job
            self._check(job, facts.get("error"))
            pause = self._pause(f"Job {job.id} is still {job.state}", pause, until, timeout)

    # ---- readings ----------------------------------------------------------------------------------------------------

    def read(
        self,
        slug: str,
        prompt: str,
        *,
        target: str | None = None,
        contrast: str | None = None,
        position: int | None = None,
        relative_to: str | None = None,
        edits: Iterable[Edit | str] = (),
        timeout: float = 300.0,
        progress: Progress | None = None,
    ) -> Reading:
        """One prediction as an exact sum; the words are those of `legible_core.read`, the numbers too.

        The server reads the prompt's last prediction as well and keeps both under their addresses.
        """
        place = f"/models/{quote(slug, safe='')}/readings"
        fields = {"prompt": prompt}
        texts = [edit_text(edit) for edit in as_edits(edits)]
        if texts:
            fields["edits"] = "\n".join(texts)
        location = self._post(place, fields)
        page = urlsplit(location).path
        asked = {"target_text": target, "contrast_text": contrast, "position": position, "relative_to": relative_to}
        query = {name: value for name, value in asked.items() if value is not None}
        # Without words of its own the reading is the one that was just asked for.
        address = f"{page}?{urlencode(query)}" if query else location
        inner = address.removeprefix(self.origin).removeprefix(self.root)
        return Reading.from_json(self.page(inner, timeout=timeout, progress=progress))

    def read_many(self, slug: str, prompts: Iterable[str], **words: Any) -> Iterator[Reading | ClientError]:
        """The reading of each prompt in order, or the `Refused` or `JobFailed` that says why it has none."""
        for prompt in prompts:
            try:
                yield self.read(slug, prompt, **words)
            except (Refused, JobFailed) as error:
                yield error

    # ---- monitors ----------------------------------------------------------------------------------------------------

    def watch(
        self, monitor: int, pieces: Iterable[str | bytes], *, timeout: float = 300.0, wait: float = 20.0
    ) -> Iterator[dict[str, Any]]:
        """Send a text to a monitor piece by piece (cut anywhere, at most 1 MiB each) and yield what it flags.

        Each kept hit as `{"hit": {"token", "offset", "id", "text", "values", "context"}}`, as they are found between
        the pieces and after them, then `{"summary": {...}}` with the exact counts. Raises `JobFailed` where the server
        could not read it.
        """
        stream = urlsplit(self._post(f"/monitors/{int(monitor)}/streams", {"open": "1"})).path.removeprefix(self.root)
        after, until = -1, time.monotonic() + timeout
        for piece in pieces:
            self._piece(stream, piece.encode() if isinstance(piece, str) else piece, last=False)
            for line in self._followed(stream, after, 0.0):
                if "hit" in line:
                    after = line["hit"]["token"]
                    yield line
        self._piece(stream, b"", last=True)
        while True:
            for line in self._followed(stream, after, wait):
                if "hit" in line:
                    after = line["hit"]["token"]
                    yield line
                elif "summary" in line:
                    yield line
                    return
                elif "error" in line:
                    said = line["error"]
                    raise JobFailed(str(said.get("message")), code=str(said.get("code")), hint=said.get("hint"))
            self._pause(f"Stream {stream} has not ended", FIRST_POLL, until, timeout)

    def _piece(self, stream: str, data: bytes, *, last: bool) -> None:
        status, _, _ = self._send(f"{stream}/text?last={int(last)}", data, "application/octet-stream")
        if status != 202:
            raise ServerFailed(f"{stream} answered {status} where a piece is accepted.", status=status)

    def _followed(self, stream: str, after: int, wait: float) -> list[dict[str, Any]]:
        _, _, body = self._send(f"{stream}/hits?after={after}&wait={wait:g}", None)
        return [json.loads(line) for line in body.splitlines()]

    # ---- jobs --------------------------------------------------------------------------------------------------------

    def job(self, job_id: int) -> Job:
        """How far a job is now."""
        return _job(self.page(f"/jobs/{int(job_id)}")["job"])

    def wait(self, job_id: int, *, timeout: float = 300.0, progress: Progress | None = None) -> Job:
        """The job when it is done; raises `JobFailed` when it ended otherwise, `TimedOut` after `timeout` seconds."""
        until, pause, told = time.monotonic() + timeout, FIRST_POLL, None
        while True:
            facts = self.page(f"/jobs/{int(job_id)}")["job"]
            job = _job(facts)
            if progress is not None and job != told:
                progress(job)
            told = job
            self._check(job, {"message": facts.get("reason"), "hint": facts.get("hint")})
            if job.state == "done":
                return job
            pause = self._pause(f"Job {job.id} is still {job.state}", pause, until, timeout)

    def _check(self, job: Job, error: dict[str, Any] | None) -> None:
        if job.state in ("failed", "cancelled"):
            error = error or {}
            said = error.get("message") or f"Job {job.id} was {job.state}."
            raise JobFailed(said, code=error.get("code") or job.state, hint=error.get("hint"))

    def _pause(self, what: str, pause: float, until: float, timeout: float) -> float:
        left = until - time.monotonic()
        if left <= 0:
            raise TimedOut(f"{what} after {timeout:g} s; the work goes on.", code="timed_out")
        self._sleep(min(pause, left))
        return min(2 * pause, LONGEST_POLL)

    # ---- requests ----------------------------------------------------------------------------------------------------

    def _twin(self, address: str) -> str:
        """The path and query of the JSON twin, below the root path; an address of another server is refused."""
        if not address.startswith("/"):
            base = self.origin + self.root
            if not (address + "/").startswith(base + "/") and not address.startswith(base + "?"):
                raise ValueError(f"{address[:200]!r} is no page of {base}.")
            address = address.removeprefix(base) or "/"
        path, mark, query = address.partition("#")[0].partition("?")
        path = path.rstrip("/")
        if not path.endswith(".json"):
            path = f"{path}.json" if path else "/index.json"
        return path + mark + query

    def _get(self, path: str) -> tuple[int, dict[str, Any]]:
        wait = FIRST_WAIT
        for left in range(self.retries, -1, -1):
            try:
                status, _, body = self._send(path, None)
            except (ServerFailed, Unreachable):
                if not left:
                    raise
                self._sleep(wait)
                wait = min(2 * wait, LONGEST_WAIT)
                continue
            try:
                data = json.loads(body)
            except ValueError:
                data = None
            if not isinstance(data, dict):
                raise ServerFailed(f"{self.origin}{self.root}{path} answered with something that is not its JSON.")
            return status, data
        raise AssertionError("unreachable")

    def _post(self, path: str, form: dict[str, str]) -> str:
        """Where the server sends one to after a form."""
        try:
            body = urlencode(form).encode()
        except UnicodeEncodeError:
            raise Refused("The prompt holds half of a surrogate pair, which is no text.", code="bad_text") from None
        status, location, _ = self._send(path, body)
        if status != 303 or not location:
            raise ServerFailed(f"{path} answered {status} where a reading's address was expected.", status=status)
        return location

    def _send(
        self, path: str, body: bytes | None, kind: str = "application/x-www-form-urlencoded"
    ) -> tuple[int, str, bytes]:
        url = self.origin + self.root + path
        headers = {"accept": "application/json"} | ({} if body is None else {"content-type": kind})
        request = urllib.request.Request(url, data=body, headers=headers)
        if self._token:
            request.add_header("authorization", f"Bearer {self._token}")
        try:
            with self._opener.open(request, timeout=self.timeout) as answer:
                return answer.status, "", answer.read()
        except urllib.error.HTTPError as error:
            with error:
                if error.code == 303 and body is not None:
                    return 303, error.headers.get("location", ""), b""
                raise self._refusal(error, error) from None
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            raise Unreachable(
                f"{self.origin} does not answer: {str(reason)[:200]}.", code="unreachable",
                hint="Is `legible serve` running there?",
            ) from None  # fmt: skip

    def _refusal(self, answer: urllib.error.HTTPError, body: IO[bytes]) -> ClientError:
        """The server's own sentence as the exception of its status."""
        status = answer.code
        try:
            whole = json.loads(body.read(1 << 20))
            said = whole["error"]
            message, code, hint = str(said["message"]), str(said["code"]), said.get("hint")
        except (ValueError, KeyError, TypeError, OSError, http.client.HTTPException):
            whole, message, code, hint = {}, f"The server answered {status} {answer.reason}.", "http", None
        if 300 <= status < 400:
            message = f"The server sends elsewhere, to {answer.headers.get('location', '')[:200]}; use that address."
        kind: type[ClientError] = ServerFailed if status >= 500 else Unknown if status == 404 else Refused
        if status == 422 and "job" in whole:
            kind = JobFailed
        return kind(message, code=code, hint=hint, status=status)


def _job(facts: dict[str, Any]) -> Job:
    return Job(
        id=int(facts["id"]), state=str(facts["state"]), stage=facts.get("stage"), place=facts.get("place"),
        done=facts.get("done"), total=facts.get("total"),
    )  # fmt: skip


def _loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
