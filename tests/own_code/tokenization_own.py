"""Code as a model's repository brings it: a tokenizer that transformers before 4.34 could load, whose base asked for no
vocabulary.
"""

from sentencepiece import SentencePieceProcessor
from transformers import PreTrainedTokenizer


class OwnTokenizer(PreTrainedTokenizer):
    vocab_files_names = {"vocab_file": "tokenizer.model"}  # noqa: RUF012

    def __init__(self, vocab_file: str, **options: object) -> None:
        super().__init__(**options)
        self.sp_model = SentencePieceProcessor(model_file=vocab_file)

    @property
    def vocab_size(self) -> int:
        return self.sp_model.get_piece_size()

    def get_vocab(self) -> dict[str, int]:
        return {self.sp_model.id_to_piece(index): index for index in range(self.vocab_size)}

    def _tokenize(self, text: str) -> list[str]:
        return self.sp_model.encode(text, out_type=str)

    def _convert_token_to_id(self, token: str) -> int:
        return self.sp_model.piece_to_id(token)
