"""The SFT mix of ``spag train``, which takes any file of samples, and warnings where a run's mix is not what its settings say.

``spag run`` and ``spag rewards`` mix while they write samples; a file of theirs holds its SFT rows, and gets no others here.
"""

from collections.abc import Callable
from pathlib import Path

from spag.config.schema import OfflineRLConfig, TrainingConfig
from spag.core.episodes import SampleType, all_samples
from spag.core.sft import read_sft
from spag.core.store import write_rows

NO_DATA = (
    "warning: offline_rl.sft_data is not set, so no instruction data is mixed in, as the paper does against forgetting (Alpaca 52K); "
    "name a file of it, or set offline_rl.sft_coef=0 to train without"
)
NO_WEIGHT = "warning: sft_coef=0, so the rows of sft_data={} are read and train nothing; set sft_coef above 0 (the paper: 0.5)"


def mix_warning(training: TrainingConfig) -> str | None:
    """Return what is wrong with the SFT mix of ``training``: a weight without data (offline RL only), or data without a weight."""
    if isinstance(training, OfflineRLConfig) and training.sft_coef and (training.sft_data is None or training.sft_samples == 0):
        return NO_DATA
    return NO_WEIGHT.format(training.sft_data) if training.sft_data and not training.sft_coef else None


def with_sft(source: Path, training: TrainingConfig, seed: int, target: Path, note: Callable[[str], None]) -> Path:
    """Return the file to train on: ``source``, or ``target`` with its samples and the SFT mix of ``training``, drawn by seed.

    Empty samples, which upstream's files have, are left out; ``source`` stays as it is. ``note`` is told what was mixed in and left out.
    Raises ``DataError`` naming file and row.
    """
    rows = list(all_samples(source))
    samples = [sample for sample in rows if sample.completion.strip()]
    if empty := len(rows) - len(samples):
        note(f"{source}: {empty:,} of {len(rows):,} rows have an empty completion: nothing to train on, left out")
    held = sum(sample.type is SampleType.SFT for sample in samples)
    mix = read_sft(training.sft_data, training.sft_samples, seed) if training.sft_data and not held else []
    if held and training.sft_data:
        note(f"{source} holds {held:,} SFT rows, so sft_data is not mixed in again")
    elif mix:
        note(f"{len(mix):,} SFT rows of {training.sft_data} are mixed into {len(samples):,} samples: {target}")
    if not held and (warning := mix_warning(training)):
        note(warning)
    if not (mix or empty):
        return source
    write_rows(target, [*samples, *mix])
    return target
