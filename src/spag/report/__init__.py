"""``spag report``: what a run came to, as one HTML file that needs nothing else, with every plot as PNG and SVG beside
it; and the tables of results that terminal and model card show, too.

    cells           a table, and how its numbers are written
    arena_tables, run_tables    the tables themselves
    headline        did it get better: sentences drawn from paired comparisons
    showcase        the best and the strangest games
    plot_files      one look for all plots; charts, curves: the plots
    html            text to HTML, for the web pages, too
    page            the template filled in and written

The same run gives the same bytes. The page holds no script and asks nothing from the network; what models wrote is
escaped and isolated.
"""
