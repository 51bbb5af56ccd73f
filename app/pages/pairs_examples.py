"""Minimal pairs to begin with, written for this page: one a phenomenon, of the kinds that BLiMP tests."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pair:
    """Two sentences that differ in one respect; the first is the acceptable one."""

    phenomenon: str
    good: str
    bad: str


EXAMPLES = (
    Pair("subject and verb", "The old clocks were striking twelve.", "The old clocks was striking twelve."),
    Pair("agreement past a distractor", "The key to the cabinets was lost.", "The key to the cabinets were lost."),
    Pair("gender of a reflexive", "The queen admired herself.", "The queen admired himself."),
    Pair("number of a reflexive", "The brothers blamed themselves.", "The brothers blamed himself."),
    Pair("binding", "My sister's husband reproached himself.", "My sister's husband reproached herself."),
    Pair("determiner and noun", "She wrote these letters at night.", "She wrote this letters at night."),
    Pair("irregular past", "The child broke the cup.", "The child broken the cup."),
    Pair("polarity item", "Nobody had ever seen the island.", "Somebody had ever seen the island."),
    Pair("quantifier after there", "There was a letter on the table.", "There was each letter on the table."),
    Pair("comparative", "She was wiser than her sister.", "She was wise than her sister."),
    Pair("argument structure", "The lady smiled at the captain.", "The lady smiled the captain."),
    Pair("filler and gap", "I know what the doctor saw.", "I know that the doctor saw."),
    Pair("island", "Which song did he sing while she read?", "Which song did he read while she sang?"),
    Pair("raising and control", "It was likely that he would come.", "It was eager that he would come."),
)
