"""spag's games as OpenEnv environments: one server, a game for each session, with the opponent inside (``pip install '.[openenv]'``).

environment   one game: actions, observations, state, and the client
server        the application, who may ask, and its bounds
"""
