# SPDX-License-Identifier: Apache-2.0
"""A small encoder of BERT's kind, as OpenVINO IR and as plain numpy for one text at a time, of the same weights.

The weights are drawn from a seed: its vectors mean nothing, and are exact. What is compared with it is pooling,
padding, batches and the way there.
"""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import openvino
from numpy.typing import NDArray
from openvino import opset13 as ops
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import TemplateProcessing

WIDTH, NUM_HEADS, INNER = 16, 2, 32
MAX_POSITIONS = 64
_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,?!-'"
_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
VOCABULARY = {token: number for number, token in enumerate((*_SPECIAL, *_LETTERS, *(f"##{c}" for c in _LETTERS)))}
_EPS = 1e-12

Floats = NDArray[np.float64]


def draw_weights(seed: int = 0) -> dict[str, NDArray[np.float32]]:
    """Return the weights of one encoder."""
    state = np.random.RandomState([seed])
    shapes = {
        "words": (len(VOCABULARY), WIDTH),
        "positions": (MAX_POSITIONS, WIDTH),
        "types": (2, WIDTH),
        **dict.fromkeys(("query", "key", "value", "mixed"), (WIDTH, WIDTH)),
        "up": (WIDTH, INNER),
        "down": (INNER, WIDTH),
        **{f"{name}_bias": (WIDTH,) for name in ("query", "key", "value", "mixed", "down")},
        "up_bias": (INNER,),
        **{f"{name}_{part}": (WIDTH,) for name in ("begin", "middle", "end") for part in ("scale", "shift")},
    }
    return {name: state.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def hidden_of(weights: dict[str, NDArray[np.float32]], ids: list[int]) -> Floats:
    """Return the vector of each token of one text, ``[num_tokens, WIDTH]``."""
    w = {name: value.astype(np.float64) for name, value in weights.items()}
    length = len(ids)
    x = _normal(w["words"][ids] + w["positions"][:length] + w["types"][0], w, "begin")

    def heads(name: str) -> Floats:
        split = (x @ w[name] + w[f"{name}_bias"]).reshape(length, NUM_HEADS, -1)
        return np.asarray(split.transpose(1, 0, 2))

    query, key, value = heads("query"), heads("key"), heads("value")
    scores = query @ key.transpose(0, 2, 1) / math.sqrt(WIDTH // NUM_HEADS)
    shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares /= shares.sum(axis=-1, keepdims=True)
    seen = (shares @ value).transpose(1, 0, 2).reshape(length, WIDTH)
    x = _normal(x + seen @ w["mixed"] + w["mixed_bias"], w, "middle")
    up = x @ w["up"] + w["up_bias"]
    gelu = up * 0.5 * (1 + np.vectorize(math.erf)(up / math.sqrt(2)))
    return _normal(x + gelu @ w["down"] + w["down_bias"], w, "end")


def vector_of(
    weights: dict[str, NDArray[np.float32]], ids: list[int], *, pooling: str = "mean", is_normalized: bool = True
) -> Floats:
    """Return the vector of one text, ``[WIDTH]``."""
    hidden = hidden_of(weights, ids)
    vector = {"mean": hidden.mean(axis=0), "cls": hidden[0], "last_token": hidden[-1]}[pooling]
    return np.asarray(vector / np.linalg.norm(vector)) if is_normalized else vector


def _normal(x: Floats, w: dict[str, Floats], name: str) -> Floats:
    spread = np.sqrt(x.var(axis=-1, keepdims=True) + _EPS)
    return np.asarray((x - x.mean(axis=-1, keepdims=True)) / spread * w[f"{name}_scale"] + w[f"{name}_shift"])


def small_tokenizer() -> Tokenizer:
    """Return a tokenizer of words and letters, with `[CLS]` and `[SEP]` around a text."""
    tokenizer = Tokenizer(WordPiece(VOCABULARY, unk_token="[UNK]"))
    tokenizer.normalizer = BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = BertPreTokenizer()
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[(name, VOCABULARY[name]) for name in ("[CLS]", "[SEP]")]
    )
    tokenizer.add_special_tokens(list(_SPECIAL))
    return tokenizer


def ids_of(text: str) -> list[int]:
    """Return the token ids of a text."""
    return list(small_tokenizer().encode(text).ids)


def write_encoder(folder: Path, *, seed: int = 0) -> dict[str, NDArray[np.float32]]:
    """Write an encoder as a deployment's `embedding_models` name one, and return its weights."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = draw_weights(seed)
    openvino.save_model(_model(weights), folder / "openvino_model.xml", compress_to_fp16=False)
    small_tokenizer().save(str(folder / "tokenizer.json"))
    config = {"model_type": "bert", "vocab_size": len(VOCABULARY), "max_position_embeddings": MAX_POSITIONS}
    (folder / "config.json").write_text(json.dumps(config))
    return weights


def _model(weights: dict[str, NDArray[np.float32]]) -> Any:
    inputs = {name: ops.parameter([-1, -1], np.int64) for name in ("input_ids", "attention_mask", "token_type_ids")}
    for name, node in inputs.items():
        node.output(0).set_names({name})
    w = {name: ops.constant(value) for name, value in weights.items()}
    ids, mask, types = inputs.values()
    length = ops.gather(ops.shape_of(ids), ops.constant(1), ops.constant(0))
    positions = ops.range(ops.constant(0, np.int64), length, ops.constant(1, np.int64), "i64")
    axis = ops.constant(0)
    x = ops.add(ops.gather(w["words"], ids, axis), ops.gather(w["positions"], positions, axis))
    x = _normal_node(ops.add(x, ops.gather(w["types"], types, axis)), w, "begin")

    def heads(name: str) -> Any:
        whole = ops.add(ops.matmul(x, w[name], transpose_a=False, transpose_b=False), w[f"{name}_bias"])
        split = ops.reshape(whole, ops.constant([0, 0, NUM_HEADS, WIDTH // NUM_HEADS]), special_zero=True)
        return ops.transpose(split, ops.constant([0, 2, 1, 3]))

    query, key, value = heads("query"), heads("key"), heads("value")
    scores = ops.matmul(query, key, transpose_a=False, transpose_b=True)
    scores = ops.multiply(scores, ops.constant(np.float32(1 / math.sqrt(WIDTH // NUM_HEADS))))
    absent = ops.subtract(ops.constant(np.float32(1)), ops.convert(mask, "f32"))
    absent = ops.multiply(ops.unsqueeze(absent, ops.constant([1, 2])), ops.constant(np.float32(-1e9)))
    seen = ops.matmul(ops.softmax(ops.add(scores, absent), 3), value, transpose_a=False, transpose_b=False)
    seen = ops.reshape(ops.transpose(seen, ops.constant([0, 2, 1, 3])), ops.constant([0, 0, WIDTH]), special_zero=True)
    mixed = ops.add(ops.matmul(seen, w["mixed"], transpose_a=False, transpose_b=False), w["mixed_bias"])
    x = _normal_node(ops.add(x, mixed), w, "middle")
    up = ops.add(ops.matmul(x, w["up"], transpose_a=False, transpose_b=False), w["up_bias"])
    down = ops.matmul(ops.gelu(up, "erf"), w["down"], transpose_a=False, transpose_b=False)
    x = _normal_node(ops.add(x, ops.add(down, w["down_bias"])), w, "end")
    result = ops.result(x)
    result.output(0).set_names({"last_hidden_state"})
    return openvino.Model([result], list(inputs.values()), "small_encoder")


def _normal_node(x: Any, w: dict[str, Any], name: str) -> Any:
    normal = ops.mvn(x, ops.constant([-1]), normalize_variance=True, eps=_EPS, eps_mode="inside_sqrt")
    return ops.add(ops.multiply(normal, w[f"{name}_scale"]), w[f"{name}_shift"])
