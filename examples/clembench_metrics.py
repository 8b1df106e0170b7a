"""An arena in the metrics of clembench, as a table that its evaluation would make.

python examples/clembench_metrics.py results --game kuhn_poker bot:equilibrium bot:random
"""

import argparse
import json
from pathlib import Path

from spag.cli import main as spag

METRICS = ("success", "lose", "aborted", "main_score", "request_success_ratio")


def main() -> None:
    parser = argparse.ArgumentParser(description="clembench's metrics of an arena")
    parser.add_argument("output", type=Path, help="the arena's folder; games in it are kept")
    parser.add_argument("players", nargs="+", help="what spag arena takes")
    parser.add_argument("--game", default="adversarial_taboo")
    parser.add_argument("--tasks", type=int, default=60)
    given = parser.parse_args()
    settings = ["--game", given.game, "--set", f"arena.tasks={given.tasks}", "--output", str(given.output)]
    spag(["arena", *given.players, *settings], standalone_mode=False)
    print(f"{'player':20} {'role':10}", *(f"{metric:>22}" for metric in METRICS))
    for row in json.loads((given.output / "results.json").read_text())["clembench"]:
        values = (f"{row[metric]:22.2f}" if row[metric] is not None else f"{'n/a':>22}" for metric in METRICS)
        print(f"{row['name']:20} {row['role']:10}", *values)


if __name__ == "__main__":
    main()
