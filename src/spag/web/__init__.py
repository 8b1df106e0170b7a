"""``spag web``: a page to browse the games of a run, to follow it while it works, and to play against its checkpoints.

    run_folder  what a run folder holds: sources of games, stages, metrics, checkpoints
    index       the games in SQLite, found by filters and full text; rows stay in their files
    verdicts    why a game ended, and which words decided it
    speakers    one engine a checkpoint, shared by everyone, with replies that can be watched while they grow
    games       the games that visitors play, kept apart by session
    security    who may ask: loopback names, the same origin, the token
    render      text to HTML: everything escaped, invisible characters shown
    pages, play_pages, app   the routes

Rendered on the server; htmx (vendored) swaps pieces of pages. Nothing is loaded from elsewhere, and no page holds a script of its own.
"""
