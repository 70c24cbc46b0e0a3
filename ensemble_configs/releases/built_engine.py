# SPDX-License-Identifier: Apache-2.0
"""The `config.json` that `trtllm-build` writes beside an engine, and what a deployment may not ask of such an engine.

Only that file tells what was built: `trtllm-build` turns flags off with a warning, and the runtime goes on without
what an engine lacks, or dies at load. Behaviours and sources are listed in `docs/trtllm_behaviour.md`, E1 to E3.
What the file does not say is not judged; 1.1 and 1.2 write every field.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from ensemble_configs.releases.context_attention import longest_prompt
from ensemble_configs.releases.kv_capacity import WholeSequence
from ensemble_configs.spec.batch_limits import is_default
from ensemble_configs.spec.engine.tensorrt_llm_specs import TensorRtEngineSpec
from trireme.base.errors import SpecError
from trireme.base.known_types import known

Struct = TypeVar("Struct", bound=msgspec.Struct)

# Upstream's flags of `SpeculativeDecodingMode`, in the order of their bits; written as the number or the name.
_SPECULATION = (
    "none", "draft_tokens_external", "medusa", "lookahead_decoding", "explicit_draft_tokens", "eagle", "ngram",
)  # fmt: skip
_MODES = {"lookahead": "lookahead_decoding", "medusa": "medusa", "eagle": "eagle"}
_BUILD_ANEW = "build the engine anew"


class BuiltMapping(msgspec.Struct):
    """The division of an engine over ranks."""

    world_size: int = 1
    tp_size: int = 1
    pp_size: int = 1


class BuiltCheckpoint(msgspec.Struct):
    """Fields of `pretrained_config` that a deployment depends on."""

    vocab_size: int
    mapping: BuiltMapping = msgspec.field(default_factory=BuiltMapping)


class BuiltPlugins(msgspec.Struct):
    """Fields of `plugin_config` that a deployment depends on."""

    tokens_per_block: int = 32
    remove_input_padding: bool | None = True
    context_fmha: bool | None = True
    use_paged_context_fmha: bool | UnsetType | None = UNSET
    lora_plugin: str | bool | UnsetType | None = UNSET


class BuiltLora(msgspec.Struct):
    """Fields of `lora_config` that a deployment depends on."""

    max_lora_rank: int = 64
    lora_target_modules: list[str] = []


class BuildLimits(msgspec.Struct):
    """Fields of `build_config` that a deployment depends on."""

    max_input_len: int
    max_seq_len: int
    max_batch_size: int
    max_num_tokens: int
    max_beam_width: int = 1
    max_draft_len: int = 0
    gather_context_logits: bool = False
    speculative_decoding_mode: int | str | UnsetType = UNSET
    plugin_config: BuiltPlugins = msgspec.field(default_factory=BuiltPlugins)
    lora_config: BuiltLora = msgspec.field(default_factory=BuiltLora)

    @property
    def speculation(self) -> str | None:
        """Return upstream's name of the speculative decoding mode, in small letters; None where the file has none."""
        mode = self.speculative_decoding_mode
        if isinstance(mode, UnsetType):
            return None
        return speculation_name(mode)

    @property
    def served_seq_len(self) -> int:
        """Return the tokens that a request may have, prompt and output together.

        Upstream adds the drafts of a step to `max_seq_len` when it builds, and takes them off again for requests.
        """
        is_drafting = self.speculation not in (None, "none")
        return self.max_seq_len - self.max_draft_len if is_drafting else self.max_seq_len

    @property
    def is_packed(self) -> bool:
        """Return whether prompts lie in a step without padding; the runtime does not read `max_input_len` then."""
        return bool(self.plugin_config.remove_input_padding and self.plugin_config.context_fmha)

    def longest_prompt(self, *, is_chunked: bool, max_num_tokens: int) -> int:
        """Return the tokens of the longest prompt, in steps of `max_num_tokens`."""
        if not self.is_packed:
            return self.max_input_len
        return longest_prompt(self.served_seq_len, max_num_tokens, is_chunked=is_chunked)


class BuiltEngine(msgspec.Struct):
    """The `config.json` beside an engine, as far as a deployment depends on it."""

    pretrained_config: BuiltCheckpoint
    build_config: BuildLimits


class Mismatch(NamedTuple):
    """A field of a deployment that asks for more than the engine has."""

    field: str  # of the deployment
    value: object
    why: str  # "is more than ... was built for (64)"
    wanted: str
    next_step: str

    @property
    def message(self) -> str:
        """Return the finding in the words of an error: field, value, limit and next step."""
        return f"{self.field} ({self.value}) {self.why}; {self.next_step}"


