"""Checkpoints: the list, and one checkpoint's page: provenance, quality, legibility per layer and head, half-lives."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import HTMLResponse
from markupsafe import Markup

from app.markdown import rendered
from app.pages.accounted import Accounted, accounted, accounting_of
from app.pages.children import Family, family_of
from app.pages.embed import FIGURE_PARTS, embedded_figures
from app.pages.home import describe
from app.pages.model_figures import Figure, beside, figures_of
from app.pages.named import names_of
from app.pages.parts import is_embed, listed
from app.pages.quality import CARD_WORDS as JUDGED_WORDS
from app.pages.quality import Judged, document, judged, stored_of
from app.pages.scans import ScanForm, scan_form
from app.pages.view import page, percent, twin
from app.services import Services, services
from app.urls import Urls, urls_for
from legible_core.adapters.registration import OrdinaryCheckpoint
from legible_core.evaluation.records import perplexity_digits
from legible_core.figures import loss_text, perplexity_text, without_tables
from legible_core.naming.names import Names
from legible_core.registry import Checkpoint
from legible_core.units import PLAIN_NAMES

router = APIRouter(prefix="/models", default_response_class=HTMLResponse)

# What a card says, in words; anything else on it is shown as written.
CARD_WORDS = {
    "hash": "weights hash", "data": "data", "tokens": "tokens trained", "recipe": "recipe", "licence": "licence",
    "loss": "loss (nats a token)", "loss_se": "its standard error", "measured_tokens": "measured on, tokens",
    "held_out_loss": "loss (nats a token)", "held_out_loss_se": "its standard error",
    "crisp": "operands crisp", "on": "operands ON",
    "selective": "operands SELECTIVE", "constant": "operands CONSTANT", "alive": "operands alive",
    "nameable": "operands nameable", "labelled": "operands labelled", "value_selective": "value channels SELECTIVE",
    "half_life_median": "median half-life, tokens", "latches": "quantifiers that are latches",
}  # fmt: skip
# What a card measured, apart from where the checkpoint comes from; shares as per cent, counts in thousands.
CARD_FIGURES = ("loss", "loss_se", "perplexity", "measured_tokens", "half_life_median")
CARD_SHARES = ("crisp", "on", "selective", "constant", "alive", "nameable", "labelled", "value_selective", "latches")
# The loss where training ended, which `legible train` measures on another text: the end of its own, left out of it.
HELD_OUT = ("held_out_loss", "held_out_loss_se")
MEASURED_ON = ("measured_on", "heldout", "evaluated_on")  # on which text the card's figures are, by the first it has
LINEAGE = ("parent", "parent_slug", "edits")  # shown in words, with links
QUALITY_WORDS = {"loss": "loss (nats a token)", "loss_se": "its standard error", "tokens": "predicted tokens"}
CORPUS_WORDS = {
    "name": "text", "sha256": "SHA-256 of its ids", "naming": "tokens for names",
    "held_out": "tokens held out for agreement",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ModelLine:
    slug: str
    href: str
    said: str
    origin: str
    hash: str
    named: bool


@dataclass(frozen=True, slots=True)
class ModelsPage:
    title: str
    models: tuple[ModelLine, ...]
    refused: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Fact:
    name: str
    value: str

    @property
    def number(self) -> bool:
        """Whether the value is a plain number, which no line break parts."""
        return re.fullmatch(r"[\d.,]{1,24}( %)?", self.value) is not None


@dataclass(frozen=True, slots=True)
class Table:
    """A figure's numbers: what a screen reader, a narrow screen and a page without scripts get."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class LayerLink:
    layer: int
    href: str
    units: int


@dataclass(frozen=True, slots=True)
class OrdinaryPart:
    """What is known of an ordinary model: where it comes from, how its prompts begin, its parity certificate."""

    facts: tuple[Fact, ...]
    certificate: tuple[Fact, ...]


@dataclass(frozen=True, slots=True)
class ModelPage:
    title: str
    slug: str
    name: str
    said: str
    card: tuple[Fact, ...]
    card_figures: tuple[Fact, ...]
    measured_on: str | None
    held_out: tuple[Fact, ...]
    body: Markup
    quality: tuple[Fact, ...]
    scanned: tuple[Fact, ...]
    missing: str | None
    figures: tuple[Figure, ...]
    beside: str
    scan: ScanForm
    layers: tuple[LayerLink, ...]
    config: dict[str, Any]
    hash: str
    judged: Judged
    accounted: Accounted
    ordinary: OrdinaryPart | None
    units: tuple[tuple[str, dict[str, Any]], ...]
    family: Family
    origin: str


