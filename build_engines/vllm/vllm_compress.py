# SPDX-License-Identifier: Apache-2.0
"""A program that quantizes a checkpoint with llm-compressor; run in the environment `compress-cpu`, or one like it.

    python -m build_engines.vllm.vllm_compress --checkpoint DIR --out DIR --format int4_gptq --group-size 128
        --ignore lm_head --calibration FILE --num-samples 512 --max-tokens 2048 --seed 1234

It writes config.json and safetensors in the form of compressed-tensors, which vLLM loads. Nothing is fetched, and no
code of the checkpoint runs. Equal checkpoints and options give equal bytes on the same kind of machine.
"""

import argparse
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.quant_scheme import preset_name_to_scheme
from llmcompressor import oneshot
from llmcompressor.modifiers import Modifier
from llmcompressor.modifiers.gptq import GPTQModifier
from llmcompressor.modifiers.quantization import QuantizationModifier
from llmcompressor.modifiers.transform.awq import AWQModifier
from llmcompressor.modifiers.transform.smoothquant import SmoothQuantModifier
from llmcompressor.pipelines.cache import IntermediatesCache
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from build_engines.recipes.calibration_samples import calibration_samples

_TARGETS = ["Linear"]
# Our names of formats as compressed-tensors has them.
SCHEMES = {
    "smoothquant": "W8A8",
    "int4_gptq": "W4A16",
    "int4_awq": "W4A16",
    "fp8_rowwise": "FP8_DYNAMIC",
    "fp8_block": "FP8_BLOCK",
}
_KEPT = ("*.safetensors", "model.safetensors.index.json", "config.json")  # of what is saved


def compress(args: argparse.Namespace) -> None:
    """Write the quantized checkpoint that the command line asks for."""
    torch.manual_seed(args.seed)
    if not torch.accelerator.is_available():
        # llm-compressor 0.14.0.1 pins memory for AWQ without a look for an accelerator, and torch refuses that.
        IntermediatesCache.pin_memory = lambda *_, **__: None
    model = AutoModelForCausalLM.from_pretrained(
        args.checkpoint, dtype="auto", local_files_only=True, trust_remote_code=False, use_safetensors=True
    )
    samples = _samples(args)
    given: dict[str, Any] = {} if samples is None else {"dataset": samples, "num_calibration_samples": len(samples)}
    oneshot(
        model=model,
        # It is not used: samples are token ids already.
        processor=PreTrainedTokenizerFast(tokenizer_file=str(args.checkpoint / "tokenizer.json")),
        recipe=modifiers(args),
        pipeline="datafree" if samples is None else "sequential",
        **given,
    )
    args.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=args.out) as folder:  # an interrupted stage leaves nothing outside its folder
        model.save_pretrained(folder, save_compressed=True)
        for pattern in _KEPT:
            for path in sorted(Path(folder).glob(pattern)):
                path.chmod(0o644)  # safetensors are written for their owner alone
                shutil.move(path, args.out / path.name)


def modifiers(args: argparse.Namespace) -> list[Modifier]:
    """Return llm-compressor's steps for a format, in order."""
    scheme = preset_name_to_scheme(SCHEMES[args.format], _TARGETS)
    if args.format in ("int4_gptq", "int4_awq"):
        scheme = _grouped(scheme, args)
    quantized: dict[str, Any] = {"config_groups": {"group_0": scheme}, "ignore": args.ignore}
    match args.format:
        case "int4_gptq":
            return [GPTQModifier(**quantized)]
        case "int4_awq":
            return [AWQModifier(), QuantizationModifier(**quantized)]
        case "smoothquant":
            rounding = GPTQModifier if args.gptq else QuantizationModifier
            return [SmoothQuantModifier(smoothing_strength=args.alpha), rounding(**quantized)]
    return [QuantizationModifier(**quantized)]


def _grouped(scheme: QuantizationScheme, args: argparse.Namespace) -> QuantizationScheme:
    weights: QuantizationArgs = scheme.weights.model_copy(
        update={"group_size": args.group_size, "symmetric": args.symmetric}
    )
    return scheme.model_copy(update={"weights": weights})


def _samples(args: argparse.Namespace) -> torch.utils.data.DataLoader | None:
    """Return the calibration set as batches of one sample, or None for a format that needs none."""
    if args.calibration is None:
        return None
    samples = calibration_samples(
        args.calibration,
        args.checkpoint / "tokenizer.json",
        num_samples=args.num_samples,
        max_tokens=args.max_tokens,
        seed=args.seed,
    )
    tensors = [torch.tensor([token_ids]) for token_ids in samples]
    batches = [{"input_ids": ids, "attention_mask": torch.ones_like(ids)} for ids in tensors]
    return torch.utils.data.DataLoader(batches, batch_size=None)


def _parse(argv: Iterable[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Quantize a checkpoint with llm-compressor.")
    parser.add_argument("--checkpoint", type=Path, required=True, help="folder, weights in 16 or 32 bits")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--format", choices=sorted(SCHEMES), required=True, help="format of the matrices in the layers")
    parser.add_argument("--group-size", type=int, default=128, help="weights that share a scale, of int4")
    parser.add_argument("--symmetric", action="store_true", help="no zero points, of int4")
    parser.add_argument("--ignore", action="append", default=[], help="layer that keeps 16 bits; once for each")
    parser.add_argument("--alpha", type=float, default=0.5, help="of SmoothQuant")
    parser.add_argument("--gptq", action="store_true", help="round the weights of smoothquant by GPTQ")
    parser.add_argument("--calibration", type=Path, help="texts, .jsonl with the key text, or a text a line")
    parser.add_argument("--num-samples", type=int, default=512)
    parser.add_argument("--max-tokens", type=int, default=512, help="tokens of a sample")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(None if argv is None else list(argv))


def main() -> None:
    """Run the command line."""
    compress(_parse())


if __name__ == "__main__":
    main()
