# SPDX-License-Identifier: Apache-2.0
"""The contract of a migration: every tensor of an old model is here, under its name, with its type and dims."""

from collections.abc import Iterator, Mapping
from typing import Any

from tritonclient.grpc import model_config_pb2

from build_engines.migration.context import Context
from build_engines.migration.filled_config import FilledConfig
from build_engines.migration.import_report import Entry, implied, lost
from build_engines.migration.values import Value
from ensemble_configs.render.tensors import inputs_of, outputs_of
from ensemble_configs.spec.model_names import PYTHON_MODELS

# What `preprocessing` has for pictures and videos alone.
PICTURES = frozenset(
    {
        "IMAGE_BYTES", "IMAGE_URL", "IMAGES", "VIDEO_BYTES", "PIXEL_VALUES", "ASPECT_RATIO_IDS", "ASPECT_RATIO_MASK",
        "CROSS_ATTENTION_MASK", "IMAGE_SIZES", "IS_VIDEO_INPUT", "ATTENTION_MASK", "IMAGE_GRID_THW", "VISION_INPUT_ID",
    }
)  # fmt: skip

# Types that upstream's template leaves to be filled: the placeholder, and the tensors that it types.
PLACEHOLDERS: Mapping[str, frozenset[str]] = {
    "logits_datatype": frozenset({"context_logits", "generation_logits", "draft_logits"}),
    "encoder_input_features_data_type": frozenset({"encoder_input_features"}),
    "prompt_embedding_table_data_type": frozenset({"prompt_embedding_table"}),
}
_INVALID = "TYPE_INVALID"
_WHAT_TO_DO = {
    "logits_datatype": "logits are computed and sent as 32-bit floats here; have clients read TYPE_FP32",
    "encoder_input_features_data_type": "models of an encoder and a decoder are not served here",
    "prompt_embedding_table_data_type": "prompt tables are 16-bit floats here; have clients send TYPE_FP16",
}


def tensor_entries(model: FilledConfig, context: Context) -> Iterator[Entry]:
    """Yield entries for the tensors of one old model that has a namesake here."""
    if model.name not in PYTHON_MODELS:
        return
    directions = {"input": (model.config.input, inputs_of), "output": (model.config.output, outputs_of)}
    for direction, (old, ours_of) in directions.items():
        ours = {name: (row.data_type, (row.producer_dims if direction == "output" else None) or row.dims)
                for name, row in ours_of(model.name)}  # fmt: skip
        same = pictures = 0
        for tensor in old:
            if _placeholder(tensor.name) is not None and tensor.name in ours:
                continue
            if tensor.name in PICTURES and model.name == "preprocessing" and not _sees(context):
                pictures += 1
            elif (difference := _difference(tensor, ours.get(tensor.name))) is None:
                same += 1
            else:
                yield Entry(f"{model.name}.{direction} {tensor.name}", _type(tensor), lost(difference))
        if same:
            why = "each is here with its name, type and dims"
            yield Entry(f"{model.name}.{direction} tensors", str(same), implied(why))
        if pictures:
            why = "for pictures, without a multimodal_model_path; text requests have none"
            yield Entry(f"{model.name}.{direction} tensors of pictures", str(pictures), implied(why))
    yield from _typed_by_placeholders(model)


def _placeholder(tensor: str) -> str | None:
    return next((name for name, tensors in PLACEHOLDERS.items() if tensor in tensors), None)


def _sees(context: Context) -> bool:
    keys = ("multimodal_model_path", "visual_model_path")
    return any(context.get(f"preprocessing.parameters.{key}").is_set for key in keys)


def _type(tensor: Any) -> str:
    return str(model_config_pb2.DataType.Name(tensor.data_type))


def _difference(tensor: Any, ours: tuple[str, tuple[int, ...]] | None) -> str | None:
    """Return the difference that a client of the old model would notice, or None."""
    if ours is None:
        return "no such tensor here; have clients leave it out"
    data_type, dims = ours
    if _type(tensor) != data_type:
        return f"{data_type} here; have clients use that type"
    old_dims = tuple(tensor.dims)
    if old_dims != dims:
        return f"dims {list(dims)} here, not {list(old_dims)}; have clients use that shape"
    return None


def _typed_by_placeholders(model: FilledConfig) -> Iterator[Entry]:
    ours = {name: row.data_type for name, row in (*inputs_of(model.name), *outputs_of(model.name))}
    tensors = [*model.config.input, *model.config.output]
    for placeholder, names in PLACEHOLDERS.items():
        types = {_type(tensor) for tensor in tensors if tensor.name in names and tensor.name in ours}
        if not types:
            continue
        [wanted] = {ours[name] for name in names & ours.keys()}
        found = ", ".join(sorted(types))
        setting = f"{model.name}.{placeholder}"
        if types == {_INVALID}:
            text = f"${{{placeholder}}}"
            yield Entry(setting, text, implied(f"{wanted}, as upstream's scripts fill it"), Value(text).note)
        elif types == {wanted}:
            yield Entry(setting, found, implied("the type here"))
        else:
            yield Entry(setting, found, lost(_WHAT_TO_DO[placeholder]))
