"""Names: evidence plus a short label for operands, channels and units.

detect    tokens on which an operand is decisively ON             measured on data
promote   tokens that a component's write column promotes         read off the weights
label     the class of words that such a list is enriched in      measured on data
scan      the pass over a corpus that makes all of it
names     the store that ships beside the weights; imports no torch
"""
