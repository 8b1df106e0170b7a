"""Our games in other ecosystems, and theirs here: one module for each, which nothing imports until it is used
(docs/ecosystem.md).

A module whose package is missing cannot be imported; each says at its top which extra brings it.
"""
