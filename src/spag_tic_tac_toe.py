"""``vf-eval spag-tic-tac-toe``: tic_tac_toe of spag as a plugin of verifiers and prime-rl (``spag.adapters.verifiers``)."""

from spag.adapters.verifiers import plugin

TicTacToeEnv, TicTacToeTaskset, Speaker = plugin("tic_tac_toe")

__all__ = ["Speaker", "TicTacToeEnv", "TicTacToeTaskset"]
