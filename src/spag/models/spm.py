"""Converts a SentencePiece BPE model into a tokenizer of the ``tokenizers`` library, which needs no code of the model's
repository.

SentencePiece merges the neighbours whose union has the best score; ``tokenizers`` merges by a list of pairs. So the
list holds every split of a piece into two pieces, ordered by the score of the whole. The result is used only if both
versions tokenise sample texts alike.
"""

from pathlib import Path
from typing import Any

from sentencepiece import SentencePieceProcessor, sentencepiece_model_pb2
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

from spag.core.errors import ModelError

_SPACE = "▁"
_BPE, _CONTROL, _USER_DEFINED = 2, 3, 4  # of sentencepiece_model.proto: TrainerSpec.ModelType and SentencePiece.Type
_SAMPLES = (
    "I know the word! It is `umbrella`!",
    "  two spaces before,   three within, one behind \n\n\tand a tab",
    "In 2023 it cost $1,234.50 (+7%).",
    "def f(x):\n    return {'a': [x] * 2}\n",
    "naïve café, Straße, größer, señor",
    "百川智能发布了新的模型。Привет, мир! こんにちは",
    "🙂 👩‍👩‍👧 \u200b\ufeff ﬁ Ⅷ ½",
    "",
)


def fast_tokenizer(file: Path) -> Tokenizer:
    """Return the tokenizer of the SentencePiece model ``file``, which adds no special tokens around a text.

    Raises ``ModelError`` for a file that is missing, broken or not BPE, and if the result splits a sample text
    differently.
    """
    try:
        content = file.read_bytes()
    except OSError as error:
        raise ModelError(f"{file}: cannot be read: {error.strerror}") from error
    processor = SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(content)
    except (RuntimeError, ValueError) as error:
        raise ModelError(f"{file}: is not a SentencePiece model; download it again") from error
    described: Any = sentencepiece_model_pb2.ModelProto.FromString(content)  # type: ignore[attr-defined]
    if described.trainer_spec.model_type != _BPE:
        raise ModelError(f"{file}: is a SentencePiece model other than BPE, which cannot be converted")
    tokenizer = _built(described)
    for text in (*_SAMPLES, *_with_user_defined(described)):
        if tokenizer.encode(text, add_special_tokens=False).ids != processor.encode(text):
            raise ModelError(
                f"{file}: the converted tokenizer splits {text!r} differently from SentencePiece, so it cannot be used"
            )
    return tokenizer


def _with_user_defined(described: Any) -> list[str]:
    """Return a sample with a user-defined piece on which both versions should agree: see ``_built``."""
    pieces = [piece.piece.replace(_SPACE, " ") for piece in described.pieces if piece.type == _USER_DEFINED]
    return [f"a {pieces[-1]}b"] if pieces and not described.normalizer_spec.add_dummy_prefix else []


def _built(described: Any) -> Tokenizer:
    vocabulary = {piece.piece: index for index, piece in enumerate(described.pieces)}
    unknown, fallback = described.trainer_spec.unk_piece, described.trainer_spec.byte_fallback
    scores = {piece.piece: piece.score for piece in described.pieces}
    tokenizer = Tokenizer(
        models.BPE(vocabulary, _merges(scores), unk_token=unknown, fuse_unk=True, byte_fallback=fallback)
    )
    charsmap, prefixed = described.normalizer_spec.precompiled_charsmap, described.normalizer_spec.add_dummy_prefix
    steps: list[Any] = [normalizers.Precompiled(charsmap)] if charsmap else []
    steps += [normalizers.Prepend(_SPACE)] if prefixed else []
    tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", _SPACE)])
    text: list[Any] = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*text, decoders.Strip(" ", left=1)] if prefixed else text)
    for piece in described.pieces:
        if piece.type == _CONTROL:
            tokenizer.add_special_tokens([AddedToken(piece.piece, normalized=False, special=True)])
        elif piece.type == _USER_DEFINED:
            # Matched whole in the normalised text; with a prefix in the raw one, whose rest gets another prefix.
            tokenizer.add_tokens([AddedToken(piece.piece, normalized=not prefixed)])
    return tokenizer


def _merges(scores: dict[str, float]) -> list[tuple[str, str]]:
    """Return the pairs of pieces whose union is a piece, in the order in which SentencePiece prefers to merge."""
    longer = (piece for piece in scores if len(piece) > 1)
    ordered = sorted(longer, key=lambda piece: -scores[piece])  # stable: equal scores by index
    splits = ((piece[:at], piece[at:]) for piece in ordered for at in range(1, len(piece)))
    return [(left, right) for left, right in splits if left in scores and right in scores]
