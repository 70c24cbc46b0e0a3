# SPDX-License-Identifier: Apache-2.0
"""The stand-ins of upstream's build tools: they write files of the right names, with bytes of all that was given.

The rules are those of the facts ("rules" in `trtllm_facts`); what trtllm-build changes silently is `trtllm_builder`'s.
Other tools are made by three variables of the environment: FAKE_TOOL_DELAY_S before each file, FAKE_TOOL_FAILS the name
of one that fails after its first file, FAKE_TOOL_WITHOUT the behaviours of `trtllm_builder` that are left out.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import trtllm_builder

_FILE_BYTES = 64 << 10
_QUANT_ALGOS = {
    "int8_sq": "W8A8_SQ_PER_CHANNEL", "fp8": "FP8", "int4_awq": "W4A16_AWQ", "w4a8_awq": "W4A8_AWQ",
    "int8_wo": "W8A16", "int4_wo": "W4A16", "full_prec": None, "nvfp4": "NVFP4",
    "fp8_pc_pt": "FP8_PER_CHANNEL_PER_TOKEN",
}  # fmt: skip
_HF_ALGOS = {"fp8": "FP8", "int4_awq": "W4A16_AWQ", "w4a8_awq": "W4A8_AWQ", "nvfp4": "NVFP4", "fp8_pb_wo": "FP8_PB_WO"}
_NEUTRAL = ("workers", "log_level", "device_map", "output_timing_cache", "output_dir", "export_path")


def quantize(args: argparse.Namespace) -> None:
    """Run as examples/quantization/quantize.py."""
    source = _checkpoint(args.model_dir)
    is_calibrated = args.qformat not in ("full_prec", "int8_wo", "int4_wo") or args.kv_cache_dtype is not None
    if is_calibrated:
        _calibration(args.calib_dataset)
    if "awq" in args.qformat and args.calib_size > 32:
        args.calib_size = 32
    quantization = {"quant_algo": _QUANT_ALGOS[args.qformat], "kv_cache_quant_algo": _upper(args.kv_cache_dtype)}
    config = _config(source, args, quantization)
    if args.medusa_model_dir:
        heads = json.loads((Path(args.medusa_model_dir) / "config.json").read_text())
        config |= {"architecture": "MedusaForCausalLM", "num_medusa_heads": heads["medusa_num_heads"]}
        config["max_draft_len"] = args.max_draft_len
    _write_ranks("quantize", args, config, Path(args.output_dir), "safetensors", [source])


def convert_checkpoint(args: argparse.Namespace) -> None:
    """Run as examples/models/core/llama/convert_checkpoint.py."""
    source = _checkpoint(args.model_dir)
    if args.moe_tp_size * args.moe_ep_size != args.tp_size and (args.moe_tp_size, args.moe_ep_size) != (-1, -1):
        sys.exit("AssertionError: moe_tp_size * moe_ep_size must equal to tp_size")
    if args.smoothquant or args.int8_kv_cache:
        _calibration(args.calib_dataset)
    found = json.loads((source / "config.json").read_text()).get("quantization_config") or {}
    if args.quant_ckpt_path is not None:
        if args.weight_only_precision not in ("int4_gptq", "int8_gptq"):
            sys.exit("AssertionError: only gptq weights or qserve need this option")
        Path(args.quant_ckpt_path).read_bytes()
    algo: str | None = None
    if args.use_weight_only:
        algo = {"int8": "W8A16", "int4": "W4A16", "int4_gptq": "W4A16_GPTQ"}[args.weight_only_precision]
    elif args.smoothquant:
        algo = "W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN" if args.per_token else "W8A8_SQ_PER_CHANNEL_PER_TENSOR_PLUGIN"
    elif args.use_fp8_rowwise:
        algo = "FP8_PER_CHANNEL_PER_TOKEN"
    if found.get("quant_method") in ("gptq", "awq"):
        if found.get("desc_act"):
            sys.exit("ValueError: GPTQ with desc_act=True is not implemented!")
        algo = "W4A16_GPTQ"
    kv_algo = "INT8" if args.int8_kv_cache else "FP8" if args.fp8_kv_cache else None
    config = _config(source, args, {"quant_algo": algo, "kv_cache_quant_algo": kv_algo})
    _write_ranks("convert_checkpoint", args, config, Path(args.output_dir), "safetensors", [source])


def trtllm_build(args: argparse.Namespace) -> None:
    """Run as trtllm-build."""
    checkpoint = Path(args.checkpoint_dir)
    config = json.loads((checkpoint / "config.json").read_text())
    engine = trtllm_builder.main(args, config, sm=_sm(), off=os.environ.get("FAKE_TOOL_WITHOUT", "").split(","))
    Path(args.output_timing_cache).write_bytes(os.urandom(64))
    _write_ranks("trtllm-build", args, engine, Path(args.output_dir), "engine", [checkpoint])


def hf_ptq(args: argparse.Namespace) -> None:
    """Run as ModelOpt's examples/llm_ptq/hf_ptq.py."""
    source, out = _checkpoint(args.pyt_ckpt_path), Path(args.export_path)
    out.mkdir(exist_ok=True)
    kv_algo = None if args.kv_cache_qformat == "none" else _upper(args.kv_cache_qformat)
    quantization = {"quant_algo": _HF_ALGOS[args.qformat], "kv_cache_quant_algo": kv_algo}
    (out / "hf_quant_config.json").write_text(json.dumps({"quantization": quantization}))
    (out / "config.json").write_bytes((source / "config.json").read_bytes())
    _write("hf_ptq", args, out / "model.safetensors", [source])


