"""``spag report``: what a run came to, as one HTML file that needs nothing else, with every plot as PNG and SVG beside it.

    findings        did it get better: sentences drawn from paired comparisons
    showcase        the best and the strangest games
    rows            figures as rows of tables
    plots, charts   one look for all plots, and the plots themselves
    page            the template filled in and written

The same run gives the same bytes. The page holds no script and asks nothing from the network; what models wrote is escaped and isolated.
"""
