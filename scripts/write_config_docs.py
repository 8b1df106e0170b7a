"""Writes docs/configuration.md from the option schema. ``make docs`` runs it; a test fails when the page is out of
date.
"""

from pathlib import Path

from spag.config.reference import configuration_page

if __name__ == "__main__":
    page = Path(__file__).resolve().parent.parent / "docs" / "configuration.md"
    page.write_text(configuration_page(), encoding="utf-8")
