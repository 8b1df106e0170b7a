"""``spag export model``: a trained model as a plain transformers folder with a model card.

model      finding, merging and saving the weights; the folder is complete or absent
card       the model card; its text is card.md
markdown   text and tables as Markdown, in which no foreign text is active
training   the phases and settings that made a model
metadata   the card's metadata for the hub: base, licence, games
"""

from spag.export.metadata import ExportSource
from spag.export.model import export_model, find_source

__all__ = ["ExportSource", "export_model", "find_source"]
