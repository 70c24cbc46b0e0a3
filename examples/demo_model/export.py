# SPDX-License-Identifier: Apache-2.0
"""The export of the trained models to OpenVINO IR with int8 weights, and of their tokenizer to IR."""

import argparse
import tempfile
from pathlib import Path

import openvino as ov
from openvino_tokenizers import convert_tokenizer
from optimum.intel import OVModelForCausalLM, OVWeightQuantizationConfig
from transformers import AutoTokenizer

HERE = Path(__file__).parent
MODEL_FILES = ("openvino_model.xml", "openvino_model.bin", "config.json", "generation_config.json")


def export_int8(checkpoint: Path, output: Path) -> None:
    """Write the model with weights in asymmetric int8, one scale per output channel."""
    model = OVModelForCausalLM.from_pretrained(
        checkpoint, export=True, compile=False, quantization_config=OVWeightQuantizationConfig(bits=8)
    )
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        model.save_pretrained(scratch)
        for name in MODEL_FILES:
            (output / name).write_bytes((Path(scratch) / name).read_bytes())


def export_tokenizer(checkpoint: Path, output: Path) -> None:
    """Write the tokenizer's IR beside the model.

    Plain generation from token ids does without it, but `openvino_genai.ContinuousBatchingPipeline` needs it
    for a draft model (in both directories), for stop strings and for structured output.
    """
    tokenizer, detokenizer = convert_tokenizer(AutoTokenizer.from_pretrained(checkpoint), with_detokenizer=True)
    ov.save_model(tokenizer, output / "openvino_tokenizer.xml")
    ov.save_model(detokenizer, output / "openvino_detokenizer.xml")


def main() -> None:
    """Export the given models to `openvino/<model>`, weights in int8."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--model", choices=["target", "draft", "both"], default="both")
    parser.add_argument("--checkpoints", type=Path, default=HERE, help="holds the folders target and draft")
    parser.add_argument("--output", type=Path, default=HERE / "openvino")
    args = parser.parse_args()
    for name in ("target", "draft") if args.model == "both" else (args.model,):
        checkpoint, output = args.checkpoints / name, args.output / name
        export_int8(checkpoint, output)
        export_tokenizer(checkpoint, output)
        num_bytes = sum(path.stat().st_size for path in output.iterdir())
        print(f"{name}: {num_bytes / 1e6:.1f} MB in {output}", flush=True)


if __name__ == "__main__":
    main()
