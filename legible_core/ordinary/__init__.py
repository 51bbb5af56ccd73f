"""Adding ordinary models: from a Hugging Face folder or name to a checkpoint that every page can open.

loading.py         Hugging Face's modules, TransformerLens' bridge over them, an estimate before either
certificate.py     parity with Hugging Face, and the sum, on fixed prompts
adding.py          all of it in order: what `legible add` does
export.py          a legible checkpoint whose units are all GELU, as a GPT-2 folder
"""
