"""``spag web``: pages to browse the games of a run, to follow it while it works, and to play against its models and bots.

    index, queries     the games in SQLite, found by filters and full text; rows stay in their files
    models             one engine a model, shared by everyone, with replies that can be watched while they grow
    matches            the games that visitors play, kept apart by session
    security           who may ask: loopback names, the same origin, the token
    following          the run as it is now, and the loop that keeps the index up with it
    site               what every route needs
    pages, play, app   the routes

Rendered on the server; htmx (vendored) swaps pieces of pages. Nothing is loaded from elsewhere.
"""
