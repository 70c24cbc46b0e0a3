# SPDX-License-Identifier: Apache-2.0
"""A release or a deployment that can be asked: greedy answers through the engine seam, and logits."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from build_engines.evaluation.observations import log_softmax
from build_engines.evaluation.vllm_side import VllmSide, vllm_spec_of
from ensemble_configs.releases.release_manifest import ReleaseManifest, address, verify
from ensemble_configs.spec.deployment import load_deployment
from ensemble_configs.spec.engine.engine_spec import EngineSpec
from ensemble_configs.spec.engine.openvino_spec import OpenVinoEngineSpec
from ensemble_configs.spec.engine.tensorrt_llm_specs import PyTorchEngineSpec, TensorRtEngineSpec
from ensemble_configs.spec.engine.vllm_spec import VllmEngineSpec
from serving.engines.providers import create_engine
from serving.engines.seam.base import Engine, GenerationRequest, SamplingParams
from serving.text.tokenizer_files import load_tokenizer
from trireme.base.errors import ServerError, SpecError

KvPrecision = Literal["auto", "u8", "u4", "f16", "bf16"]
LogProbs = Callable[[NDArray[np.int64]], NDArray[np.float32]]


class Answer(NamedTuple):
    """The answer to one prompt."""

    token_ids: list[int]  # the end token included
    text: str  # without the end token, with other special tokens


class Contestant:
    """A side of a comparison, with its engine and tokenizer.

    Attributes:
        folder: folder of the release; None for a deployment.
        manifest: manifest of the release, which matches its files; None for a deployment.
        spec: how its engine is run.
    """

    def __init__(
        self,
        name: str,
        spec: EngineSpec,
        tokenizer_dir: Path,
        *,
        folder: Path | None = None,
        manifest: ReleaseManifest | None = None,
    ) -> None:
        self.name = name
        self.spec = spec
        self.folder = folder
        self.manifest = manifest
        self.tokenizer: Tokenizer = load_tokenizer(tokenizer_dir)

    @property
    def address(self) -> str | None:
        """Return the release's address; None for a deployment."""
        return None if self.folder is None else address(self.folder)

    @property
    def computed_in(self) -> str | None:
        """Return the number format of multiplications: f32, or bf16 where the processor has that and may use it.

        Near ties fall otherwise in bf16, so greedy answers part sooner. None: the engine is not OpenVINO's.
        """
        if not isinstance(self.spec, OpenVinoEngineSpec):
            return None
        if self.spec.execution_mode == "accuracy":
            return "f32"
        import openvino  # noqa: PLC0415  other engines do without OpenVINO

        return str(openvino.Core().get_property("CPU", "INFERENCE_PRECISION_HINT").get_type_name())

    def prompt_ids(self, prompt: str) -> list[int]:
        """Return a prompt's token ids, with the tokens that the tokenizer puts around a prompt."""
        return list(self.tokenizer.encode(prompt).ids)

    def text_ids(self, text: str) -> list[int]:
        """Return the token ids of a text that continues another, without added tokens."""
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def text(self, token_ids: Sequence[int]) -> str:
        """Return the text of token ids, special tokens included."""
        return str(self.tokenizer.decode(list(token_ids), skip_special_tokens=False))

    def scorer(self) -> tuple[LogProbs, Callable[[], None]] | None:
        """Return a function from token ids to log probabilities after each, [num_tokens, vocab], and one to end it.

        None: the engine gives no logits.
        """
        if isinstance(self.spec, OpenVinoEngineSpec):
            # Other engines do without OpenVINO.
            from build_engines.evaluation.ir_scores import IrScores  # noqa: PLC0415
            from serving.engines.openvino.openvino_pipeline import numeric_properties  # noqa: PLC0415

            scores = IrScores(self.spec.dir, numeric_properties(self.spec))
            return scores.log_probs, lambda: None
        if isinstance(self.spec, VllmEngineSpec):
            side = VllmSide(self.spec)
            return side.log_probs, side.close
        engine = create_engine(self.spec)
        if "return_context_logits" not in engine.info.supported:
            engine.close()
            return None
        return lambda token_ids: _context_log_probs(engine, token_ids), engine.close

    def answers(self, prompts: Sequence[Sequence[int]], num_tokens: Sequence[int]) -> list[Answer]:
        """Return the greedy answer to each prompt, each of at most its number of tokens.

        Raises:
            ServerError: the engine could not serve a prompt.
        """
        if isinstance(self.spec, VllmEngineSpec):
            with VllmSide(self.spec) as side:
                outputs, end_ids = side.answers(prompts, num_tokens)
            return [Answer(ids, self.text(without_end(ids, end_ids))) for ids in outputs]
        engine = create_engine(self.spec)
        try:
            outputs = _generate(engine, prompts, num_tokens)
            return [Answer(ids, self.text(without_end(ids, engine.info.end_ids))) for ids in outputs]
        finally:
            engine.close()


