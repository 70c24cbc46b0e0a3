# SPDX-License-Identifier: Apache-2.0
"""A program that converts a checkpoint's tokenizer to OpenVINO IR; run in the environment `build-cpu`.

    python -m build_engines.openvino.openvino_tokenizer --checkpoint DIR --out DIR

Generation from token ids does without it, but OpenVINO needs it beside the model for guided decoding, and for a draft
model in both folders.
"""

import argparse
from pathlib import Path

import openvino as ov
from openvino_tokenizers import convert_tokenizer
from transformers import AutoTokenizer


def convert(checkpoint: Path, out: Path) -> None:
    """Write `openvino_tokenizer.xml`, `openvino_detokenizer.xml` and their `.bin`."""
    source = AutoTokenizer.from_pretrained(checkpoint, local_files_only=True, trust_remote_code=False)
    tokenizer, detokenizer = convert_tokenizer(source, with_detokenizer=True)
    out.mkdir(parents=True, exist_ok=True)
    ov.save_model(tokenizer, out / "openvino_tokenizer.xml")
    ov.save_model(detokenizer, out / "openvino_detokenizer.xml")


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    convert(args.checkpoint, args.out)


if __name__ == "__main__":
    main()
