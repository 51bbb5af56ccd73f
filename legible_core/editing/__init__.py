"""Experiments on edits: what a gain moves, what can be installed, where a write arrives; docs/edit-lab.md.

native     the layer-native token table, the keys of all that follows
results    what was measured, stored beside the weights; imports no torch
"""
