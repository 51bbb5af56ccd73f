"""What a reading is asked: checkpoint, ids, place, target, contrast and edits, with the digest that names it; no torch.

request = ReadingRequest(checkpoint.hash, ids, target=1234)
request.check(checkpoint.config)        # one sentence where this checkpoint cannot serve it
request.digest                          # the same for every position, target and contrast of this prompt
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from legible_core.config import ModelConfig
from legible_core.errors import LegibleError, TooLarge
from legible_core.interventions import Edit, canonical_edits

SCHEMA = 1
RelativeTo: TypeAlias = Literal["nothing", "mean", "contrast"]
Dtype: TypeAlias = Literal["float32", "bfloat16"]


@dataclass(frozen=True)
class ReadingRequest:
    """One prediction to decompose.

    `checkpoint` is the manifest hash, `ids` the prompt, `position` the 0-based position whose next token is read (None:
    the last), `target` the token read (None: the most probable one), `contrast` the token it is compared with.
    `relative_to` defaults to `contrast` where a contrast token is given and to `nothing` elsewhere.
    Raises `LegibleError` when the parts contradict each other.
    """

    checkpoint: str
    ids: tuple[int, ...]
    position: int | None = None
    target: int | None = None
    contrast: int | None = None
    relative_to: RelativeTo | None = None
    dtype: Dtype = "float32"
    edits: tuple[Edit, ...] = ()

    def __post_init__(self) -> None:
        if self.relative_to is None:
            object.__setattr__(self, "relative_to", "nothing" if self.contrast is None else "contrast")
        if self.relative_to not in get_args(RelativeTo):
            raise LegibleError(
                f"relative-to is {str(self.relative_to)[:40]!r}; it must be nothing, mean or contrast.",
                code="bad_relative_to",
            )
        if self.relative_to == "contrast" and self.contrast is None:
            raise LegibleError(
                "A reading relative to a contrast needs a contrast token; name one.", code="bad_contrast"
            )
        if self.relative_to != "contrast" and self.contrast is not None:
            raise LegibleError(
                f"A contrast token is used only in a reading relative to contrast, not to {self.relative_to}; "
                "leave one of the two out.",
                code="bad_contrast",
            )
        if self.dtype not in get_args(Dtype):
            raise LegibleError(f"dtype is {str(self.dtype)[:40]!r}; it must be float32 or bfloat16.", code="bad_dtype")

    @property
    def digest(self) -> str:
        """The name of this prompt's readings: it fixes the forward, not the position, target or contrast."""
        return digest(self.checkpoint, self.ids, self.edits, self.dtype)

    def check(self, config: ModelConfig) -> None:
        """Raise `LegibleError` in one sentence when this checkpoint cannot serve the request."""
        if not self.ids:
            raise LegibleError("The prompt is empty; type at least one character.", code="empty_prompt")
        if len(self.ids) > config.context:
            raise TooLarge(
                f"The prompt has {len(self.ids)} tokens; this checkpoint reads at most {config.context}, "
                "so shorten it.",
                code="prompt_too_long",
            )
        named = [("prompt", i) for i in self.ids] + [("target", self.target), ("contrast", self.contrast)]
        for name, token in named:
            if token is not None and not 0 <= token < config.vocab_size:
                raise LegibleError(
                    f"Token id {token} ({name}) is not in this checkpoint's vocabulary, which ends at "
                    f"{config.vocab_size - 1}.",
                    code="bad_token",
                )
        if self.position is not None and not 0 <= self.position < len(self.ids):
            raise LegibleError(
                f"Position {self.position} is outside the prompt; its {len(self.ids)} tokens have positions 0 to "
                f"{len(self.ids) - 1}.",
                code="bad_position",
            )
        for edit in self.edits:
            edit.check(config, len(self.ids))
        if self.contrast is not None and self.contrast == self.target:
            raise LegibleError(
                "The contrast token is the target itself, so their difference is zero; choose another.",
                code="bad_contrast",
            )

    def to_json(self) -> dict[str, Any]:
        """A JSON object that `from_json` reads back to an equal request; for a job's payload."""
        return {
            "checkpoint": self.checkpoint,
            "ids": list(self.ids),
            "position": self.position,
            "target": self.target,
            "contrast": self.contrast,
            "relative_to": self.relative_to,
            "dtype": self.dtype,
            "edits": canonical_edits(self.edits),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> ReadingRequest:
        """Read what `to_json` wrote; raises `LegibleError` for an unusable edit or contradicting parts."""
        return cls(
            checkpoint=data["checkpoint"],
            ids=tuple(data["ids"]),
            position=data.get("position"),
            target=data.get("target"),
            contrast=data.get("contrast"),
            relative_to=data.get("relative_to"),
            dtype=data.get("dtype", "float32"),
            edits=tuple(Edit.from_json(edit) for edit in data.get("edits", ())),
        )


def digest(checkpoint: str, ids: Sequence[int], edits: Sequence[Edit] = (), dtype: Dtype = "float32") -> str:
    """SHA-256 (hex) over checkpoint hash, token ids, canonical edits, compute dtype and schema version.

    Edits count in the order in which they apply (set then scale differs from scale then set), their numbers as float64
    hex, so that neither the spelling nor the rounding of a number can make two names of one computation.
    """
    canonical = {
        "checkpoint": checkpoint,
        "dtype": dtype,
        "edits": canonical_edits(edits),
        "ids": [int(i) for i in ids],
        "schema": SCHEMA,
    }
    return hashlib.sha256(json.dumps(canonical, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
