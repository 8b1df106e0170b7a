"""A tiny model whose folder is like that of Baichuan2-13B: code of its own, pickled weights, a SentencePiece
tokenizer.
"""

import io
import json
import shutil
from pathlib import Path

import torch
from sentencepiece import SentencePieceTrainer

CODE = Path(__file__).parent
VOCABULARY = 400
USER_DEFINED = "<reserved>"


def train_tokenizer(file: Path, **options: object) -> Path:
    """Train a SentencePiece model as Baichuan2's is described: BPE, bytes for what is rare, text as it is (arXiv
    2309.10305, 2.2).
    """
    text = (
        "I know the word! It is an umbrella. The rain falls on the roof, and nobody knows the "
        "other word. 百川智能 1234 \n\n    x = 1\n"
    )
    content = io.BytesIO()
    described = {
        "vocab_size": VOCABULARY,
        "model_type": "bpe",
        "byte_fallback": True,
        "normalization_rule_name": "identity",
        "add_dummy_prefix": False,
        "remove_extra_whitespaces": False,
        "allow_whitespace_only_pieces": True,
        "split_digits": True,
        "user_defined_symbols": [USER_DEFINED],
        "hard_vocab_limit": False,
        "minloglevel": 3,
    }
    words = (" ".join(text.split(" ")[index % 7 :]) + f" {index} " for index in range(200))
    SentencePieceTrainer.train(sentence_iterator=words, model_writer=content, **{**described, **options})
    file.write_bytes(content.getvalue())
    return file


def write_published(folder: Path, *, model_type: str = "baichuan", files: int = 2, **config: object) -> Path:
    """Write ``folder`` as a publisher would: random weights in ``files`` pickles, a head whose rows have any length."""
    folder.mkdir(parents=True)
    shape = {
        "vocab_size": VOCABULARY,
        "hidden_size": 48,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
    }
    code = {"AutoConfig": "configuration_own.OwnConfig", "AutoModelForCausalLM": "modeling_own.OwnForCausalLM"}
    tokens = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    described = {
        "model_type": model_type,
        "auto_map": code,
        "architectures": ["OwnForCausalLM"],
        "rms_norm_eps": 1e-6,
        "model_max_length": 512,
    }
    described |= {"tie_word_embeddings": False, "torch_dtype": "float32", **shape, **tokens, **config}
    (folder / "config.json").write_text(json.dumps(described))
    (folder / "generation_config.json").write_text(json.dumps(tokens))
    tokenizer = {
        "auto_map": {"AutoTokenizer": ["tokenization_own.OwnTokenizer", None]},
        "tokenizer_class": "OwnTokenizer",
    }
    as_published = {"__type": "AddedToken", "lstrip": False, "normalized": True, "rstrip": False, "single_word": True}
    marks = {"bos_token": "<s>", "unk_token": "<unk>", "eos_token": {**as_published, "content": "</s>"}}
    marks["pad_token"] = {**as_published, "content": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps({**tokenizer, **marks, "model_max_length": 512}))
    for file in CODE.glob("*_own.py"):
        shutil.copy(file, folder)
    train_tokenizer(folder / "tokenizer.model")
    names = list(random_weights().items())
    for index in range(files):
        torch.save(dict(names[index::files]), folder / f"pytorch_model-0000{index + 1}-of-0000{files}.bin")
    return folder


def random_weights() -> dict[str, torch.Tensor]:
    """Weights by their published names."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator) * 0.3

    layer = {"self_attn.W_pack": (144, 48), "self_attn.o_proj": (48, 48)}
    layer |= {"mlp.gate_proj": (96, 48), "mlp.up_proj": (96, 48), "mlp.down_proj": (48, 96)}
    weights = {f"model.layers.{at}.{name}.weight": random(*shape) for at in range(2) for name, shape in layer.items()}
    norms = [f"model.layers.{at}.{name}" for at in range(2) for name in ("input_layernorm", "post_attention_layernorm")]
    weights |= {f"{name}.weight": 1 + random(48) for name in (*norms, "model.norm")}
    lengths = torch.linspace(0.5, 3, VOCABULARY)[:, None]  # a head that a plain one could not stand in for
    return weights | {
        "model.embed_tokens.weight": random(VOCABULARY, 48),
        "lm_head.weight": random(VOCABULARY, 48) * lengths,
    }
