"""verifiers' own evaluation of a game of spag, both roles played by one model behind any OpenAI-compatible endpoint.

    python examples/verifiers_eval.py spag-taboo --model my-model --base-url http://127.0.0.1:8000/v1 --games 16

The same from the command line, with a frozen defender: vf-eval spag-taboo -m my-model --client.base-url URL -n 16
--env.trained '["attacker"]' --env.defender.model other. prime-rl takes the same [env] block, id spag-taboo, for
training.
"""

import argparse
import json
import os
from collections import defaultdict
from pathlib import Path
from statistics import mean

from verifiers.v1.cli.eval.main import main as evaluate


def main() -> None:
    parser = argparse.ArgumentParser(description="evaluate a game of spag with verifiers")
    parser.add_argument("environment", help="spag-taboo, spag-kuhn-poker, ...")
    parser.add_argument("--model", required=True)
    parser.add_argument("--base-url", required=True)
    parser.add_argument("--games", type=int, default=16)
    parser.add_argument("--output", type=Path, default=Path("outputs"))
    given = parser.parse_args()

    os.environ.setdefault("OPENAI_API_KEY", "none")
    client = ["--client.base-url", given.base_url, "--client.api-key-var", "OPENAI_API_KEY"]
    where = ["-o", str(given.output), "--run.dir", given.environment, "--clean", "--no-push", "--no-rich"]
    evaluate([given.environment, "-m", given.model, *client, "-n", str(given.games), *where])

    rewards, outcomes, failed = defaultdict(list), defaultdict(int), 0
    for line in (given.output / given.environment / "traces.jsonl").read_text(encoding="utf-8").splitlines():
        episode = json.loads(line)
        if not episode["ok"]:  # a model failed: the game has no result
            failed += 1
            continue
        traces = episode["traces"]
        for trace in traces:
            rewards[trace["agent"]["name"]].append(trace["rewards"]["game"]["score"])
        outcomes[traces[0]["info"]["outcome"]["outcome"]] += 1
    print("\nmean reward by role")
    for role, paid in sorted(rewards.items()):
        print(f"  {role:<12} {mean(paid):+.2f} over {len(paid)} games")
    print(", ".join(f"{name} {count}" for name, count in sorted(outcomes.items())))
    if failed:
        print(f"{failed} of {given.games} games failed and are left out")


if __name__ == "__main__":
    main()