def speculation_name(mode: int | str) -> str:
    """Return upstream's name of a speculative decoding mode, which is written as a number or a name."""
    if isinstance(mode, str):
        return mode.rpartition(".")[2].lower()
    return _SPECULATION[max(mode.bit_length() - 1, 0)] if mode < 1 << len(_SPECULATION) else str(mode)


def load_built_engine(folder: Path) -> BuiltEngine:
    """Read an engine's config.json.

    Raises:
        SpecError: the folder has no such file, or the file is not that of an engine.
    """
    file = folder / "config.json"
    if not file.is_file():
        raise SpecError(
            f"engine.dir: {folder} has no config.json; build the engine with trtllm-build",
            field="engine.dir",
            file=file,
        )
    return decode_file(file, BuiltEngine)


def decode_file(file: Path, struct: type[Struct]) -> Struct:
    """Read a JSON file as a struct.

    Raises:
        SpecError: the file is not JSON, or a key is missing or of another type.
    """
    try:
        return msgspec.json.decode(file.read_bytes(), type=known(struct))
    except msgspec.MsgspecError as exc:
        raise SpecError(f"{file}: {exc}", file=file) from exc


def engine_mismatches(spec: TensorRtEngineSpec, engine: BuiltEngine) -> Iterator[Mismatch]:
    """Yield everything that a deployment asks of an engine that was not built for it."""
    build = engine.build_config
    yield from _other_mapping(spec, engine.pretrained_config.mapping)
    yield from _limits(spec, build)
    yield from _context_attention(spec, build)
    yield from _lora(spec, build)
    yield from _speculation(spec, build)


def _other_mapping(spec: TensorRtEngineSpec, mapping: BuiltMapping) -> Iterator[Mismatch]:
    for name in ("tp_size", "pp_size"):
        wanted, built = getattr(spec, name), getattr(mapping, name)
        if wanted != built:
            why = f"differs from {built}, for which {spec.dir} was built"
            yield Mismatch(f"engine.{name}", wanted, why, str(built), f"set it to {built}, or {_BUILD_ANEW}")


def _limits(spec: TensorRtEngineSpec, build: BuildLimits) -> Iterator[Mismatch]:
    for name, wanted, built in (
        ("max_seq_len", spec.max_seq_len, build.served_seq_len),
        # Of an engine without packed input every prompt of the deployment must fit.
        ("max_seq_len", spec.max_seq_len - 1, spec.max_seq_len if build.is_packed else build.max_input_len),
        ("max_num_seqs", spec.max_num_seqs, build.max_batch_size),
        ("max_num_batched_tokens", spec.max_num_batched_tokens, build.max_num_tokens),
        ("max_beam_width", spec.max_beam_width, build.max_beam_width),
        ("is_gathering_context_logits", spec.is_gathering_context_logits, build.gather_context_logits),
    ):
        if wanted > built and not is_default(name, wanted):
            value = spec.shown_value(name)
            why = f"is more than {spec.dir} was built for ({built})"
            yield Mismatch(
                f"engine.{name}", value, why, f"{built} at most", f"set it to {built} or less, or {_BUILD_ANEW}"
            )


def _context_attention(spec: TensorRtEngineSpec, build: BuildLimits) -> Iterator[Mismatch]:
    is_paged = build.plugin_config.use_paged_context_fmha
    wanted = "an engine built with use_paged_context_fmha"
    if not isinstance(is_paged, UnsetType) and not is_paged:
        anew = f"{_BUILD_ANEW} with another KV type"
        if spec.is_chunked_prefill:
            why = f"needs paged context attention, which {spec.dir} was built without: TensorRT-LLM refuses to load it"
            yield Mismatch("engine.is_chunked_prefill", True, why, wanted, f"set it to false, or {anew}")
        if spec.is_block_reuse:
            why = f"needs paged context attention, which {spec.dir} was built without: TensorRT-LLM leaves it off"
            yield Mismatch("engine.is_block_reuse", True, why, wanted, f"set it to false, or {anew}")
    elif spec.is_block_reuse and build.gather_context_logits:
        why = f"does not go with gather_context_logits, with which {spec.dir} was built: TensorRT-LLM leaves it off"
        next_step = f"set it to false, or {_BUILD_ANEW} without"
        yield Mismatch("engine.is_block_reuse", True, why, "an engine built without gather_context_logits", next_step)
    if is_paged is True and spec.sink_tokens is not None:
        why = f"does not go with paged context attention, with which {spec.dir} was built: prefill fails"
        next_step = f"leave it out, or {_BUILD_ANEW} without use_paged_context_fmha"
        yield Mismatch("engine.sink_tokens", spec.sink_tokens, why, "nothing", next_step)


