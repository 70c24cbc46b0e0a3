# SPDX-License-Identifier: Apache-2.0
"""The files of a Hugging Face tokenizer folder: `tokenizer.json` and the ids of its end and padding tokens."""

import json
from pathlib import Path

from tokenizers import Tokenizer

from trireme.base.errors import SpecError

_NEXT_STEP = "save the model's tokenizer there with AutoTokenizer.from_pretrained(...).save_pretrained(folder)"
# The library keeps the tokens of the first 10,000 words that it sees, with 10 kB for a long one: a client fills it with
# 100 MB of nonsense, for good. A tenth of them tokenizes a text of 750 kB as fast within 5 %, none within 25 %.
_MAX_CACHED_WORDS = 1_000


def load_tokenizer(folder: Path) -> Tokenizer:
    """Return the tokenizer in `tokenizer.json`; no other file of the folder changes its work.

    Truncation and padding that were saved in the file are switched off: they would silently cut prompts or fill them
    up.

    Raises:
        SpecError: there is no such folder or file, or the file is no tokenizer.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        missing = "has no tokenizer.json" if folder.is_dir() else "does not exist"
        raise SpecError(f"the tokenizer folder {folder} {missing}; {_NEXT_STEP}", field="tokenizer.dir", file=path)
    try:
        tokenizer = Tokenizer.from_str(path.read_text(encoding="utf-8"))
    except Exception as exc:  # tokenizers raises nothing narrower
        reason = " ".join(str(exc).split())
        raise SpecError(f"{path} is no tokenizer ({reason}); {_NEXT_STEP}", field="tokenizer.dir", file=path) from exc
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if hasattr(tokenizer.model, "_resize_cache"):  # not all kinds of models have a cache
        tokenizer.model._resize_cache(_MAX_CACHED_WORDS)
    return tokenizer


def find_token_id(folder: Path, tokenizer: Tokenizer, name: str) -> int | None:
    """Return the id of the token with the role `name`, ``eos_token`` or ``pad_token``; None: no file has it.

    The tokenizer's own configuration comes first (it knows the end of a turn), then the generation's, then the model's.
    The first of several end tokens counts.

    Raises:
        SpecError: a file is not JSON, or names a token that the tokenizer does not have.
    """
    token = _read_json(folder / "tokenizer_config.json").get(name)
    content = token.get("content") if isinstance(token, dict) else token
    if isinstance(content, str):
        token_id: int | None = tokenizer.token_to_id(content)
        if token_id is None:
            raise SpecError(
                f"{folder / 'tokenizer_config.json'}: {name} {content!r} is not in tokenizer.json; {_NEXT_STEP}",
                field=name,
                value=content,
            )
        return token_id
    for file in ("generation_config.json", "config.json"):
        value = _read_json(folder / file).get(f"{name}_id")
        first = value[0] if isinstance(value, list) and value else value
        if isinstance(first, int):
            return first
    return None


def _read_json(path: Path) -> dict[str, object]:
    """Return the JSON object of an optional file; empty: there is no file."""
    if not path.is_file():
        return {}
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as exc:  # not UTF-8, or not JSON
        raise SpecError(f"{path} is not JSON: {exc}; {_NEXT_STEP}", field="tokenizer.dir", file=path) from exc
    if not isinstance(data, dict):
        raise SpecError(f"{path} must hold a JSON object, but holds {type(data).__name__}; {_NEXT_STEP}", file=path)
    return data
