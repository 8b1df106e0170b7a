"""``spag web``: pages to browse the games of a run, follow its progress, and play against its models and bots.

    index, queries     the games in SQLite, found by filters and full text; rows stay in their files
    figures            metrics of training, phase by phase
    sessions           the open models, and the games that visitors play with them, by session
    security           access control: loopback names, the same origin, the token; for API servers, too
    server             the socket and uvicorn's settings; for API servers, too
    site               the current state of the run, templates and forms
    pages, live_games  the routes
    app                the application, and the loop that keeps the index up to date

Rendered on the server; htmx (vendored) swaps pieces of pages. Nothing is loaded from elsewhere.
"""
