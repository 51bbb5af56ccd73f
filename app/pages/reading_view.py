"""A stored reading → everything its page shows, as text and numbers ready to be written down.

    view = reading_page(stored, config, urls, Chosen(component="L5.u263"), panel)

The page's own numbers are the JSON twin's, rounded: nothing is computed here that the reading does not say.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from app.figures import heads_grid, signed, unit_strips
from app.pages.citation import citation
from app.pages.edited import Edited, edited_of
from app.pages.formula import GUESS, Piece, formula, operand_piece
from app.pages.mistyped import Mistyped
from app.pages.named import channel_piece
from app.pages.panel import Panel
from app.pages.renamed import said_renamed
from app.pages.sum_line import SumLine, sum_line
from app.pages.view import chance, clipped, iframe
from app.store_types import StoredReading
from app.urls import Urls
from legible_core.config import ModelConfig
from legible_core.interventions import Edit
from legible_core.interventions_text import edit_text
from legible_core.naming.names import Names, operand_within
from legible_core.reading import ORDINARY, Contributor, Summary, Token
from legible_core.units import GLYPHS, parse

if TYPE_CHECKING:
    from app.pages.causal import Checks
    from app.pages.compare_form import CompareForm
    from app.pages.revisions import Revised


@dataclass(frozen=True, slots=True)
class Link:
    name: str
    href: str
    title: str
    current: bool


@dataclass(frozen=True, slots=True)
class Links:
    self: str
    json: str
    csv: str
    html: str
    cite: str
    delete: str
    collect: str


@dataclass(frozen=True, slots=True)
class TokenChip:
    display: str
    href: str
    title: str
    current: bool
    shade: int
    bytes: str = ""


@dataclass(frozen=True, slots=True)
class PredictionChip:
    display: str
    probability: str
    title: str
    href: str
    contrast_href: str
    role: str | None


@dataclass(frozen=True, slots=True)
class Row:
    id: str
    glyph: str
    value: float
    formula: tuple[Piece, ...]
    operands: str
    target_rank: int | None
    href: str
    current: bool


@dataclass(frozen=True, slots=True)
class ReadingPage:
    title: str
    slug: str
    summary: Summary
    text: str
    collected: bool
    links: Links
    strip: tuple[TokenChip, ...]
    shading: str | None
    predictions: tuple[PredictionChip, ...]
    relatives: tuple[Link, ...]
    heads_svg: Markup
    strips_svg: Markup
    panel: Panel | None
    panel_fields: tuple[tuple[str, str], ...]
    rows: tuple[Row, ...]
    sum: SumLine
    command: str | None
    citation: str
    embed: str
    panel_embed: str
    compare: CompareForm | None = None
    revised: Revised | None = None
    edited: Edited | None = None
    checks: Checks | None = None
    renamed: str = ""
    mistyped: Mistyped | None = None


@dataclass(frozen=True, slots=True)
class Chosen:
    """What the address names, all of it explicit."""

    position: int
    target: int
    contrast: int | None
    relative_to: str
    component: str | None = None
    revision: int | None = None

    def query(self) -> dict[str, Any]:
        usual = "nothing" if self.contrast is None else "contrast"
        relative = None if self.relative_to == usual else self.relative_to
        return {
            "position": self.position,
            "target": self.target,
            "contrast": self.contrast,
            "relative_to": relative,
            "component": self.component,
            "revision": self.revision,
        }

    def href(self, **changes: Any) -> str:
        """The same page with these changes, relative to its own address; None takes a part away."""
        merged = {**self.query(), **changes}
        return "?" + "&".join(f"{name}={value}" for name, value in merged.items() if value is not None)


def reading_page(
    stored: StoredReading,
    config: ModelConfig | None,
    urls: Urls,
    chosen: Chosen,
    *,
    slug: str,
    text: str,
    origin: str,
    panel: Panel | None,
    shades: Sequence[int] = (),
    names: Names | None = None,
    revised: Revised | None = None,
) -> ReadingPage:
    """The context of reading.html.

    `shades` (0-4) colours the token strip by a head's attention pattern; `names` name the leading channel of a head,
    where they are still those that the reading was made with.
    """
    reading = stored.reading()
    summary = reading.summary
    kinds = _glyphs(config, summary.units_shape[1])
    shown = chosen.component or (panel.id if panel is not None else None)
    renamed = said_renamed(summary, names)

    def component(name: str) -> str:
        return chosen.href(component=name)

    here = urls.reading(slug, summary.digest, **chosen.query())
    base = {key: value for key, value in chosen.query().items() if key != "component"}
    links = Links(
        self=here,
        json=urls.json(urls.reading(slug, summary.digest, **base)),
        csv=urls.reading_part(slug, summary.digest, "csv", **base),
        html=urls.reading_part(slug, summary.digest, "html", **base),
        cite=urls.reading_part(slug, summary.digest, "cite", **base),
        delete=urls.reading_part(slug, summary.digest, "delete"),
        collect=urls.reading_part(slug, summary.digest, "collect", **chosen.query()),
    )
    return ReadingPage(
        title=_title(summary, slug),
        slug=slug,
        summary=summary,
        text=text,
        collected=stored.collected,
        links=links,
        strip=_strip(summary.tokens, summary.position, shades),
        shading=_shading(shown, shades),
        predictions=_predictions(summary, chosen),
        relatives=_relatives(summary, chosen),
        heads_svg=heads_grid(reading.heads, component, shown),
        strips_svg=unit_strips(
            reading.units, component, kinds.__getitem__, shown, [c.id for c in summary.top if c.kind != "head"]
        ),
        panel=panel,
        panel_fields=tuple((name, str(value)) for name, value in base.items() if value is not None),
        rows=tuple(_row(c, component, shown, None if renamed else names, guessed(summary)) for c in summary.top),
        sum=sum_line(summary),
        command=command_line(slug, text, summary),
        embed=iframe(f"{origin}{here}&embed=figure,table", _title(summary, slug)),
        panel_embed=iframe(
            origin + urls.reading(slug, summary.digest, **{**base, "component": shown, "embed": "panel"}),
            f"{shown} · {_title(summary, slug)}",
        ),
        citation=citation(
            stored,
            text=_read_text(summary),
            target=summary.target.display,
            origin=origin,
            address=urls.reading(slug, summary.digest, **base),
        ),
        revised=revised,
        renamed=renamed,
        edited=edited_of(urls, slug, summary, chosen.query()),
    )


def _glyphs(config: ModelConfig | None, d_ff: int) -> list[str]:
    """The glyph of each hidden unit; none where the checkpoint is gone."""
    return [GLYPHS[config.feed_forward.kind(unit)] if config is not None else "" for unit in range(d_ff)]


def _title(summary: Summary, slug: str) -> str:
    tail = clipped(_read_text(summary), 40)
    against = f" against {summary.contrast.display}" if summary.contrast is not None else ""
    return f"“{tail}” → {summary.target.display}{against} · {slug}"


def _read_text(summary: Summary) -> str:
    """The prompt up to the read position."""
    read = b"".join(bytes.fromhex(token.bytes) for token in summary.tokens[: summary.position + 1])
    return read.decode("utf-8", "replace")


def _strip(tokens: Sequence[Token], position: int, shades: Sequence[int]) -> tuple[TokenChip, ...]:
    return tuple(
        TokenChip(
            display=token.display,
            href=f"?position={index}",
            title=f"{index}: token {token.id}",
            current=index == position,
            shade=shades[index] if index < len(shades) else 0,
            bytes=token.bytes,
        )
        for index, token in enumerate(tokens)
    )


def _shading(component: str | None, shades: Sequence[int]) -> str | None:
    return f"Shaded: where {component} looks from the read position." if shades and component else None


def _predictions(summary: Summary, chosen: Chosen) -> tuple[PredictionChip, ...]:
    chips = []
    listed = list(summary.predictions)
    known = {p.id for p in listed}
    # A target or contrast outside the ten leading predictions is shown after them, so that it can be seen and left.
    listed += [t for t in (summary.target, summary.contrast) if t is not None and t.id not in known]
    for p in listed:
        role = "target" if p.id == chosen.target else "contrast" if p.id == chosen.contrast else None
        contrast = None if role == "contrast" or p.id == chosen.target else p.id
        chips.append(
            PredictionChip(
                display=p.display,
                probability=chance(p.probability),
                title=f"token {p.id}, logit {signed(p.logit)}, probability {p.probability:.4f}",
                href=f"?position={chosen.position}&target={p.id}",
                contrast_href=Chosen(
                    chosen.position, chosen.target, contrast, "nothing" if contrast is None else "contrast"
                ).href(),
                role=role,
            )
        )
    return tuple(chips)


def _relatives(summary: Summary, chosen: Chosen) -> tuple[Link, ...]:
    plain = Chosen(chosen.position, chosen.target, None, "nothing").href(component=chosen.component)
    mean = Chosen(chosen.position, chosen.target, None, "mean").href(component=chosen.component)
    links = [
        Link("nothing", plain, "the raw logit", summary.relative_to == "nothing"),
        Link("vocabulary mean", mean, "the logit less the mean logit", summary.relative_to == "mean"),
    ]
    if summary.contrast is not None:
        links.append(Link("contrast", chosen.href(), "the difference of two logits", summary.relative_to == "contrast"))
    return tuple(links)


def _row(c: Contributor, component: Any, shown: str | None, names: Names | None, guess: bool) -> Row:
    pieces = contributor_formula(c, names, guess)
    here = "  ".join(f"{o.value:.2f}".replace("-", "−") for o in c.operands[:2])
    return Row(c.id, c.glyph, c.value, pieces, here, c.target_rank, component(c.id), c.id == shown)


def guessed(summary: Summary) -> bool:
    """Whether what a name says is a guess: the model is an ordinary one."""
    return summary.shares.why_undefined == ORDINARY


def contributor_formula(c: Contributor, names: Names | None = None, guess: bool = False) -> tuple[Piece, ...]:
    """A contributor in a table; a head's leading channel stands for it, its own page has the rest.

    guess: the model is an ordinary one, whose parts no construction makes mean what their names say.
    """
    pieces: list[Piece] = [GUESS] if guess else []
    c = with_shares(c, names)
    if c.kind != "head":
        return (*pieces, *formula(c.kind, c.operands, c.promotes, c.label, c.half_life))
    if c.operands:
        leading = c.operands[0]
        named = operand_piece(leading) if leading.label is not None else channel_piece(names, leading.id)
        pieces += [named, *([Piece("…")] if len(c.operands) > 1 else [])]
    else:
        pieces.append(Piece("attention head"))
    return (*pieces, *formula("", (), c.promotes, c.label)[1:])


def with_shares(c: Contributor, names: Names | None) -> Contributor:
    """The contributor, its operands with their ON shares also where the reading was stored without them."""
    if names is None or names.plain is not None or all(o.on is not None for o in c.operands):
        return c
    operands = (
        o
        if operand_within(names.config, parse(o.id)) is None
        else o.model_copy(update={"on": names.operand(parse(o.id), 0).on})
        for o in c.operands
    )
    return c.model_copy(update={"operands": tuple(operands)})


def command_line(slug: str, text: str, summary: Summary) -> str | None:
    """The same reading made again by the `legible` command; None where no command line can hold the prompt (NUL)."""
    if "\x00" in text:
        return None
    words = ["legible", "read", "--position", str(summary.position), "--target", f"id:{summary.target.id}"]
    if summary.contrast is not None:
        words += ["--contrast", f"id:{summary.contrast.id}"]
    if summary.relative_to != ("nothing" if summary.contrast is None else "contrast"):
        words += ["--relative-to", summary.relative_to]
    for edit in summary.edits:
        words += ["--edit", edit_text(Edit.from_json(edit))]
    return f"{shlex.join([*words, '--json', '--', slug])} {_in_shell(text)}"


def _in_shell(text: str) -> str:
    """A shell word that shows no character other than it is: by its bytes ($'…': bash, zsh, ksh) where it must be."""
    if text.isascii() and text.replace("\n", "").isprintable():
        return shlex.quote(text)
    data = text.encode("utf-8", "surrogatepass")
    plain = (chr(byte) if 32 <= byte < 127 and byte not in b"\\'" else f"\\{byte:03o}" for byte in data)
    return "$'" + "".join(plain) + "'"