@router.get("")
def models(request: Request, services: Annotated[Services, Depends(services)]) -> Response:
    """Every checkpoint here, and those that were refused with the reason."""
    return page(request, "models.html", _models(services, urls_for(request)))


@router.get(".json")
def models_json(request: Request, services: Annotated[Services, Depends(services)]) -> Response:
    """Its JSON twin."""
    return twin(_models(services, urls_for(request)))


@router.get("/{slug}.json")
def model_json(slug: str, request: Request, services: Annotated[Services, Depends(services)]) -> Response:
    """The JSON twin of a checkpoint's page, with the card and the scan's figures in full."""
    checkpoint = services.catalogue.get(slug)
    names, missing = names_of(checkpoint)
    stored, _ = stored_of(checkpoint)
    counted, _ = accounting_of(checkpoint)
    return twin(
        {
            **{key: value for key, value in checkpoint.to_json().items() if key not in ("path", "source")},
            "body": checkpoint.card.body,
            "scan": None
            if names is None
            else {key: names.meta.get(key) for key in ("corpus", "quality", "legibility", "thresholds")},
            "missing": missing,
            "family": family_of(services, urls_for(request), checkpoint),
            "evaluation": None if stored is None else document(checkpoint, stored.tasks)["tasks"],
            "accounting": counted,
        }
    )


@router.get("/{slug}")
def model(slug: str, request: Request, services: Annotated[Services, Depends(services)]) -> Response:
    """One checkpoint; with `embed`, its figures or other parts for another page."""
    named = listed(request.query_params.get("embed", ""))
    if is_embed(request) and (not named or "figure" in request.query_params or {*named} & {*FIGURE_PARTS}):
        return embedded_figures(request, slug, services)
    origin = f"{request.url.scheme}://{request.url.netloc}"
    return page(request, "model.html", _model(services, slug, urls_for(request), origin), also=FIGURE_PARTS)


def _models(services: Services, urls: Urls) -> ModelsPage:
    entries = services.catalogue.entries()
    lines = tuple(
        ModelLine(c.slug, urls.model(c.slug), describe(c), c.origin, c.hash, c.has_names)
        for c in (entry.checkpoint for entry in entries)
        if c is not None
    )
    return ModelsPage("Checkpoints", lines, tuple(e.error.message for e in entries if e.error is not None))


def _model(services: Services, slug: str, urls: Urls, origin: str) -> ModelPage:
    checkpoint = services.catalogue.get(slug)
    names, missing = names_of(checkpoint)
    fields = checkpoint.card.fields
    measured = (*CARD_FIGURES, *CARD_SHARES, *JUDGED_WORDS)
    apart = (*measured, *HELD_OUT, *MEASURED_ON, *LINEAGE)
    return ModelPage(
        title=f"{checkpoint.slug}: checkpoint",
        slug=checkpoint.slug,
        name=checkpoint.title,
        said=describe(checkpoint),
        card=tuple(_card_fact(key, fields) for key in fields if key not in apart),
        card_figures=tuple(_card_fact(key, fields) for key in fields if key in measured),
        measured_on=next((fields[key] for key in MEASURED_ON if key in fields), None),
        held_out=tuple(_card_fact(key, fields) for key in fields if key in HELD_OUT),
        body=rendered(without_tables(checkpoint.card.body), below=2),
        quality=_quality(checkpoint, names),
        scanned=_scanned(names),
        missing=missing,
        figures=() if names is None else figures_of(checkpoint, names, urls),
        beside="" if names is None else beside(names),
        scan=scan_form(services, checkpoint.slug, urls.scans(checkpoint.slug)),
        layers=tuple(
            LayerLink(layer, urls.layer(checkpoint.slug, layer), checkpoint.config.feed_forward.d_ff)
            for layer in range(checkpoint.config.n_layers)
        ),
        config=checkpoint.config.to_json(),
        hash=checkpoint.hash,
        judged=judged(checkpoint, services.catalogue, urls),
        accounted=accounted(checkpoint),
        family=family_of(services, urls, checkpoint),
        origin=origin,
        ordinary=ordinary_part(checkpoint),
        units=_units(names),
    )


def _units(names: Names | None) -> tuple[tuple[str, dict[str, Any]], ...]:
    """What a scan found of an ordinary model's units, layer by layer and over all."""
    found = names.meta.get("values") if names is not None and names.plain is not None else None
    if not isinstance(found, dict):
        return ()
    return (*((f"L{index}", row) for index, row in enumerate(found["layers"])), ("all", found["all"]))


