"""The demo on a simulated cluster of three nodes, a node killed in play and a process in training, beside the demo
undisturbed.

    python tests/cluster/demo.py FOLDER

Both runs are float32, where a game does not depend on what is played beside it, and train in two processes of one
thread. FOLDER then holds both, ``alone`` and ``cluster``. It takes half an hour on two cores; the tests do the same
with a tiny model (test_cluster_run.py).
"""

import os
import subprocess
import sys
import time
from pathlib import Path

from ray.cluster_utils import Cluster
from rich.console import Console
from safetensors.torch import load_file
from watching import a_trainer, plays

from game_files import games_in, lines, wait_for_lines, wait_until

SETTINGS = (
    "model.dtype=float32", "imitation.processes=2", "imitation.micro_batch_size=4", "spag.processes=2",
    "spag.micro_batch_size=4", "spag.save_steps=5",
)  # fmt: skip
ITERATION = "2-spag/iteration-1"
HOUR = 3600.0
say = Console().print


def start(folder: Path, *more: str) -> subprocess.Popen[bytes]:
    chosen = [part for setting in SETTINGS for part in ("--set", setting)]
    return subprocess.Popen([sys.executable, "-m", "spag", "run", "demo", "--output", str(folder), *chosen, *more])


def run_disturbed(folder: Path) -> None:
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    cluster.add_node(num_cpus=1)
    doomed = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    games, steps = (folder / ITERATION / name for name in ("episodes.jsonl", "metrics.jsonl"))
    first = start(folder, "--ray", cluster.address)
    wait_until(lambda: plays(doomed), HOUR)
    wait_for_lines(games, 10, HOUR)
    cluster.remove_node(doomed, allow_graceful=False)
    say(f"killed a node with {lines(games)} games on file")
    wait_for_lines(steps, 8, HOUR)
    a_trainer().kill()
    say(f"killed a training process after {lines(steps)} steps")
    say(f"spag run ended with exit code {first.wait()}; the same command again")
    again = start(folder, "--ray", cluster.address)
    assert again.wait() == 0
    cluster.shutdown()


def run_undisturbed(folder: Path) -> None:
    assert start(folder).wait() == 0


def compare(alone: Path, cluster: Path) -> None:
    for part in (ITERATION, "arena"):
        ours, theirs = (games_in(run / part / "episodes.jsonl") for run in (cluster, alone))
        assert ours.keys() == theirs.keys()
        say(
            f"{part}: {len(ours)} games, {sum(ours[name] == theirs[name] for name in ours)} of them "
            "equal to the last token"
        )
    ours, theirs = (load_file(run / ITERATION / "checkpoint" / "adapter_model.safetensors") for run in (cluster, alone))
    say(f"weights: {max(float((ours[name] - theirs[name]).abs().max()) for name in ours):.1e} apart at most")


if __name__ == "__main__":
    os.environ |= {"OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    root = Path(sys.argv[1])
    for name, run in (("alone", run_undisturbed), ("cluster", run_disturbed)):
        began = time.monotonic()
        run(root / name)
        say(f"{name}: {(time.monotonic() - began) / 60:.1f} minutes")
    compare(root / "alone", root / "cluster")
