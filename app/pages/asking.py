"""From a person's words to a reading's address: tokenise, check, find what is stored, else submit one job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fastapi import Request

from app.jobs import Job
from app.pages.forms import form_of, one_of
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

PROMPT_FIELDS = ("prompt", "model", "example", "edits", "bos", "chat")
_prompt_fields = form_of("A prompt", PROMPT_FIELDS, "the field prompt")


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
    """What a form that holds a prompt sends: the prompt box, a model's readings, a child against its parent."""

    prompt: str
    model: str | None
    example: str | None
    edits: tuple[Edit, ...] = ()
    bos: bool | None = None
    chat: bool = False


async def prompt_form(request: Request) -> PromptForm:
    """The form's fields. A text over the tokenizer's limit must reach its error, which says the limit and the size."""
    fields = await _prompt_fields(request)
    edits = edits_of_field(fields.get("edits", ""))
    bos = one_of("bos", fields.get("bos", ""), {"": None, "yes": True, "no": False})
    chat = one_of("chat", fields.get("chat", ""), {"": False, "1": True})
    return PromptForm(fields.get("prompt", ""), fields.get("model") or None, fields.get("example"), edits, bos, chat)


def read_form(
    services: Services, urls: Urls, checkpoint: Checkpoint, form: PromptForm, *, target: int | None = None
) -> str:
    """The address of the reading that a prompt's form asks of `checkpoint`, under all that the form says.

    The one way from a form to a reading, so that no page can drop a field. `start_reading` says what it raises.
    """
    return start_reading(
        services, urls, checkpoint, form.prompt, target, edits=form.edits, bos=form.bos, chat=form.chat
    )


def only_of(checkpoint: Checkpoint, form: PromptForm, services: Services) -> PromptForm:
    """The form, where its address names the checkpoint; a field that would choose another one, or a text, is refused.

    Raises `LegibleError` (422) for an example, which is the home page's, and for a `model` that is another one.
    """
    if form.example is not None:
        raise LegibleError(
            "The field example is for the home page's form; send the text itself in the field prompt.",
            code="bad_field", status=422,
        )  # fmt: skip
    if form.model is not None and services.catalogue.get(form.model).hash != checkpoint.hash:
        raise LegibleError(
            f"The field model names {form.model[:40]!r}, but this address reads {checkpoint.slug}; leave the field out "
            "or send the form to the other model's address.",
            code="bad_field", status=422,
        )  # fmt: skip
    return form


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
