"""``spag report``: a run's results as one self-contained HTML file, with every plot also as PNG and SVG; and the result
tables that the terminal and the model card share.

    cells           a table, and how its numbers are written
    arena_tables, run_tables    the tables themselves
    headline        did it get better: sentences drawn from paired comparisons
    showcase        the best games
    plot_files      one look for all plots; charts, curves: the plots
    html            text to HTML, for the web pages, too
    readable        what can be read of a damaged run, for the web pages, too
    page            the template filled in and written

The same run gives the same bytes. The page has no scripts and makes no network requests; model output is escaped and
isolated.
"""