def ordinary_part(checkpoint: Checkpoint) -> OrdinaryPart | None:
    """None for a legible checkpoint."""
    if not isinstance(checkpoint, OrdinaryCheckpoint):
        return None
    config, bos, units = checkpoint.config, checkpoint.bos, checkpoint.config.feed_forward
    begins = "none" if bos is None else f"{bos.text}, {'put before' if bos.default else 'not put before'} a text"
    facts = [
        Fact("weights hash", checkpoint.hash),
        Fact("from", checkpoint.name or checkpoint.source.name),
        Fact("revision", checkpoint.revision or "–"),
        Fact("family", config.family_name),
        Fact("units", f"{PLAIN_NAMES[units.activation]} ({config.act}), {units.d_ff:,} a layer"),
        Fact("norm", config.norm + (", also after each sublayer" if config.post_norms else "")),
        Fact("positions", f"{config.positions}, at most {config.context:,} tokens"),
        Fact("read in", checkpoint.compute),
        Fact("begin-of-text token", begins),
        Fact("chat template", "none" if checkpoint.chat_template is None else "yes"),
    ]
    if config.logit_softcap is not None:
        facts.append(Fact("logit soft-cap", f"{config.logit_softcap:g}; a reading's sum is of the logit before it"))
    found = checkpoint.certificate or {}
    certificate = () if not found else (
        Fact("against", f"{found['against']}, {found['dtype']} on {found['device']}"),
        Fact("first tokens", "the first {top} agree at {top_agrees} of {positions} positions".format(**found)),
        Fact(
            "log-probabilities",
            f"largest difference {found['log_probability_difference']:.1e} nats, tolerance {found['tolerance']:g}",
        ),
        Fact("sum", f"largest residual {found['sum_residual_over_tolerance']:.1%} of a reading's tolerance"),
        *_rounded(found),
        Fact("versions", ", ".join(f"{name} {version}" for name, version in found["versions"].items())),
    )  # fmt: skip
    return OrdinaryPart(tuple(facts), certificate)


def _rounded(certificate: dict[str, Any]) -> tuple[Fact, ...]:
    """What a model in half precision rounds away, which certificates of before it was measured do not say."""
    most = certificate.get("rounding_over_tolerance", 0.0)
    return (Fact("rounding", f"a term of the floor, at most {most:.1%} of that tolerance"),) if most else ()


def _card_fact(key: str, fields: Mapping[str, str]) -> Fact:
    """An entry of the card in words. A number that cannot be read is shown as it is written."""
    value = fields[key]
    try:
        if key == "perplexity":
            value = perplexity_text(float(value))
        elif key in CARD_SHARES:
            value = percent(float(value), 1)
        elif key == "tokens" or key.endswith("_tokens"):
            value = f"{int(value):,}"
        elif key in JUDGED_WORDS and "perplexity" in key:
            digits = perplexity_digits(float(fields.get(key.removesuffix("_se"), value)), key)
            value = f"{float(value):,.{digits}f}"
    except (ValueError, OverflowError):
        pass
    return Fact(CARD_WORDS.get(key, JUDGED_WORDS.get(key, key.replace("_", " "))), value)


def _quality(checkpoint: Checkpoint, names: Names | None) -> tuple[Fact, ...]:
    """Loss and perplexity where the scan measured them, else from the card."""
    if names is not None:
        return tuple(
            Fact(QUALITY_WORDS.get(key, key.replace("_", " ")), _quality_text(key, value))
            for key, value in names.quality.items()
            if isinstance(value, str | int | float)
        )
    perplexity = checkpoint.perplexity
    return () if perplexity is None else (Fact("perplexity", perplexity_text(perplexity)),)


def _quality_text(key: str, value: str | int | float) -> str:
    """The same digits as on the card and in the terminal."""
    if isinstance(value, float) and key in ("loss", "loss_se"):
        return loss_text(value)
    return perplexity_text(value) if isinstance(value, float) and key == "perplexity" else _number(value)


def _scanned(names: Names | None) -> tuple[Fact, ...]:
    """What the figures were measured on."""
    if names is None:
        return ()
    corpus = names.meta.get("corpus")
    if not isinstance(corpus, dict):
        return ()
    return tuple(
        Fact(CORPUS_WORDS.get(key, key.replace("_", " ")), _number(value))
        for key, value in corpus.items()
        if isinstance(value, str | int | float)
    )


def _number(value: str | int | float) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else f"{value:,.3f}" if abs(value) < 1000 else f"{value:,.0f}"
