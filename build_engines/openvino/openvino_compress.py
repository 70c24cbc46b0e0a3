# SPDX-License-Identifier: Apache-2.0
"""A program that quantizes the weights of an OpenVINO model with nncf; run in the environment `build-cpu`.

    python -m build_engines.openvino.openvino_compress --model DIR --out DIR --linear int4 --embedding int8 --head int8
        --group-size 128 --symmetric --calibration FILE --tokenizer FILE --awq

Embedding, head and all other layers are three passes, so that each gets its own format; what nncf would choose for the
first two by itself plays no part. Equal models and options give equal bytes.
"""

import argparse
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import nncf
import numpy as np
import openvino as ov
from numpy.typing import NDArray

from build_engines.openvino.openvino_export import CONFIGS, MODEL
from build_engines.recipes.calibration_samples import calibration_samples

Ids = NDArray[np.int64] | NDArray[np.int32]

WHOLE_ROW = -1  # group size: one scale for each output channel
_MODES = {
    ("int8", True): nncf.CompressWeightsMode.INT8_SYM,
    ("int8", False): nncf.CompressWeightsMode.INT8_ASYM,
    ("int4", True): nncf.CompressWeightsMode.INT4_SYM,
    ("int4", False): nncf.CompressWeightsMode.INT4_ASYM,
}
_SMALLEST_GROUP = 32
_PASSED_BY = ("Convert", "Multiply", "Subtract", "Reshape")  # between a weight and the layer that uses it


def compress(model: ov.Model, args: argparse.Namespace) -> ov.Model:
    """Return the model with its weights in the formats that the command line names."""
    embedding, head, linear = _layers(model)
    tied = bool(head) and _weight(head[0]).get_friendly_name() in {_weight(op).get_friendly_name() for op in embedding}
    if tied and args.embedding != args.head:
        raise SystemExit(f"the head is the embedding; --embedding {args.embedding} is not --head {args.head}")
    names = {
        "embedding": [op.get_friendly_name() for op in embedding],
        "head": [op.get_friendly_name() for op in head],
        "linear": [op.get_friendly_name() for op in linear],
    }
    for part in ("embedding", "head", "linear"):
        others = [name for other, each in names.items() if other != part for name in each]
        if tied and part == "head":
            continue
        model = _compress_part(model, part, getattr(args, part), others, args)
    return model


def _compress_part(model: ov.Model, part: str, form: str, others: list[str], args: argparse.Namespace) -> ov.Model:
    if form == "fp16":
        return model
    options: dict[str, object] = {}
    if form == "int4":
        is_linear = part == "linear"
        options = {
            "group_size": args.group_size,
            "all_layers": True,
            "ratio": args.ratio if is_linear else 1.0,
            "backup_mode": nncf.BackupMode.INT8_SYM if args.symmetric else nncf.BackupMode.INT8_ASYM,
            "advanced_parameters": nncf.AdvancedCompressionParameters(
                group_size_fallback_mode=nncf.GroupSizeFallbackMode.ADJUST, min_adjusted_group_size=_SMALLEST_GROUP
            ),
        }
        if is_linear and args.calibration:
            samples = list(_samples(args))
            options |= {
                "dataset": nncf.Dataset(samples, _model_inputs(model)),
                "subset_size": len(samples),
                "awq": args.awq,
                "scale_estimation": args.data_aware,
            }
    _name_uniquely(model)
    ignored = nncf.IgnoredScope(names=others, validate=False)
    return nncf.compress_weights(model, mode=_MODES[form, args.symmetric], ignored_scope=ignored, **options)


def _layers(model: ov.Model) -> tuple[list[ov.Node], list[ov.Node], list[ov.Node]]:
    """Return the layers that have a matrix of weights: the embedding, the head, and all others."""
    embedding, linear = [], []
    for op in model.get_ordered_ops():
        kind = op.get_type_name()
        if kind == "Gather" and _is_matrix(_weight(op, port=0)):
            embedding.append(op)
        elif kind == "MatMul" and _is_matrix(_weight(op)):
            linear.append(op)
    last = model.output("logits").get_node()
    while last.get_type_name() != "MatMul":
        last = last.input_value(0).get_node()
    head = [op for op in linear if op.get_friendly_name() == last.get_friendly_name()]
    return embedding, head, [op for op in linear if op not in head]


