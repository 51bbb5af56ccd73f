"""The exact ids of an ordinary model's prompt: begin-of-text token and chat template; imports no torch.

A tokenizer's own default says whether a text begins with its begin-of-text token; it stands in the prompt like any
other token, can be switched, and is never doubled: not when it was typed, not when a template writes it.

A chat template is a program (Jinja). It runs in Jinja's sandbox, and in a web process only inside the tokenizer's child
process, with its limits on time and memory.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from legible_core.errors import LegibleError

MAX_TEMPLATE = 256 << 10
MAX_RENDERED = 1_000_000


@dataclass(frozen=True)
class Bos:
    """The begin-of-text token, and whether the tokenizer puts it before a text by itself."""

    id: int
    text: str
    default: bool


def with_bos(ids: Sequence[int], bos: Bos | None, wanted: bool | None = None) -> list[int]:
    """The ids of a typed text with the begin-of-text token before them: as `wanted`, None for the tokenizer's default.

    A text that begins with the token as typed keeps that one and gets no second. Raises `LegibleError` where the token
    is wanted of a tokenizer that has none.
    """
    if bos is None:
        if wanted:
            raise LegibleError(
                "This checkpoint's tokenizer has no begin-of-text token; leave it out.", code="no_bos", status=422
            )
        return list(ids)
    put = bos.default if wanted is None else wanted
    return [bos.id, *ids] if put and list(ids[:1]) != [bos.id] else list(ids)


def render(template: str | None, prompt: str, tokens: Mapping[str, str]) -> str:
    """The text that a chat template makes of one message by a user, up to where the model's answer begins.

    tokens: `bos_token`, `eos_token` and their like. Raises `LegibleError` for a model without a template, and for one
    that fails on this prompt.
    """
    if template is None:
        raise LegibleError(
            "This checkpoint has no chat template, so the prompt can only be read as typed.",
            code="no_chat_template",
            status=422,
        )
    from jinja2.exceptions import SecurityError, TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str) -> Any:
        raise TemplateError(message)

    loops = ["jinja2.ext.loopcontrols"]
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=loops)
    environment.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False, **options)
    environment.globals["raise_exception"] = refuse
    # A date in a prompt would give the same question another address tomorrow.
    environment.globals["strftime_now"] = lambda form: "1 January 2026"
    try:
        made = environment.from_string(template[:MAX_TEMPLATE])
        text = made.render(
            messages=[{"role": "user", "content": prompt}], add_generation_prompt=True, tools=None, **tokens
        )
    except (TemplateError, SecurityError, TypeError, ValueError, AttributeError, KeyError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200].rstrip(".")
        raise LegibleError(
            f"The chat template fails on this prompt ({reason}); read the prompt as typed.", code="bad_chat_template"
        ) from None
    return text[:MAX_RENDERED]
