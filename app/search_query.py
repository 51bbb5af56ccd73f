"""What a person types into the search box, as conditions; imports no torch and no SQL.

    parse_query('promotes:" worst"')        # units whose promote list holds the token " worst"
    parse_query("determiner ∖ * → superlative")
    parse_query("∃ * half-life:<3 layer:4")
    parse_query("negation")                 # a bare word: labels and tokens, grouped

The syntax is described in docs/search.md and, from the same `FIELDS`, on the page. Nothing in it is a pattern but the
star of a formula: `%`, `_`, `?`, quotes and all else that SQL or a shell would take for one are text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from app.search_text import fold_label, fold_token, storable
from legible_core.errors import LegibleError, TooLarge
from legible_core.legibility import Legibility
from legible_core.units import KINDS, Channel, Head, HeadOperand, Operand, QuantifierOperand, Unit, parse

Side: TypeAlias = Literal["promote", "detect"]
MAX_CHARACTERS = 1000
CLASSES = tuple(str(name) for name in Legibility)
PARTS = ("units", "heads")
# What may stand before a colon, with what it does and an example.
FIELDS: dict[str, tuple[str, str]] = {
    "promotes": ("units whose promote list holds a token", 'promotes:" worst"'),
    "detects": ("operands that fire on a token", 'detects:" not"'),
    "label": ("everything with a label", "label:negation"),
    "model": ("in one checkpoint only", "model:novel-legible"),
    "layer": ("in one layer only", "layer:4"),
    "kind": ("one operation only", "kind:existential"),
    "class": ("one class only", "class:SELECTIVE"),
    "half-life": ("quantifiers by their half-life in tokens", "half-life:<5"),
    "in": ("units or heads only", "in:units"),
}
OPERATORS = {"∩": "intersection", "∖": "difference", "∃": "existential", "%": "proportion"}
_ASCII = (("->", "→"), (" & ", " ∩ "), (" \\ ", " ∖ "))
_WORDS = {"exists": "∃", "some": "∃", "share": "%", "proportion": "%"}
_PLAIN = {"gelu": "gelu", "g": "gelu", "σ": "sigmoid", "sigmoid": "sigmoid", "softplus": "softplus", "relu": "relu"}
# `name:` with what follows; a quoted text; anything else up to a space. A quote opens at a part's start only: don't.
_PART = re.compile(
    r"""(?:(?P<name>[A-Za-z][A-Za-z-]*):(?!//))?(?:"(?P<double>[^"]*)"|'(?P<single>[^']*)'(?=\s|$))|(?P<bare>\S+)"""
)
_FIELD = re.compile(r"([A-Za-z][A-Za-z-]*):(?!//)(.*)", re.DOTALL)
_NUMBER = r"(\d{1,6}(?:\.\d{1,6})?)"
_SPOKEN = re.compile(rf"\b(?:with )?half-life (under|below|over|above) {_NUMBER}\b")


@dataclass(frozen=True, slots=True)
class Token:
    """A token asked for: `exact`, space by space, or by `fold` alone."""

    text: str
    exact: bool

    @property
    def fold(self) -> str:
        return fold_token(self.text)


@dataclass(frozen=True, slots=True)
class Conditions:
    """What a component must be; None leaves it open. `a`, `b` and `promotes` are folded labels."""

    kinds: tuple[str, ...] = ()
    a: str | None = None
    b: str | None = None
    promotes: str | None = None
    above: float | None = None
    below: float | None = None
    layer: int | None = None
    cls: str | None = None
    part: str | None = None

    @property
    def of_components_only(self) -> bool:
        """Whether it asks for something that an operand has not."""
        return bool(self.kinds or self.a or self.b or self.promotes or self.part) or self.timed

    @property
    def labelled(self) -> bool:
        """Whether it asks for a label."""
        return self.a is not None or self.b is not None or self.promotes is not None

    @property
    def subject(self) -> bool:
        """Whether it says what to look for, and not only where."""
        return bool(self.kinds) or self.labelled

    @property
    def timed(self) -> bool:
        return self.above is not None or self.below is not None


@dataclass(frozen=True, slots=True)
class Query:
    """A search. One of id, token, label, words is set, or none for a formula and filters alone."""

    text: str = ""
    id: str | None = None
    token: Token | None = None
    side: Side | None = None
    label: str | None = None
    words: str | None = None
    model: str | None = None
    conditions: Conditions = field(default_factory=Conditions)

    @property
    def empty(self) -> bool:
        return self == Query(self.text, side=self.side, model=self.model)


def parse_query(text: str, side: Side | None = None) -> Query:
    """The query that a text stands for; `side` limits tokens and labels to one side.

    Raises TooLarge over `MAX_CHARACTERS`, and LegibleError naming what is not understood and what would be.
    """
    if len(text) > MAX_CHARACTERS:
        raise TooLarge(
            f"The search is {len(text):,} characters long; the limit is {MAX_CHARACTERS:,} characters.",
            hint="A token, a label, a formula or an id is enough.",
        )
    query = Query(text=text, side=side)
    spoken = _SPOKEN.search(text)
    if spoken is not None:
        sign = "<" if spoken[1] in ("under", "below") else ">"
        text = f"{text[: spoken.start()]} half-life:{sign}{spoken[2]} {text[spoken.end() :]}"
    rest: list[str] = []
    formula = any(mark in text for mark in ("→", "->"))
    for part in _PART.finditer(text):
        quoted = part["double"] if part["double"] is not None else part["single"]
        named = None if quoted is not None else _FIELD.fullmatch(part["bare"])
        if part["name"] is not None and quoted is not None:
            query = _with_field(query, part["name"], quoted, exact=True)
        elif named is not None:
            query = _with_field(query, named[1], named[2], exact=False)
        elif quoted is not None and not formula:
            query = _with_token(query, Token(spelled(quoted), exact=True), side)
        else:
            rest.append(part[0])
    return _finished(query, " ".join(rest))


def spelled(text: str) -> str:
    """A token copied from a chip, as its text: `·worst` is " worst", ↵ a line end, ⇥ a tab."""
    if text in ("↵", "⇥"):
        return {"↵": "\n", "⇥": "\t"}[text]
    return " " + text[1:] if text[:1] == "·" and len(text) > 1 else text


def _finished(query: Query, rest: str) -> Query:
    """What is left when fields and quoted tokens are taken out: a formula, an id, or words."""
    for written, mark in _ASCII:
        rest = f" {rest} ".replace(written, mark).strip()
    first = rest.split(" ", 1)[0].casefold()
    if first in _WORDS and " " in rest:
        rest = f"{_WORDS[first]} {rest.split(' ', 1)[1]}"
    if not rest:
        return _checked(query)
    if any(mark in rest for mark in "→∩∖∃") or re.match(r"%\s+\S", rest):
        return _checked(_with_formula(query, rest))
    if query.label is not None and query.token is None:  # label:-ing form
        return _checked(replace(query, label=fold_label(f"{query.label} {rest}")))
    if query.token is not None:
        raise LegibleError(
            f"Beside a token or a label, {_short(rest)!r} is one search too many.", code="bad_query", status=422,
            hint='Search for one thing at a time, or give a formula: ∃ * → " than".',
        )  # fmt: skip
    if re.fullmatch(r"[Ll]\d+\.\S+", rest):
        return _checked(replace(query, id=_id(rest)))
    if rest == "*":
        return _checked(replace(query, token=Token("*", exact=False)))
    return _checked(replace(query, words=spelled(rest)))


def _checked(query: Query) -> Query:
    """Half-lives are quantifiers'; and a search says what it looks for."""
    conditions = query.conditions
    if conditions.timed and not conditions.kinds:
        conditions = replace(conditions, kinds=("existential", "proportion"))
    query = replace(query, conditions=conditions)
    sought = (query.id, query.token, query.label, query.words)
    if all(one is None for one in sought) and not conditions.subject and not query.empty:
        raise LegibleError(
            "A layer, class or part alone is no search.", code="bad_query", status=422,
            hint="Add a token, a label or a kind; a layer's page lists all its units.",
        )  # fmt: skip
    return query


def _with_field(query: Query, name: str, value: str, *, exact: bool) -> Query:
    name, conditions = name.lower(), query.conditions
    if name not in FIELDS:
        raise LegibleError(
            f"There is no filter {_short(name)!r}; the filters are {', '.join(FIELDS)}.", code="unknown_filter",
            status=422, hint="To search for a text that has a colon in it, put it in quotes.",
        )  # fmt: skip
    if not value:
        raise LegibleError(f"The filter {name} is empty; write {FIELDS[name][1]}.", code="bad_filter", status=422)
    match name:
        case "promotes" | "detects":
            token = Token(spelled(value), exact or spelled(value) != value)
            return _with_token(query, token, "promote" if name == "promotes" else "detect")
        case "label":
            return replace(query, label=fold_label(value))
        case "model":
            return replace(query, model=value.strip())
        case "layer":
            number = value.strip().removeprefix("L")
            if not re.fullmatch(r"[0-9]{1,4}", number):
                raise _bad(name, value, "a number such as 4")
            return replace(query, conditions=replace(conditions, layer=int(number)))
        case "kind":
            kind = OPERATORS.get(value.strip(), value.strip().casefold())
            if kind not in (*KINDS, "membership"):
                raise _bad(name, value, ", ".join((*KINDS, "membership")))
            return replace(query, conditions=replace(conditions, kinds=(kind,)))
        case "class":
            if value.strip().upper() not in CLASSES:
                raise _bad(name, value, ", ".join(CLASSES))
            return replace(query, conditions=replace(conditions, cls=value.strip().upper()))
        case "half-life":
            above, below = _range(value)
            return replace(query, conditions=replace(conditions, above=above, below=below))
        case _:
            if value.strip().casefold() not in PARTS:
                raise _bad(name, value, ", ".join(PARTS))
            return replace(query, conditions=replace(conditions, part=value.strip().casefold()))


def _with_token(query: Query, token: Token, side: Side | None) -> Query:
    if query.token is not None:
        raise LegibleError("A search takes one token.", code="bad_query", status=422, hint="Search for each apart.")
    if not token.text:
        raise LegibleError("The token is empty.", code="bad_query", status=422, hint='A token is written " worst".')
    return replace(query, token=token, side=side)


def _with_formula(query: Query, text: str) -> Query:
    """`A ∩ B`, `A ∖ B`, `∃ A`, `% A`, `A` or a plain kind, then `→` and what is promoted; `*` leaves a part open."""
    left, arrow, right = (part.strip() for part in text.partition("→"))
    conditions = query.conditions
    if "→" in right:
        raise LegibleError("A formula has one arrow.", code="bad_formula", status=422, hint=_FORMULAS)
    marks = [mark for mark in OPERATORS if mark in left and (mark != "%" or left.startswith("%"))]
    if len(marks) > 1 or any(left.count(mark) > 1 for mark in marks):
        raise LegibleError("A formula has one operation.", code="bad_formula", status=422, hint=_FORMULAS)
    if marks:
        mark = marks[0]
        before, after = (part.strip() for part in left.split(mark, 1))
        both = mark in "∩∖"
        if both == (not before) or not after:
            message = f"The formula {_short(text)!r} is incomplete."
            raise LegibleError(message, code="bad_formula", status=422, hint=_FORMULAS)
        kinds = (OPERATORS[mark],)
        operands = (before, after) if both else (after, "*")
        conditions = replace(conditions, kinds=kinds, a=_label(operands[0]), b=_label(operands[1]))
    elif left.casefold() in _PLAIN:
        conditions = replace(conditions, kinds=(_PLAIN[left.casefold()],))
    elif left and left != "*":
        conditions = replace(conditions, a=_label(left))
    if right and right[0] in "\"'" and right[-1] == right[0] and len(right) > 2:
        query = _with_token(query, Token(spelled(right[1:-1]), exact=True), "promote")
    elif arrow and right and right != "*":
        conditions = replace(conditions, promotes=_label(right))
    query = replace(query, conditions=conditions)
    if query.empty:
        raise LegibleError("A formula of stars alone says nothing.", code="bad_formula", status=422, hint=_FORMULAS)
    return query


_FORMULAS = "For example: determiner ∖ *, * → comparative, ∃ * half-life:<5, modal ∩ * → negation."


def _label(text: str) -> str | None:
    """A label in a formula; None for the star. A half-life in parentheses, as names show it, is passed over."""
    text = re.sub(r"\s*\([^)]*tok\)\s*$", "", text)
    if text[:1] in "\"'“" and len(text) > 1:
        raise LegibleError(
            f"Before the arrow a formula takes labels, and {_short(text)} is a token.", code="bad_formula", status=422,
            hint='Operands are found by their tokens with detects:" not".',
        )  # fmt: skip
    return None if text == "*" else fold_label(text)


def _id(text: str) -> str:
    component = parse("L" + text[1:])
    if not isinstance(component, Unit | Channel | Head | Operand | HeadOperand | QuantifierOperand):
        raise LegibleError(f"{_short(text)} has no name to find.", code="bad_component", status=422)
    return str(component)


def _range(value: str) -> tuple[float | None, float | None]:
    """`<3`, `>32`, `1.5-3`."""
    text = value.strip().replace("–", "-")
    if found := re.fullmatch(rf"(<|>)=?{_NUMBER}", text):
        return (None, float(found[2])) if found[1] == "<" else (float(found[2]), None)
    if found := re.fullmatch(rf"{_NUMBER}-{_NUMBER}", text):
        return float(found[1]), float(found[2])
    raise _bad("half-life", value, "<3, >32 or 1.5-3, in tokens")


def _bad(name: str, value: str, valid: str) -> LegibleError:
    return LegibleError(f"The filter {name} cannot be {_short(value)!r}; it is {valid}.", code="bad_filter", status=422)


def _short(text: str) -> str:
    text = storable(text)
    return text if len(text) <= 40 else text[:39] + "…"
