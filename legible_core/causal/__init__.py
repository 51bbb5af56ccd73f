"""Causal checks: whether what a reading credits also mattered.

rerun        many edited re-runs of one prediction in one batch of single tokens
plain        the same one forward at a time: edited readings, ordinary models
kept         kept sets in a batch, for edited readings and ordinary models
checks       the leading contributions of a reading: removed, replaced by their mean, operands flipped
records      checks.json, the bands measured for a checkpoint, beside its weights           imports no torch
bands        the measurement of those bands on held-out predictions
sets         necessity of sets of components
sufficiency  the smallest kept set found that still emits the token
paths        how much of one component's effect goes through another
sources      what feeds an operand, told by removal
"""
