"""``spag report``: what a run came to, as one HTML file that needs nothing else, with every plot as PNG and SVG beside it.

    reading     what a run folder holds, all of it optional but the manifest
    findings    did it get better: sentences drawn from paired comparisons
    showcase    the best and the strangest games
    rows        figures as rows of tables
    plots       one look for all plots; saving, and the SVG that goes into the page
    charts      the plots themselves
    page        the template filled in and written

The same run gives the same bytes. The page holds no script and asks nothing from the network; every text of a model is escaped and
isolated.
"""
