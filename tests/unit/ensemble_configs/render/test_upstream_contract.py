# SPDX-License-Identifier: Apache-2.0
"""The rendered configs keep upstream's contract: every tensor, its type and shape, and nothing required beyond it."""

import json
from collections.abc import Iterable
from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from ensemble_configs.render.model_configs import render_configs
from ensemble_configs.render.repository import DEFAULT_DEPLOYMENT, DEFAULT_REPOSITORY, render_repository
from ensemble_configs.render.tensors import (
    BLS_INPUTS,
    CLIENT_INPUTS,
    ENGINE_ONLY_INPUTS,
    PROMPT_TENSORS,
    SCHEDULING_INPUTS,
)
from ensemble_configs.spec.deployment import load_deployment
from ensemble_configs.spec.model_names import MODELS, PYTHON_MODELS
from serving.engines.seam.base import SamplingParams
from serving.engines.seam.scheduling import Scheduling
from serving.requests.engine_request import ResponseOptions
from trireme.base.project_files import CODE_ROOT

CONTRACT = json.loads((CODE_ROOT / "tests" / "data" / "upstream_contract.json").read_text())

# Under one name upstream has Triton's own ensemble; here one model answers to it, and the other is beside it.
CONTRACT["ensemble_graph"] = CONTRACT["ensemble"]

# Image and video input of the steps, refused by Triton by name: text only, for good.
MULTIMODAL = {
    "IMAGE_BYTES", "IMAGE_URL", "VIDEO_BYTES", "PIXEL_VALUES", "ASPECT_RATIO_IDS", "ASPECT_RATIO_MASK",
    "CROSS_ATTENTION_MASK", "IMAGE_SIZES", "IS_VIDEO_INPUT", "ATTENTION_MASK", "IMAGE_GRID_THW", "VISION_INPUT_ID",
}  # fmt: skip
OURS = {
    "messages", "MESSAGES", "tools", "TOOLS", "lora_name", "return_finish_reason", "finish_reason", "return_release",
    "release", "return_num_cached_tokens", "num_cached_tokens", "return_token_ids", "token_ids", "continued_ids",
    "stream_context", "stream_state", "STREAM_CONTEXT", "STREAM_STATE",
    *(row.engine for row in SCHEDULING_INPUTS),
}  # fmt: skip
OLD_NAMES = {"random_seed", "min_length", "return_kv_cache_reuse_stats"}
# Upstream's placeholders, as upstream's own scripts fill them by default.
PLACEHOLDERS = {"${logits_datatype}": "TYPE_FP32", "${encoder_input_features_data_type}": "TYPE_FP16"}


def config(model: str) -> Any:
    spec = load_deployment(DEFAULT_DEPLOYMENT)
    text = render_configs(spec.model, spec.triton, source="test")[model]
    return text_format.Parse(text, model_config_pb2.ModelConfig())


def types(tensors: Iterable[Any]) -> dict[str, tuple[str, list[int]]]:
    return {tensor.name: (model_config_pb2.DataType.Name(tensor.data_type), list(tensor.dims)) for tensor in tensors}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("direction", ["inputs", "outputs"])
def test_every_tensor_of_upstream_is_there_with_its_type_and_shape(model: str, direction: str) -> None:
    upstream = {
        name: (PLACEHOLDERS.get(tensor["data_type"], tensor["data_type"]), tensor["dims"])
        for name, tensor in CONTRACT[model][direction].items()
        if name not in MULTIMODAL
    }
    ours = types(getattr(config(model), direction.removesuffix("s")))
    assert {name: ours.get(name) for name in upstream} == upstream
    assert set(ours) - set(upstream) <= OURS | OLD_NAMES


@pytest.mark.parametrize("model", MODELS)
def test_a_client_of_upstream_need_send_nothing_more(model: str) -> None:
    required = {tensor.name for tensor in config(model).input if not tensor.optional}
    assert required <= {name for name, tensor in CONTRACT[model]["inputs"].items() if not tensor["optional"]}


def test_no_input_is_reshaped_for_a_batch_of_none_would_then_crash_triton() -> None:
    for model in PYTHON_MODELS:
        assert [tensor.name for tensor in config(model).input if tensor.HasField("reshape")] == []


def test_every_ensemble_tensor_is_produced_once_before_it_is_read() -> None:
    scheduling = config("ensemble_graph").ensemble_scheduling
    known = {tensor.name for tensor in config("ensemble_graph").input}
    for step in scheduling.step:
        assert set(step.input_map.values()) <= known
        produced = set(step.output_map.values())
        assert not produced & known
        known |= produced
    assert {tensor.name for tensor in config("ensemble_graph").output} <= known


def test_every_field_named_in_the_table_exists() -> None:
    fields = {row.field for row in (*CLIENT_INPUTS, *BLS_INPUTS, *PROMPT_TENSORS, *ENGINE_ONLY_INPUTS) if row.field}
    structs = (SamplingParams, Scheduling, ResponseOptions)
    assert fields <= {name for struct in structs for name in struct.__struct_fields__}


def test_committed_model_repository_is_what_the_default_deployment_renders() -> None:
    source = str(DEFAULT_DEPLOYMENT.relative_to(DEFAULT_REPOSITORY.parent))
    rendered = render_repository(load_deployment(DEFAULT_DEPLOYMENT), root=DEFAULT_REPOSITORY, source=source)
    committed = {path: (DEFAULT_REPOSITORY / path).read_text() for path in rendered}
    assert committed == rendered, "run `make render` and commit the result"


def test_nothing_in_the_repository_is_left_to_be_filled_in() -> None:
    for path in DEFAULT_REPOSITORY.rglob("*"):
        if path.suffix in {".pbtxt", ".json", ".py"}:
            assert "${" not in path.read_text()


@pytest.mark.parametrize("decoupled", [True, False])
def test_every_model_that_starts_generations_streams_or_answers_once(decoupled: bool) -> None:
    spec = load_deployment(DEFAULT_DEPLOYMENT).with_model(decoupled=decoupled)
    configs = {
        name: text_format.Parse(text, model_config_pb2.ModelConfig())
        for name, text in render_configs(spec.model, spec.triton, source="test").items()
    }
    policies = {name: config.model_transaction_policy.decoupled for name, config in configs.items()}
    starting = {"ensemble", "tensorrt_llm", "tensorrt_llm_bls"}  # the graph is as the steps in it
    assert policies == {name: decoupled and name in starting for name in policies}
