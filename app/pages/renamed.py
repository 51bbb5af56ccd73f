"""Whether the names that a stored reading shows are still those of its checkpoint: said where they are not.

A reading keeps the names that it was made with. A later scan names anew, and the pages of units and heads then show its
names; the reading's own stay, and one sentence says how many differ. Names are compared, not their dates.
"""

from __future__ import annotations

from app.pages.named import component_of
from legible_core.errors import NotFound
from legible_core.naming.names import Label, Names
from legible_core.reading import Contributor, Summary
from legible_core.units import Channel, Unit, parse


def renamed(summary: Summary, names: Names | None) -> int:
    """How many of a reading's strongest contributors are named otherwise now; 0 where there are no names now."""
    return 0 if names is None else sum(_differs(contributor, names) for contributor in summary.top)


def said_renamed(summary: Summary, names: Names | None) -> str:
    """The sentence about names that changed since; "" where none did."""
    count = renamed(summary, names)
    if not count:
        return ""
    are = "is" if count == 1 else "are"
    return (
        f"The names are those that this reading was made with; {count} of its {len(summary.top)} strongest "
        f"contributors {are} named otherwise now."
    )


def _differs(c: Contributor, names: Names) -> bool:
    component = parse(c.id)
    if isinstance(component, Unit):
        name = component_of(names, component)
        return c.formula != (None if name is None else name.formula or None)
    return any(
        (None if operand.label is None else operand.label.text) != _label(names, operand.id) for operand in c.operands
    )


def _label(names: Names, id: str) -> str | None:
    """The label that a reading made now would give a head's channel."""
    channel = parse(id)
    if not isinstance(channel, Channel) or not names.config.is_bounded(channel.layer, channel.head):
        return None
    label: Label | None
    try:
        own = names.config.attention.value == "membership"  # such a channel is its own operand
        label = names.operand(channel).label if own else names.component(channel).label
    except NotFound:
        return None
    return None if label is None else label.text