def _lora(spec: TensorRtEngineSpec, build: BuildLimits) -> Iterator[Mismatch]:
    plugin = build.plugin_config.lora_plugin
    if spec.lora is None or isinstance(plugin, UnsetType):
        return
    if plugin in (None, False, "disable"):
        why = f"needs the LoRA plugin, which {spec.dir} was built without: TensorRT-LLM ignores adapters"
        yield Mismatch(
            "engine.lora", spec.lora.dir, why, "an engine built with lora", f"leave it out, or {_BUILD_ANEW}"
        )
        return
    built = build.lora_config
    if spec.lora.max_rank > built.max_lora_rank:
        why = f"is more than {spec.dir} was built for ({built.max_lora_rank})"
        wanted, next_step = f"{built.max_lora_rank} at most", f"lower it or {_BUILD_ANEW}"
        yield Mismatch("engine.lora.max_rank", spec.lora.max_rank, why, wanted, next_step)
    if others := set(spec.lora.target_modules) - set(built.lora_target_modules):
        why = f"names modules that {spec.dir} was not built for, which has {', '.join(built.lora_target_modules)}"
        next_step = f"leave them out, or {_BUILD_ANEW}"
        yield Mismatch("engine.lora.target_modules", ", ".join(sorted(others)), why, "modules of the engine", next_step)


def _speculation(spec: TensorRtEngineSpec, build: BuildLimits) -> Iterator[Mismatch]:
    if build.speculation is None:
        return
    if build.speculation == "explicit_draft_tokens":  # ReDrafter
        why = "was built to draft by explicit draft tokens, which no deployment can name; TensorRT-LLM drafts so"
        yield Mismatch("engine.dir", spec.dir, why, "an engine that drafts otherwise or not", _BUILD_ANEW)
        return
    if build.speculation == "draft_tokens_external" and not spec.is_block_reuse:
        why = f"does not go with {spec.dir}, built for the drafts of another model: TensorRT-LLM does not load it so"
        next_step = f"set it to true, or {_BUILD_ANEW} without"
        yield Mismatch("engine.is_block_reuse", False, why, "true", next_step)
    if spec.speculation is None:
        if (method := _method_of(build.speculation)) is not None:
            why = f"leaves out that {spec.dir} was built to draft: TensorRT-LLM drafts as it was built"
            next_step = f"name the method and its sizes in engine.speculation, or {_BUILD_ANEW}"
            yield Mismatch("engine.speculation", "none", why, method, next_step)
        return
    method = spec.speculation.method
    if _MODES[method] != build.speculation:
        why = f"differs from {build.speculation}, for which {spec.dir} was built: TensorRT-LLM drafts as it was built"
        next_step = f"change or leave out engine.speculation, or {_BUILD_ANEW}"
        yield Mismatch("engine.speculation.method", method, why, build.speculation, next_step)
        return
    if len({min(size, build.max_seq_len) for size in spec.max_attention_window or ()}) > 1:
        windows = ", ".join(map(str, spec.max_attention_window or ()))
        why = (
            f"are several sizes, with which TensorRT-LLM does not load an engine that was built to draft, as {spec.dir}"
        )
        yield Mismatch("engine.max_attention_window", windows, why, "one size", f"name one, or {_BUILD_ANEW}")
    drafts = spec.speculation.max_draft_len
    if drafts > build.max_draft_len:
        why = f"is {drafts} drafts a step, more than {spec.dir} was built for ({build.max_draft_len})"
        next_step = f"lower its sizes or {_BUILD_ANEW}"
        yield Mismatch("engine.speculation", method, why, f"{build.max_draft_len} drafts at most", next_step)


def _method_of(mode: str) -> str | None:
    """Return our word for a method that drafts within an engine; None for other modes, and for none."""
    return next((method for method, upstream in _MODES.items() if upstream == mode), None)


def whole_sequence(spec: TensorRtEngineSpec, build: BuildLimits) -> WholeSequence:
    """Return the longest sequence that a deployment of an engine promises."""
    steps = min(spec.max_num_batched_tokens, build.max_num_tokens)
    prompt_tokens = build.longest_prompt(is_chunked=spec.is_chunked_prefill, max_num_tokens=steps)
    return WholeSequence(
        spec.max_seq_len,
        prompt_tokens,
        spec.max_beam_width,
        built_seq_len=build.served_seq_len,
        built_beams=build.max_beam_width,
    )