def load_contestant(
    path: Path, *, kv_cache_precision: KvPrecision | None = None, vllm_venv: Path | None = None
) -> Contestant:
    """Load a release's folder, or a deployment file, as one side of a comparison.

    Args:
        path: the folder or the file.
        kv_cache_precision: of OpenVINO's KV cache; None: the release's or the deployment's.
        vllm_venv: environment with vLLM, for a release of that provider; a deployment names its own.

    Raises:
        SpecError: the path is neither, the release differs from its manifest, or the engine has no such KV cache.
    """
    if path.is_file():
        deployment = load_deployment(path)
        spec = _with_kv(deployment.model.engine, kv_cache_precision)
        return Contestant(deployment.name, spec, deployment.model.tokenizer.dir)
    manifest = verify(path)
    spec = _with_kv(_spec_of(path, manifest, vllm_venv), kv_cache_precision)
    return Contestant(manifest.name, spec, path / "tokenizer", folder=path, manifest=manifest)


def without_end(token_ids: Sequence[int], end_ids: Sequence[int]) -> Sequence[int]:
    """Return tokens without the end token, if they end with one."""
    return token_ids[:-1] if token_ids and token_ids[-1] in end_ids else token_ids


def _spec_of(folder: Path, manifest: ReleaseManifest, vllm_venv: Path | None) -> EngineSpec:
    if manifest.provider == "vllm":
        return vllm_spec_of(folder, manifest, vllm_venv)
    limits = manifest.limits
    common: dict[str, object] = {
        "dir": folder / "engine",
        "max_seq_len": limits.max_seq_len,
        "max_num_seqs": min(limits.max_batch_size or 64, 64),
        "max_num_batched_tokens": min(limits.max_num_tokens or 512, 8192),
    }
    if manifest.provider == "openvino":
        blocks = max(1024, -(-limits.max_seq_len // 32))  # at least one sequence of the longest length
        return OpenVinoEngineSpec.model_validate(
            common | {"provider": "openvino", "num_kv_blocks": blocks, "is_prefix_caching": False}
        )
    common |= {"tp_size": manifest.tp_size, "pp_size": manifest.pp_size}
    if manifest.provider == "tensorrt":
        has_logits = bool(manifest.recipe.get("is_gathering_context_logits"))
        return TensorRtEngineSpec.model_validate(
            common | {"provider": "tensorrt", "is_gathering_context_logits": has_logits}
        )
    return PyTorchEngineSpec.model_validate(common | {"provider": "pytorch", "cp_size": manifest.cp_size})


def _with_kv(spec: EngineSpec, precision: KvPrecision | None) -> EngineSpec:
    if precision is None:
        return spec
    if not isinstance(spec, OpenVinoEngineSpec):
        raise SpecError(
            f"the KV cache of an engine of {spec.provider!r} is as it was built; only openvino's can be chosen here",
            field="kv_cache_precision",
        )
    if spec.execution_mode == "accuracy" and precision != "auto":
        raise SpecError(
            f"kv_cache_precision: {precision}: with execution_mode: accuracy the KV cache is f32; leave it out",
            field="kv_cache_precision",
            value=precision,
        )
    return spec.model_copy(update={"kv_cache_precision": precision})


def _generate(engine: Engine, prompts: Sequence[Sequence[int]], num_tokens: Sequence[int]) -> list[list[int]]:
    for key, (prompt, count) in enumerate(zip(prompts, num_tokens, strict=True)):
        engine.add(
            GenerationRequest(key=key, input_ids=list(prompt), sampling=SamplingParams(max_tokens=count, top_k=1))
        )
    outputs: list[list[int]] = [[] for _ in prompts]
    while engine.has_work:
        for chunk in engine.step():
            if chunk.error is not None:
                raise ServerError(f"the engine failed with item {chunk.key}: {chunk.error}")
            outputs[chunk.key] += chunk.token_ids
    return outputs


def _context_log_probs(engine: Engine, token_ids: NDArray[np.int64]) -> NDArray[np.float32]:
    sampling = SamplingParams(max_tokens=1, top_k=1, return_context_logits=True)
    engine.add(GenerationRequest(key=0, input_ids=token_ids.tolist(), sampling=sampling))
    logits: NDArray[np.float32] | None = None
    while engine.has_work:
        for chunk in engine.step():
            if chunk.error is not None:
                raise ServerError(f"the engine gives no logits: {chunk.error}")
            if chunk.extras is not None and chunk.extras.context_logits is not None:
                logits = chunk.extras.context_logits.array().astype(np.float32)
    if logits is None:
        raise ServerError("the engine gave no logits")
    return log_softmax(logits)
