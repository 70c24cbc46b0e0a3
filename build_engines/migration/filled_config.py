# SPDX-License-Identifier: Apache-2.0
"""A filled `config.pbtxt`, parsed by Triton's own schema, and its settings by name.

Upstream's `fill_template.py` leaves a placeholder that nobody named. In quotes that is a text like any other; outside
of quotes Triton cannot parse the file, but here it is read, so that the report can name the placeholder.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf import text_format
from google.protobuf.descriptor import FieldDescriptor
from tritonclient.grpc import model_config_pb2

from build_engines.migration.values import Value
from trireme.base.errors import SpecError

# A comment, a string, or a placeholder outside of both, with the key before it.
_TOKEN = re.compile(r"#[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'|(?:(\w+)\s*:\s*\[?\s*)?(\$\{\w+\})")
_NEUTRAL = {"data_type": "TYPE_INVALID", "decoupled": "false"}  # any other bare value is a number

# Parts that are no settings: names, tensors (`tensor_contract`) and the steps of an ensemble (`pipeline_rules`).
_NOT_SETTINGS = {"name", "platform", "input", "output", "ensemble_scheduling", "parameters"}
_STREAMING = {"tensorrt_llm", "tensorrt_llm_bls"}
_QUEUE = (
    "dynamic_batching.preferred_batch_size",
    "dynamic_batching.max_queue_delay_microseconds",
    "dynamic_batching.default_queue_policy.max_queue_size",
)


@dataclass(frozen=True)
class FilledConfig:
    """A model's config in the old repository."""

    name: str
    config: Any  # model_config_pb2.ModelConfig, which has no types
    settings: dict[str, Value]  # by path, a parameter by its key


def load_config(path: Path) -> FilledConfig:
    """Parse a `config.pbtxt`.

    Raises:
        SpecError: the file cannot be read, or is not a model's config even with every placeholder filled.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as exc:
        raise SpecError(f"cannot read {path}: {exc.strerror}; let this user read it", file=path) from exc
    except UnicodeDecodeError as exc:
        raise SpecError(f"cannot read {path}: {exc}", file=path) from exc
    bare: dict[str, str] = {}
    try:
        config = text_format.Parse(_without_bare(text, bare), model_config_pb2.ModelConfig())
    except text_format.ParseError as exc:
        raise SpecError(
            f"{path} is not a model's config.pbtxt: {exc}; name the folder of a filled one", file=path
        ) from exc
    name = path.parent.name
    settings = {setting: Value(value) for setting, value in _settings(config).items()}
    for setting in settings:
        if (placeholder := bare.get(setting.rpartition(".")[2])) is not None:
            settings[setting] = Value(placeholder)
    return FilledConfig(name, config, settings)


def _without_bare(text: str, found: dict[str, str]) -> str:
    """Return the text with a neutral value for each placeholder outside of quotes.

    `found` gets these placeholders by their key.
    """

    def neutral(match: re.Match[str]) -> str:
        key, placeholder = match[1], match[2]
        if placeholder is None:
            return match[0]
        found.setdefault(key or "", placeholder)
        return match[0].replace(placeholder, _NEUTRAL.get(key or "", "0"))

    return _TOKEN.sub(neutral, text)


def _settings(config: Any) -> dict[str, str]:
    settings = {"max_batch_size": str(config.max_batch_size)}  # protobuf leaves out what is zero
    if config.HasField("model_transaction_policy") or config.name in _STREAMING:
        settings["model_transaction_policy.decoupled"] = str(config.model_transaction_policy.decoupled)
    if config.HasField("dynamic_batching") and config.dynamic_batching.ByteSize():
        settings |= dict.fromkeys(_QUEUE, "0")
    settings |= {
        path: value
        for path, value in _leaves(config, "")
        if path.split(".")[0] not in _NOT_SETTINGS and path not in settings
    } | {path: value for path, value in _leaves(config, "") if path in _QUEUE}
    if config.instance_group:
        settings["instance_group.count"] = str(sum(max(1, group.count) for group in config.instance_group))
    return settings | {f"parameters.{key}": value.string_value for key, value in config.parameters.items()}


def _leaves(message: Any, prefix: str) -> Iterator[tuple[str, str]]:
    """Yield every field of a message that is set, by dotted path; the items of a repeated field are joined."""
    for field, value in message.ListFields():
        path = f"{prefix}{field.name}"
        is_repeated = hasattr(value, "__len__") and not isinstance(value, str | bytes)
        if field.type != FieldDescriptor.TYPE_MESSAGE:
            yield path, ",".join(map(str, value)) if is_repeated else _text(field, value)
        elif field.message_type.GetOptions().map_entry:
            yield path, ", ".join(f"{key}: {item}" for key, item in value.items()).replace("\n", " ")
        elif is_repeated:
            for item in value:
                yield from _leaves(item, f"{path}.")
        else:
            yield from _leaves(value, f"{path}.")


def _text(field: Any, value: object) -> str:
    if field.type == FieldDescriptor.TYPE_ENUM:
        return str(field.enum_type.values_by_number[value].name)
    return str(value)
