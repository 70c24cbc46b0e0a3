# SPDX-License-Identifier: Apache-2.0
"""The tokenizer's folder: can it be served, and which token ended a text in the old repository."""

import json
from collections.abc import Iterator
from pathlib import Path

from build_engines.migration.compiled_engine import CompiledEngine, int_of
from build_engines.migration.import_report import Entry, Verdict, carried, implied, lost

_FILES = ("tokenizer_config.json", "special_tokens_map.json")

_NOT_HERE = (
    "the tokenizer's folder is not here to read the end token from; set engine.end_ids, or import again with "
    "--tokenizer-dir"
)


def tokenizer_entries(folder: Path | None, engine: CompiledEngine | None, *, is_compiled: bool) -> Iterator[Entry]:
    """Yield the entries of the folder's files; `is_compiled` engines have to be told their end token."""
    if folder is None or not folder.is_dir():
        if is_compiled:
            yield Entry("tokenizer: eos_token", "", lost(_NOT_HERE))
        return
    yield Entry("tokenizer: tokenizer.json", "", _tokenizer_json(folder, engine))
    if is_compiled:
        token = _eos_token(folder)
        end_id = _tokens(folder).get(token) if token is not None else None
        verdict = (
            carried("engine.end_ids", [end_id], "preprocessing took the tokenizer's own")
            if end_id is not None
            else lost(f"{folder} does not say which token ends a text; set engine.end_ids")
        )
        yield Entry("tokenizer: eos_token", token or "", verdict)


def _tokenizer_json(folder: Path, engine: CompiledEngine | None) -> Verdict:
    if not (folder / "tokenizer.json").is_file():
        return lost(
            f"{folder} has none, and no code from a checkpoint is run here; write one with transformers: "
            "AutoTokenizer.from_pretrained(...).save_pretrained(...)"
        )
    size, vocab_size = len(_tokens(folder)), int_of(engine.pretrained, "vocab_size") if engine else None
    if vocab_size is not None and size > vocab_size:
        return lost(f"it has {size} tokens and the engine {vocab_size}; they do not belong together")
    return implied("read as it is")


def _tokens(folder: Path) -> dict[str, int]:
    """Return the id of every token."""
    data = _json(folder / "tokenizer.json")
    model, added = data.get("model"), data.get("added_tokens")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocab, list):  # Unigram: pieces with their scores
        vocab = {piece[0]: index for index, piece in enumerate(vocab)}
    tokens: dict[str, int] = dict(vocab) if isinstance(vocab, dict) else {}
    for token in added if isinstance(added, list) else []:
        tokens[token["content"]] = token["id"]
    return tokens


def _eos_token(folder: Path) -> str | None:
    for name in _FILES:
        token = _json(folder / name).get("eos_token")
        if isinstance(token, dict):
            token = token.get("content")
        if isinstance(token, str):
            return token
    return None


def _json(path: Path) -> dict[str, object]:
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}
