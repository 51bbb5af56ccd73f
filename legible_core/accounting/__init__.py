"""The signed accounting of a prediction: how many components carry it, what they are called by what they write.

"Through the Looking Glass" sections 2 and 3. `counts` accounts for one prediction, `corpus` for many, `writes` names
components by what they helped to predict, `carriage` fits a layer's update by a fixed map, `depth` follows the running
sum and the stream towards the readout, `reads` compares a read row's tokens with what drives the unit.
docs/accounting.md.
"""
