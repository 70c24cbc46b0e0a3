# SPDX-License-Identifier: Apache-2.0
"""An `llmapi` repository: `tensorrt_llm/1/model.yaml`, which holds the LLM's arguments, beside a `config.pbtxt`."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import yaml

from build_engines.migration.context import NO_PAUSE_BESIDE_GUIDED_DECODING, Context
from build_engines.migration.filled_config import FilledConfig
from build_engines.migration.import_report import Entry, Verdict, carried, implied, lost
from build_engines.migration.llmapi_arguments import (
    CARRIED,
    DEFAULTS,
    IMPLIED,
    INSTEAD,
    NO_FIELD,
    SECTIONS,
    SPECULATION,
)
from build_engines.migration.llmapi_tensors import llmapi_tensor_entries
from build_engines.migration.pipeline_rules import EVERY_MODEL, STREAMING
from build_engines.migration.values import Value, absolute
from ensemble_configs.spec.trtllm_facts import known_facts
from trireme.base.errors import SpecError

_DECOUPLED = STREAMING["model_transaction_policy.decoupled"]
_TRITON_CONFIG = {
    "max_batch_size": "0 there: a request had no batch dimension; here every tensor has one, [1, ...]",
    "cancellation_check_period_ms": "tensorrt_llm looks every 40 ms, the other models every 120 ms",
}


def is_llmapi(repository: Path) -> bool:
    """Return True if the repository's engine is an LLM of `model.yaml`."""
    return _file(repository) is not None


def _file(repository: Path) -> Path | None:
    return next(iter(sorted(repository.glob("tensorrt_llm/*/model.yaml"))), None)


def llmapi_entries(
    repository: Path, models: Mapping[str, FilledConfig], *, engine_dir: Path | None, tokenizer_dir: Path | None
) -> Iterator[Entry]:
    """Yield an entry for every argument, setting and tensor.

    Raises:
        SpecError: `model.yaml` cannot be read.
    """
    arguments = _load(repository)
    yield _entry("backend", arguments.get("backend", "pytorch"), _backend(arguments.get("backend", "pytorch")))
    yield from _folders(arguments, engine_dir, tokenizer_dir)
    for name, value in arguments.items():
        if name in {"model", "tokenizer", "backend"}:
            continue
        if name == "triton_config":
            yield from _triton_config(value)
        elif name == "speculative_config":
            yield from _speculation(value)
        elif name == "guided_decoding_backend":
            yield _entry(name, value, _guided(value, arguments, tokenizer_dir))
        elif name in SECTIONS and isinstance(value, dict):
            parts = ((f"{name}.{key}", part) for key, part in value.items())
            yield from (_argument(key, part, arguments) for key, part in parts if not _is_default(key, part))
        elif not _is_default(name, value):
            yield _argument(name, value, arguments)
    yield from _defaults(arguments)
    yield from _max_seq_len(arguments, engine_dir)
    context = Context(settings={}, engine=None, engine_dir=engine_dir, tokenizer_dir=tokenizer_dir)
    yield from _config_entries(models["tensorrt_llm"], context)
    for name in models.keys() - {"tensorrt_llm"}:
        why = "no model of llmapi; serve it with a Triton of its own"
        yield Entry(name, "", lost(why))


def _load(repository: Path) -> dict[str, object]:
    path = _file(repository)
    assert path is not None
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as exc:
        raise SpecError(f"cannot read {path}: {' '.join(str(exc).split())}", file=path) from exc
    if not isinstance(data, dict):
        raise SpecError(f"{path} must hold the LLM's arguments as keys and values", file=path)
    return data


def _entry(name: str, value: object, verdict: Verdict) -> Entry:
    return Entry(f"model.yaml: {name}", "" if value is None else str(value), verdict)


def _backend(backend: object) -> Verdict:
    if backend in {None, "pytorch"}:
        return carried("engine.provider", "pytorch")
    return lost(
        f"{backend} is no backend that is served from a checkpoint here; provider pytorch is written, and a compiled "
        "engine is imported from its own inflight_batcher_llm repository",
        **{"engine.provider": "pytorch"},
    )


def _folders(arguments: dict[str, object], engine_dir: Path | None, tokenizer_dir: Path | None) -> Iterator[Entry]:
    model, tokenizer = arguments.get("model"), arguments.get("tokenizer")
    engine = _folder(model, engine_dir, "engine.dir", "--engine-dir")
    yield _entry("model", model, engine)
    found = _folder(tokenizer or engine.fields.get("engine.dir"), tokenizer_dir, "tokenizer.dir", "--tokenizer-dir")
    yield _entry("tokenizer", tokenizer, found)


def _folder(named: object, given: Path | None, field: str, option: str) -> Verdict:
    if given is not None:
        return carried(field, str(given.resolve()), f"of {option}")
    if not named:
        return lost(f"nothing names it; import again with {option}")
    path = Path(str(named)).expanduser()
    if path.is_absolute() or path.is_dir():
        return carried(field, absolute(str(named)))
    return lost(
        f"{named} is a name at a hub, and a deployment serves a folder; download it, and import again with {option}",
        **{field: absolute(str(named))},
    )


def _is_default(name: str, value: object) -> bool:
    """Return True if upstream takes the argument for missing and `_defaults` reports it."""
    return value is None and name in CARRIED and CARRIED[name].default is not None


def _argument(name: str, value: object, arguments: dict[str, object]) -> Entry:
    is_pausing = name == "scheduler_config.capacity_scheduler_policy" and value == "MAX_UTILIZATION"
    if is_pausing and arguments.get("guided_decoding_backend") is not None:
        verdict = carried("engine.capacity_scheduler_policy", "guaranteed_no_evict", NO_PAUSE_BESIDE_GUIDED_DECODING)
        return _entry(name, value, verdict)
    return _entry(name, value, _verdict(name, value, arguments))