def _weight(op: ov.Node, port: int | None = None) -> ov.Node:
    """Return the node that feeds the input of weights, through conversions."""
    if port is None:
        port = 0 if op.get_type_name() == "Gather" else 1
    node = op.input_value(port).get_node()
    while node.get_type_name() in _PASSED_BY:
        node = node.input_value(0).get_node()
    return node


def _is_matrix(node: ov.Node) -> bool:
    return node.get_type_name() == "Constant" and node.get_element_type().is_real() and len(node.shape) > 1


def _name_uniquely(model: ov.Model) -> None:
    """Give every node a name of its own.

    nncf gives several new nodes one name, and then refuses such a model in the next pass.
    """
    seen: dict[str, int] = {}
    for op in model.get_ordered_ops():
        name = op.get_friendly_name()
        seen[name] = seen.get(name, 0) + 1
        if seen[name] > 1:
            op.set_friendly_name(f"{name}/{seen[name]}")


def _samples(args: argparse.Namespace) -> Iterator[list[int]]:
    return calibration_samples(
        args.calibration, args.tokenizer, num_samples=args.num_samples, max_tokens=args.max_tokens, seed=args.seed
    )


def _model_inputs(model: ov.Model) -> Callable[[list[int]], dict[str, Ids]]:
    names = {name for port in model.inputs for name in port.names}

    def inputs(token_ids: list[int]) -> dict[str, Ids]:
        """Return all inputs of a pass over an empty KV cache, each [1, num_tokens]."""
        ids = np.array([token_ids], dtype=np.int64)
        known: dict[str, Ids] = {
            "input_ids": ids,
            "attention_mask": np.ones_like(ids),
            "position_ids": np.arange(ids.shape[1], dtype=np.int64)[None],
            "beam_idx": np.zeros(1, dtype=np.int32),
        }
        return {name: value for name, value in known.items() if name in names}

    return inputs


def _parse(argv: Iterable[str] | None = None) -> argparse.Namespace:
    formats = ["fp16", "int8", "int4"]
    parser = argparse.ArgumentParser(description="Quantize the weights of an OpenVINO model.")
    parser.add_argument("--model", type=Path, required=True, help="folder with openvino_model.xml, weights in 16 bits")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--linear", choices=formats, required=True, help="format of the matrices in the layers")
    parser.add_argument("--embedding", choices=formats, required=True)
    parser.add_argument("--head", choices=formats, required=True)
    parser.add_argument("--symmetric", action="store_true", help="no zero points")
    parser.add_argument("--group-size", type=int, default=WHOLE_ROW, help="weights that share a scale, of int4")
    parser.add_argument("--ratio", type=float, default=1.0, help="share of the layers' weights in int4; others int8")
    parser.add_argument("--calibration", type=Path, help="texts, .jsonl with the key text, or a text a line")
    parser.add_argument("--tokenizer", type=Path, help="tokenizer.json, for the calibration")
    parser.add_argument("--num-samples", type=int, default=128)
    parser.add_argument("--max-tokens", type=int, default=512, help="tokens of a sample")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--awq", action="store_true")
    parser.add_argument("--data-aware", action="store_true", help="estimate scales from activations")
    return parser.parse_args(None if argv is None else list(argv))


def main() -> None:
    """Run the command line."""
    args = _parse()
    model = compress(ov.Core().read_model(args.model / MODEL), args)
    args.out.mkdir(parents=True, exist_ok=True)
    ov.save_model(model, args.out / MODEL, compress_to_fp16=False)
    for name in CONFIGS:
        if (args.model / name).is_file():
            shutil.copyfile(args.model / name, args.out / name)


if __name__ == "__main__":
    main()
