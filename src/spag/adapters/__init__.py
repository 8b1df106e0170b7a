"""Our games in other ecosystems, and theirs here: one module each, imported only when used (docs/ecosystem.md).

A module whose package is missing cannot be imported; each names the extra to install at its top.
"""
