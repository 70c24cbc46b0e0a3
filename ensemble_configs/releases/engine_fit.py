# SPDX-License-Identifier: Apache-2.0
"""Comparison of a deployment with the files of its engine, as far as they are on this machine.

`trireme render`, `serve` and `doctor` ask before a GPU is touched; the loader asks once more.
"""

from collections.abc import Sequence

from ensemble_configs.releases.built_engine import Mismatch, engine_mismatches, load_built_engine, whole_sequence
from ensemble_configs.releases.kv_capacity import WholeSequence
from ensemble_configs.releases.pytorch_checkpoint import checkpoint_mismatches
from ensemble_configs.releases.vllm_checkpoint import vllm_mismatches
from ensemble_configs.spec.engine.engine_spec import EngineSpec
from ensemble_configs.spec.engine.tensorrt_llm_specs import PyTorchEngineSpec, TensorRtEngineSpec
from ensemble_configs.spec.engine.vllm_spec import VllmEngineSpec
from ensemble_configs.spec.finding import Finding
from trireme.base.errors import SpecError


def fit_findings(engine: EngineSpec) -> list[Finding]:
    """Return what a deployment asks and its engine cannot do; nothing where its files are not on this machine."""
    try:
        found = _mismatches(engine)
    except SpecError as exc:
        what = "the files of a built engine"
        return [Finding(check="engine.dir", found=exc.message, wanted=what, next_step="build the release again")]
    return [
        Finding(
            check=mismatch.field,
            found=f"{mismatch.value}, which {mismatch.why}",
            wanted=mismatch.wanted,
            next_step=mismatch.next_step,
        )
        for mismatch in found
    ]


def refuse_unfit_engine(engine: EngineSpec) -> None:
    """Check an engine against what its deployment asks, where its files are on this machine.

    Raises:
        SpecError: names everything that the engine cannot do; or its files are not those of an engine.
    """
    refuse_mismatches(_mismatches(engine))


def refuse_mismatches(found: Sequence[Mismatch]) -> None:
    """Turn mismatches into one error.

    Raises:
        SpecError: there are mismatches; the error names each.
    """
    if found:
        message = " | ".join(mismatch.message for mismatch in found)
        raise SpecError(message, field=found[0].field, value=found[0].value)


def whole_sequence_of(engine: TensorRtEngineSpec | PyTorchEngineSpec) -> WholeSequence:
    """Return the longest sequence that a deployment promises.

    Raises:
        SpecError: the files of a compiled engine cannot be read.
    """
    if isinstance(engine, TensorRtEngineSpec):
        return whole_sequence(engine, load_built_engine(engine.dir).build_config)
    # This backend gives every beam blocks of its own, and keeps none for the output.
    return WholeSequence(engine.max_seq_len, 0, engine.max_beam_width, is_block_spared=True)


def _mismatches(engine: EngineSpec) -> list[Mismatch]:
    if isinstance(engine, VllmEngineSpec):
        return list(vllm_mismatches(engine)) if (engine.dir / "config.json").is_file() else []
    if not isinstance(engine, TensorRtEngineSpec | PyTorchEngineSpec) or not (engine.dir / "config.json").is_file():
        return []
    if isinstance(engine, TensorRtEngineSpec):
        built = load_built_engine(engine.dir)
        found, block_tokens = list(engine_mismatches(engine, built)), built.build_config.plugin_config.tokens_per_block
    else:
        found, block_tokens = list(checkpoint_mismatches(engine)), engine.kv_block_tokens
    return [*found, *_short_cache(engine, block_tokens)]


def _short_cache(engine: TensorRtEngineSpec | PyTorchEngineSpec, block_tokens: int) -> list[Mismatch]:
    if engine.num_kv_blocks is None:  # the free memory decides: `TrtLlmEngine` looks when it knows
        return []
    why = whole_sequence_of(engine).why_cut(num_blocks=engine.num_kv_blocks, block_tokens=block_tokens)
    if why is None:
        return []
    next_step = "raise it, or lower engine.max_seq_len or engine.max_beam_width"
    return [
        Mismatch("engine.num_kv_blocks", engine.num_kv_blocks, f"is too few: {why}", "room for a sequence", next_step)
    ]
