"""``spag export model``: a trained model as others take it: a plain transformers folder, with a model card, as GGUF, on the hub.

sources      what is to be exported: a run and which of its models, or any model
weights      loading, merging a LoRA adapter into its base, saving
vocabulary   a tokenizer in the words of GGUF
gguf_file    weights and vocabulary as one GGUF file
metadata     the card's metadata for the hub: base, licence, figures
results      what was measured, in the card
markdown     foreign texts made safe inside Markdown, tables
card         the model card, README.md: what the model is, where it comes from, what was measured
push         to the hub
model        all of it in order; the folder is complete or absent
"""

from spag.export.gguf_file import GgufType
from spag.export.model import Exported, export_model
from spag.export.push import Destination
from spag.export.sources import Source, find_source

__all__ = ["Destination", "Exported", "GgufType", "Source", "export_model", "find_source"]
