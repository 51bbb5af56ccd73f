"""Two functions for scripts and notebooks; the numbers are those of the page and of `legible read --json`.

    from legible_core import load, read

    model = load("novel-legible")                      # a shipped slug, its hash, or a checkpoint folder
    reading = read(model, "It was the best of times, it was the", target=" worst")
    reading.value, reading.residual, reading.top[0].id # every field of docs/reading-schema.md
    reading.units                                      # (n_layers, d_ff) float32, one term for each unit, in logits
    reading                                            # in Jupyter: the figure, its table and the sum

`legible_core` gives both without importing torch; it is loaded when one of them is first used.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from legible_core.errors import LegibleError
from legible_core.interventions import Edit
from legible_core.interventions_text import as_edits
from legible_core.pipeline import PROMOTED, Engine
from legible_core.reading import Dtype, Reading, RelativeTo
from legible_core.registry import Checkpoint, resolve, survey

MAX_TOP = 1000

_HERE = Path(__file__).resolve().parent
# Where checkpoints that ship lie: beside the packages in a checkout, inside the application in a wheel.
_SHIPPED = (
    _HERE.parent / "models" if (_HERE.parent / "pyproject.toml").exists() else _HERE.parent / "app/_bundled/models"
)


def load(model: Checkpoint | Path | str, *, dtype: Dtype = "float32", device: str = "cpu") -> Engine:
    """A checkpoint ready to read: its weights, tokenizer and names.

    `model` is the slug or hash of a checkpoint that ships, or a checkpoint folder. One that `legible add` registered is
    opened by its folder, which `legible models` prints. Raises `NotFound` for an unknown one and `Corrupt` for a folder
    that is not what its manifest claims.
    """
    if isinstance(model, str) and not ("/" in model or "\\" in model or (Path(model) / "config.json").is_file()):
        model = resolve(model, survey([_SHIPPED] if _SHIPPED.is_dir() else []))
    return Engine.open(model, dtype=dtype, device=device)


def read(
    model: Engine | Checkpoint | Path | str,
    prompt: str,
    *,
    target: str | None = None,
    contrast: str | None = None,
    position: int | None = None,
    relative_to: RelativeTo | None = None,
    top: int = 20,
    edits: Iterable[Edit | str] = (),
    bos: bool | None = None,
    chat: bool = False,
) -> Reading:
    """One prediction as an exact sum over heads and units, in logits.

    `target` and `contrast` are tokens by their text (" worst", with the space that is part of it) or as "id:666";
    without a target the most probable token is read. `position` is 0-based and its next token is read; default: the
    last. `relative_to` is nothing, mean (of the vocabulary) or contrast. `top` contributors are described, 0 to 1000.
    `edits` are applied inside the forward pass, in order: `Edit`s or short texts such as "L5.u263:scale=0.5"
    (docs/edits.md). `bos` and `chat` are an ordinary model's: whether its begin-of-text token stands before the prompt
    (None: as its tokenizer does), and whether the prompt goes into its chat template.
    A name or folder as `model` is loaded for this one call; `load` it once to read more than one prompt.
    Raises `LegibleError` in one sentence for words that cannot be read, `NotExact` when the sum does not close.
    """
    if not 0 <= top <= MAX_TOP:
        raise LegibleError(f"top is {top}; it must be from 0 to {MAX_TOP}.", code="bad_top")
    engine = model if isinstance(model, Engine) else load(model)
    request = engine.request(
        prompt,
        position=position,
        target=target,
        contrast=contrast,
        relative_to=relative_to,
        edits=as_edits(edits),
        bos=bos,
        chat=chat,
    )
    return engine.read(request, top=top, promoted=PROMOTED)
