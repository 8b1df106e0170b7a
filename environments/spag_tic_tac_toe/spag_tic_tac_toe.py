"""Tic-Tac-Toe of spag for verifiers and prime-rl: ``vf-eval spag-tic-tac-toe``."""

from spag.adapters.verifiers import plugin

TicTacToeEnv, TicTacToeTaskset, Speaker = plugin("tic_tac_toe")

__all__ = ["Speaker", "TicTacToeEnv", "TicTacToeTaskset"]
