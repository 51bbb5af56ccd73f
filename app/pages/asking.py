"""From a person's words to a reading's address: tokenise, check, find what is stored, else submit one job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fastapi import Request

from app.jobs import Job
from app.security import MAX_BODY
from app.services import Services
from app.store import StoredPrompt
from app.urls import Urls
from legible_core.adapters.registration import OrdinaryCheckpoint
from legible_core.errors import LegibleError, NotFound
from legible_core.interventions import Edit
from legible_core.interventions_text import edits_of_field
from legible_core.prompts import render, with_bos
from legible_core.reading import Dtype, ReadingRequest
from legible_core.registry import Checkpoint

FORM_TYPES = ("application/x-www-form-urlencoded", "multipart/form-data")


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a digest stands for, from the store or from the job that is to read it."""

    digest: str
    checkpoint_hash: str
    slug: str
    ids: tuple[int, ...]
    text: str
    dtype: str
    edits: tuple[Edit, ...] = ()


@dataclass(frozen=True, slots=True)
class PromptForm:
    """What the prompt box sends."""

    prompt: str
    model: str | None
    example: str | None
    edits: tuple[Edit, ...] = ()
    bos: bool | None = None
    chat: bool = False


async def prompt_form(request: Request) -> PromptForm:
    """The form's fields. A text over the tokenizer's limit must reach its error, which says the limit and the size."""
    fields = await form_fields(request, "A prompt", "the field prompt")
    edits = edits_of_field(fields.get("edits", ""))
    bos = {"yes": True, "no": False}.get(fields.get("bos", ""))
    chat = bool(fields.get("chat"))
    return PromptForm(fields.get("prompt", ""), fields.get("model") or None, fields.get("example"), edits, bos, chat)


async def form_fields(request: Request, what: str, asked: str | None = None, *, limit: int = 20) -> dict[str, str]:
    """The text fields of a posted form, files left out; at most `limit`, each up to the limit on a body.

    what, asked: what is sent, and which fields the hint asks for, as the error says them. Raises `LegibleError` (415).
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in FORM_TYPES:
        raise LegibleError(
            f"{what} is sent as a form, not as {kind[:60] or 'a body without a type'}.",
            code="bad_content_type",
            hint=None if asked is None else f"Send {asked} with the content type {FORM_TYPES[0]}.",
            status=415,
        )
    async with request.form(max_files=0, max_fields=limit, max_part_size=MAX_BODY) as form:
        return {name: value for name, value in form.items() if isinstance(value, str)}


def start_reading(
    services: Services,
    urls: Urls,
    checkpoint: Checkpoint,
    text: str,
    target: int | None = None,
    edits: tuple[Edit, ...] = (),
    *,
    bos: bool | None = None,
    chat: bool = False,
) -> str:
    """The address of the reading of `text`'s last prediction; its job is in SQL when this returns.

    `target` is the token to read, the most probable one when it is None. With edits the unedited text is read as well,
    so that its page, which the edited one leads to, is there. bos, chat: see `encode`. Raises LegibleError in one
    sentence for a text that cannot be read.
    """
    if edits:
        start_reading(services, urls, checkpoint, text, target, bos=bos, chat=chat)
    ids, text = encode(services, checkpoint, text, bos=bos, chat=chat)
    dtype = dtype_of(services, checkpoint)
    request = ReadingRequest(checkpoint.hash, ids, target=target, dtype=dtype, edits=edits)
    request.check(checkpoint.config)
    stored = services.store.find(request.digest, target=target)
    if stored is not None:
        return urls.reading(checkpoint.slug, request.digest, position=stored.position, target=stored.target)
    position = len(ids) - 1
    request = ReadingRequest(checkpoint.hash, ids, position=position, target=target, dtype=dtype, edits=edits)
    submit_reading(services, request, slug=checkpoint.slug, text=text.replace("\r\n", "\n"))
    return urls.reading(checkpoint.slug, request.digest, position=position, target=target)


def encode(
    services: Services, checkpoint: Checkpoint, text: str, *, bos: bool | None = None, chat: bool = False
) -> tuple[tuple[int, ...], str]:
    """The exact ids of a prompt, and the text that they are the ids of.

    bos: whether an ordinary model's begin-of-text token stands before it; None as its tokenizer does. chat: the text is
    what a user says, in the model's chat template. Raises LegibleError where the checkpoint has no such thing.
    """
    ordinary = checkpoint if isinstance(checkpoint, OrdinaryCheckpoint) else None
    call, path = services.tokenizers.call, checkpoint.tokenizer_path
    if chat:
        template, special = (None, {}) if ordinary is None else (ordinary.chat_template, ordinary.special)
        # A model without a template says so here; one with a template has it run in the tokenizer's own process.
        text = render(None, text, {}) if template is None else str(call("render", path, template, text, special))
    found = [int(i) for i in call("encode", path, text)]
    token = None if ordinary is None else ordinary.bos
    ids = with_bos(found, token, False if chat and bos is None else bos)  # a template writes its own beginning
    if bos and token is not None and len(ids) > len(found):
        text = token.text + text
    return tuple(ids), text


def dtype_of(services: Services, checkpoint: Checkpoint) -> Dtype:
    """The dtype in which this installation reads a checkpoint."""
    return checkpoint.compute_dtype(services.settings.dtype)


def submit_reading(services: Services, request: ReadingRequest, *, slug: str, text: str) -> Job:
    """One job for this very request, whoever asks and however often."""
    payload = {"request": request.to_json(), "slug": slug, "text": text}
    return services.queue.submit("read", read_key(request), payload, subject=request.digest)


def read_key(request: ReadingRequest) -> str:
    """The job key of a reading: its digest and everything that its address may name."""
    parts = (request.position, request.target, request.contrast, request.relative_to)
    return ":".join(["read", request.digest, *("-" if part is None else str(part) for part in parts)])


def find_prompt(services: Services, digest: str) -> Prompt:
    """The prompt behind an address; NotFound when neither a stored reading nor a job knows it."""
    stored: StoredPrompt | None = services.store.prompt(digest)
    if stored is not None:
        edits = tuple(Edit.from_json(edit) for edit in stored.edits)
        return Prompt(stored.digest, stored.checkpoint_hash, stored.slug, stored.ids, stored.text, stored.dtype, edits)
    for job in services.queue.about(digest, "read"):
        asked: dict[str, Any] = job.payload["request"]
        edits = tuple(Edit.from_json(edit) for edit in asked.get("edits", ()))
        return Prompt(
            digest, asked["checkpoint"], job.payload["slug"], tuple(asked["ids"]), job.payload["text"], asked["dtype"],
            edits,
        )  # fmt: skip
    raise NotFound(
        f"There is no reading {digest[:12]} here; it was deleted, or read on another machine.",
        hint="Type its prompt again: the same text, checkpoint and settings have the same address.",
    )


def one_token(services: Services, checkpoint: Checkpoint, text: str, role: str) -> int:
    """The token that a person typed as target or contrast (`role`); one that splits is an error that shows how."""
    return int(services.tokenizers.call("target", checkpoint.tokenizer_path, text, role))