def _sm() -> int:
    """Return the compute capability of the first GPU, as the driver tells it."""
    argv = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    return int(subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()[0].replace(".", ""))


def _upper(name: str | None) -> str | None:
    return name.upper() if name else None


def _checkpoint(name: str) -> Path:
    for word in ("mpt", "vila", "llava"):  # get_hf_config and get_model of quantize_by_modelopt.py
        if word in name:
            sys.exit(f"the model was loaded in another way, for {word!r} in its path")
    path = Path(name)
    if not (path / "config.json").is_file():
        sys.exit(f"OSError: {path} does not appear to have a file named config.json")
    return path


def _calibration(dataset: str) -> None:
    if dataset in ("cnn_dailymail", "pileval", "ccdv/cnn_dailymail"):
        return
    file = Path(dataset) / "train.jsonl"
    if not file.is_file():
        sys.exit(f"NotImplementedError: Unsupported dataset name or local repo directory: {dataset}.")
    for line in file.read_text().splitlines():
        assert json.loads(line)["text"]


def _config(source: Path, args: argparse.Namespace, quantization: dict[str, Any]) -> dict[str, Any]:
    config = json.loads((source / "config.json").read_text())
    return {
        "architecture": config["architectures"][0],
        "dtype": _dtype(args.dtype, config),
        "logits_dtype": "float32",
        "vocab_size": config["vocab_size"],
        "hidden_size": config["hidden_size"],
        "num_hidden_layers": config["num_hidden_layers"],
        "num_attention_heads": config["num_attention_heads"],
        "num_key_value_heads": config["num_key_value_heads"],
        "intermediate_size": config["intermediate_size"],
        "max_position_embeddings": config["max_position_embeddings"],
        "head_size": config["hidden_size"] // config["num_attention_heads"],
        "mapping": {
            "world_size": args.tp_size * args.pp_size * args.cp_size,
            "tp_size": args.tp_size,
            "pp_size": args.pp_size,
            "cp_size": args.cp_size,
        },
        "quantization": quantization,
    }


def _dtype(asked: str, config: dict[str, Any]) -> str:
    """Return infer_dtype() of tensorrt_llm/models/convert_utils.py: float32 becomes float16."""
    if asked != "auto":
        return asked
    own = str(config.get("torch_dtype") or config.get("dtype") or "float16")
    return "float16" if own == "float32" else own


def _write_ranks(
    tool: str, args: argparse.Namespace, config: dict[str, Any], out: Path, suffix: str, sources: list[Path]
) -> None:
    out.mkdir(exist_ok=True)
    mapping = config.get("pretrained_config", config)["mapping"]
    world_size = mapping["world_size"] if suffix == "engine" else mapping["tp_size"] * mapping["pp_size"]
    if suffix == "engine":
        for rank in range(mapping["tp_size"] * mapping["pp_size"]):
            (sources[0] / f"rank{rank}.safetensors").read_bytes()
    (out / "config.json").write_text(json.dumps(config, indent=4))
    for rank in range(world_size):
        sys.stdout.write(f"{tool}: rank {rank} of {world_size}\n")
        _write(tool, args, out / f"rank{rank}.{suffix}", sources)


def _write(tool: str, args: argparse.Namespace, path: Path, sources: list[Path]) -> None:
    """Write bytes that depend on every flag and on every file that was read, and on nothing else."""
    seed = hashlib.sha256(path.name.encode())
    seed.update(json.dumps({k: v for k, v in vars(args).items() if k not in _NEUTRAL}, sort_keys=True).encode())
    for source in sources:
        for file in sorted(source.iterdir()):
            seed.update(file.name.encode() + hashlib.sha256(file.read_bytes()).digest())
    delay_s = float(os.environ.get("FAKE_TOOL_DELAY_S", "0"))
    with path.open("wb") as output:
        for _ in range(2):
            output.write(seed.digest() * (_FILE_BYTES // 64))
            output.flush()
            time.sleep(delay_s / 2)
    if os.environ.get("FAKE_TOOL_FAILS") == tool:
        sys.exit(f"RuntimeError: {tool} fails as it was told to")
