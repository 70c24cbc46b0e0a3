# SPDX-License-Identifier: Apache-2.0
"""Things that the provider `openvino` refuses are impossible in OpenVINO GenAI: each thing that would be needed is
still missing.

A newer version that has one of them fails here, and the refusal can go.
"""

import re
from typing import Any

import numpy as np
import openvino
import openvino_genai
import pytest
from equipped_engines import DEMO_MODEL

CONFIG = {name for name in dir(openvino_genai.GenerationConfig) if not name.startswith("_")}
SCHEDULER = {name for name in dir(openvino_genai.SchedulerConfig) if not name.startswith("_")}
ADD_REQUEST = openvino_genai.ContinuousBatchingPipeline.add_request.__doc__ or ""
OVERLOADS = re.findall(r"\d+\. add_request\((.*)\)", ADD_REQUEST)


@pytest.fixture(scope="module")
def pipeline() -> Any:
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.num_kv_blocks = 16
    return openvino_genai.ContinuousBatchingPipeline(str(DEMO_MODEL), scheduler, "CPU", {"INFERENCE_NUM_THREADS": 1})


def output_of(pipeline: Any, **settings: object) -> Any:
    config = openvino_genai.GenerationConfig(max_new_tokens=4, ignore_eos=True, **settings)
    handle = pipeline.add_request(0, openvino.Tensor(np.array([[30, 40]], dtype=np.int64)), config)
    outputs = []
    while pipeline.has_non_finished_requests():
        pipeline.step()
        if handle.can_read():
            outputs.append(handle.read())
    return outputs


@pytest.mark.parametrize(
    "words",
    ["bias", "bad_words", "mask", "logits", "decay", "top_p_min", "embed", "rope", "encoder", "decoder", "retention"],
)
def test_a_request_has_no_setting_for_it(words: str) -> None:
    assert [name for name in CONFIG if words in name] == []


def test_the_scheduler_keeps_blocks_of_all_requests_alike() -> None:
    assert [name for name in SCHEDULER if "priorit" in name or "retention" in name or "duration" in name] == []


def test_a_request_is_token_ids_and_a_config_or_text_with_images() -> None:
    with_ids = [arguments for arguments in OVERLOADS if "input_ids" in arguments]
    assert len(with_ids) == 1
    assert [part.split(":")[0].strip() for part in re.split(r", (?=\w+:)", with_ids[0])] == [
        "self",
        "request_id",
        "input_ids",
        "generation_config",
    ]


def test_an_output_has_no_logits_of_other_tokens(pipeline: Any) -> None:
    [output] = output_of(pipeline, logprobs=5)[0].values()
    fields = {name for name in dir(output) if not name.startswith("_")}
    assert fields == {"finish_reason", "generated_ids", "generated_log_probs", "score"}
    assert len(output.generated_log_probs) == len(output.generated_ids) == 1


def test_what_is_told_of_the_cache_is_of_all_requests_together(pipeline: Any) -> None:
    output_of(pipeline)
    told = {name for name in dir(pipeline.get_metrics()) if not name.startswith("_")}
    assert [name for name in told if "reuse" in name or "hit" in name] == []


def test_beams_can_be_read_in_the_last_step_and_not_before(pipeline: Any) -> None:
    outputs = output_of(pipeline, num_beams=3, num_return_sequences=3)
    assert [len(output) for output in outputs] == [3]


@pytest.mark.parametrize("name", ["repetition_penalty", "presence_penalty", "frequency_penalty"])
def test_beams_go_with_no_penalty(name: str) -> None:
    config = openvino_genai.GenerationConfig(max_new_tokens=4, num_beams=2, num_return_sequences=2, **{name: 1.5})
    with pytest.raises(RuntimeError, match="not currently supported by beam search"):
        config.validate()