def _verdict(name: str, value: object, arguments: dict[str, object]) -> Verdict:
    if name == "cuda_graph_config" and value is None:
        return carried("engine.is_cuda_graph", False)
    if value is not None and name in CARRIED:
        argument = CARRIED[name]
        return carried(f"engine.{argument.field}", argument.convert(value))
    if name == "kv_cache_config.max_tokens" and isinstance(value, int):
        cache = arguments["kv_cache_config"]
        size = int(cache.get("tokens_per_block", 32)) if isinstance(cache, dict) else 32
        return carried("engine.num_kv_blocks", max(1, value // size), f"blocks of {size} tokens")
    if name in IMPLIED or value is None or value == DEFAULTS.get(name):
        return implied(IMPLIED.get(name, "upstream's default, as here"))
    if instead := INSTEAD.get(name) or INSTEAD.get(name.partition(".")[0]):
        return lost(instead)
    return _passed_on(name, value)


def _passed_on(name: str, value: object) -> Verdict:
    """Return an argument without a field as one that upstream is given as it is, where some version knows it."""
    section, _, key = name.rpartition(".")
    arguments = {section: {key: value}} if section else {name: value}
    if any(not facts.unknown_arguments("pytorch", arguments) for facts in known_facts()):
        return carried(f"engine.extra_llm_args.{name}", value, "as it is, for upstream")
    return lost(NO_FIELD)


def _guided(value: object, arguments: dict[str, object], tokenizer_dir: Path | None) -> Verdict:
    if value is None:
        return implied("no guided decoding, as here")
    folder = tokenizer_dir or arguments.get("tokenizer") or arguments.get("model")
    verdict = carried("engine.guided_decoding_backend", value)
    verdict.fields["engine.tokenizer_dir"] = absolute(str(folder))
    return verdict


def _speculation(value: object) -> Iterator[Entry]:
    if not isinstance(value, dict):
        yield _entry("speculative_config", value, implied("none, as here"))
        return
    kind = str(value.get("decoding_type", ""))
    known = SPECULATION.get(kind.lower())
    if known is None:
        names = ", ".join(sorted(SPECULATION))
        why = f"not a method of provider pytorch here; there are {names}: see engine.speculation"
        yield _entry("speculative_config", kind, lost(why))
        return
    method, fields = known
    yield _entry("speculative_config.decoding_type", kind, carried("engine.speculation.method", method))
    for name, part in value.items():
        if name == "decoding_type":
            continue
        key = f"speculative_config.{name}"
        if name in fields:
            field = fields[name]
            yield _entry(
                key, part, carried(f"engine.speculation.{field}", absolute(str(part)) if field == "dir" else part)
            )
        else:
            yield _entry(key, part, implied("not set") if part is None else _passed_on(key, part))


def _triton_config(value: object) -> Iterator[Entry]:
    for name, part in value.items() if isinstance(value, dict) else ():
        key = f"triton_config.{name}"
        if name == "decoupled":
            context = Context(settings={}, engine=None, engine_dir=None, tokenizer_dir=None)
            yield _entry(key, part, _DECOUPLED(Value(str(part)), context))
        elif name in _TRITON_CONFIG:
            yield _entry(key, part, implied(_TRITON_CONFIG[name]))
        else:
            yield _entry(key, part, lost(INSTEAD.get(name, NO_FIELD)))


def _defaults(arguments: dict[str, object]) -> Iterator[Entry]:
    """Yield an entry that writes upstream's default, for each argument where ours is another."""
    for name, argument in CARRIED.items():
        section, _, key = name.rpartition(".")
        part = arguments.get(section) if section else arguments
        if argument.default is not None and isinstance(part, dict) and part.get(key) is None:
            why = f"upstream's default, {argument.default}"
            verdict = carried(f"engine.{argument.field}", argument.default, why)
            yield Entry(f"model.yaml: {name}", "", verdict, "not there")


def _max_seq_len(arguments: dict[str, object], engine_dir: Path | None) -> Iterator[Entry]:
    if arguments.get("max_seq_len") is not None:
        return
    folder = engine_dir or Path(str(arguments.get("model", "")))
    limit = _position_limit(folder)
    verdict = (
        carried("engine.max_seq_len", limit, "max_position_embeddings of the checkpoint, upstream's default")
        if limit
        else lost("upstream's default is the checkpoint's, which is not here; set engine.max_seq_len (2048 now)")
    )
    yield Entry("model.yaml: max_seq_len", "", verdict, "not there")


def _position_limit(folder: Path) -> int | None:
    try:
        data = yaml.safe_load((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError):
        return None
    limit = data.get("max_position_embeddings") if isinstance(data, dict) else None
    return limit if isinstance(limit, int) else None


def _config_entries(model: FilledConfig, context: Context) -> Iterator[Entry]:
    for setting, value in model.settings.items():
        if setting in {"max_batch_size", "model_transaction_policy.decoupled"}:
            continue  # those of model.yaml hold
        why = "no setting of upstream's templates; see whether you still need it"
        if setting == "parameters.gpu_device_ids":
            why = "which GPUs is not in a deployment; start each engine's with its own CUDA_VISIBLE_DEVICES"
        rule = EVERY_MODEL.get(setting)
        verdict = lost(why) if rule is None else rule(value, context)
        yield Entry(f"tensorrt_llm.{setting.removeprefix('parameters.')}", value.text, verdict, value.note)
    why = "the default of a request at llmapi; that of inflight_batcher_llm is the other"
    exclude = carried("responses.exclude_input_in_output", True, why)
    yield Entry("SamplingParams: exclude_input_from_output", "", exclude, "not there")
    yield from llmapi_tensor_entries(model)
