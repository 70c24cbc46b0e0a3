# SPDX-License-Identifier: Apache-2.0
"""A program that exports a checkpoint as OpenVINO IR with 16-bit weights; run in the environment `build-cpu`.

    python -m build_engines.openvino.openvino_export --checkpoint DIR --out DIR --dtype bf16 --kv auto

What is quantized afterwards is `build_engines.openvino.openvino_compress`; the tokenizer,
`build_engines.openvino.openvino_tokenizer`. Equal checkpoints give equal bytes.
"""

import argparse
import math
import tempfile
from pathlib import Path

import numpy as np
import openvino as ov
import torch
from openvino import opset13
from optimum.exporters.openvino import main_export
from optimum.intel import OVConfig

MODEL = "openvino_model.xml"
CONFIGS = ("config.json", "generation_config.json")
_TYPES = {"fp16": (torch.float16, ov.Type.f16), "bf16": (torch.bfloat16, ov.Type.bf16)}
_KV_PRECISIONS = {"auto": None, "fp16": "f16", "int8": "u8"}
_WORTH_IT = 4096  # numbers in a matrix


def export(checkpoint: Path, out: Path, *, dtype: str, kv: str) -> None:
    """Write `openvino_model.xml` and `.bin`, with the model's config files beside them.

    Args:
        checkpoint: safetensors and config.json; nothing is fetched, and no code of the checkpoint runs.
        out: folder, made here.
        dtype: `fp16` or `bf16`, of the matrices; norms keep 32 bits.
        kv: `fp16` or `int8`, of the KV cache where a deployment does not say; `auto`: what the device prefers.
    """
    torch_type, ov_type = _TYPES[dtype]
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out) as folder:  # an interrupted stage leaves nothing outside its folder
        scratch = Path(folder)
        main_export(
            str(checkpoint),
            scratch,
            task="text-generation-with-past",
            library_name="transformers",
            local_files_only=True,
            stateful=True,
            ov_config=OVConfig(dtype="auto"),  # without one, a model of more than 1B parameters comes out in int8
            model_loading_kwargs={"torch_dtype": torch_type, "use_safetensors": True},
        )
        model = ov.Core().read_model(scratch / MODEL)
        _refuse_not_finite(model)
        _restore_16_bits(model, torch_type, ov_type)
        _set_kv_precision(model, _KV_PRECISIONS[kv])
        ov.save_model(model, out / MODEL, compress_to_fp16=False)
        for name in CONFIGS:
            if (scratch / name).is_file():
                (out / name).write_bytes((scratch / name).read_bytes())


def _refuse_not_finite(model: ov.Model) -> None:
    for op in model.get_ordered_ops():
        if op.get_type_name() == "Constant" and op.get_element_type().is_real():
            values = op.get_data(dtype=np.float32)
            if not np.isfinite(values).all():
                raise SystemExit(
                    f"{op.get_friendly_name()} has numbers that are not finite; if the checkpoint's are, "
                    "they are too large for fp16"
                )


def _restore_16_bits(model: ov.Model, torch_type: torch.dtype, ov_type: ov.Type) -> None:
    """Restore 16 bits to matrices that the exporter has widened for nothing: experts, fused layers."""
    for op in model.get_ordered_ops():
        if op.get_type_name() != "Constant" or op.get_element_type() != ov.Type.f32:
            continue
        sides = [side for side in op.shape if side > 1]
        if len(sides) < 2 or math.prod(sides) < _WORTH_IT:
            continue
        wide = torch.from_numpy(np.array(op.data))
        narrow = wide.to(torch_type)
        if not torch.equal(narrow.to(torch.float32), wide):
            continue
        tensor = ov.Tensor(ov_type, op.shape)
        tensor.data.view(np.int16)[...] = narrow.view(torch.int16).numpy()
        kept = opset13.constant(tensor)
        kept.set_friendly_name(op.get_friendly_name())
        widened = opset13.convert(kept, "f32")
        for user in op.output(0).get_target_inputs():
            user.replace_source_output(widened.output(0))


def _set_kv_precision(model: ov.Model, precision: str | None) -> None:
    path = ["runtime_options", "KV_CACHE_PRECISION"]
    if precision is not None:
        model.set_rt_info(precision, path)
    elif model.has_rt_info(path):  # the exporter's own: f16 for any model that it does not quantize itself
        options = model.get_rt_info(path[:1]).value
        options.pop(path[1])
        model.set_rt_info(options, path[:1])


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--dtype", choices=sorted(_TYPES), required=True)
    parser.add_argument("--kv", choices=sorted(_KV_PRECISIONS), required=True)
    args = parser.parse_args()
    export(args.checkpoint, args.out, dtype=args.dtype, kv=args.kv)


if __name__ == "__main__":
    main()
