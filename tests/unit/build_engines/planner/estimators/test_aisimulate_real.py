# SPDX-License-Identifier: Apache-2.0
"""The fake AISimulate of the tests against the real one.

These tests are of the soak, which installs it: 1.5 GB are too much for `make test`.
"""

import json

import msgspec
import pytest
from aisimulate_recorded import RECORDING, recording

from build_engines.checkpoint.known_models import known_models
from build_engines.planner.estimators.aisimulate_process import (
    NOT_INSTALLED,
    AiSimulateProcess,
    Answer,
    Point,
    Question,
    model_folder,
)

pytestmark = pytest.mark.soak

H200 = {"system": "h200_sxm", "linear": "bfloat16", "experts": "bfloat16", "kv_cache": "bfloat16"}
H100 = {"system": "h100_sxm", "linear": "fp8", "experts": "fp8", "kv_cache": "fp8"}


def ask(process: AiSimulateProcess, model: str, question: dict[str, object]) -> dict[str, object]:
    with model_folder(known_models()[model].config) as folder:
        answer = process.ask(msgspec.convert(question | {"model": folder}, Question))
    found: dict[str, object] = msgspec.to_builtins(answer)
    return found


def test_it_answers_as_recorded() -> None:
    process = AiSimulateProcess()
    assert process.is_installed, NOT_INSTALLED
    for pair in recording():
        found = ask(process, "llama-3.1-8b", pair["question"])
        assert json.loads(json.dumps(found)) == pair["answer"], f"if it is right, write it into {RECORDING}"
    process.close()


def test_it_says_what_its_own_command_line_prints() -> None:
    process = AiSimulateProcess()
    sizes = {"tp_size": 4, "pp_size": 1, "attention_dp_size": 1, "moe_tp_size": 4, "moe_ep_size": 1}
    point = Point(isl=2048, osl=256, batch_size=64, prompt_tokens_per_step=2048)
    found = ask(process, "llama-3.1-70b", H200 | sizes | {"points": [msgspec.to_builtins(point)]})
    # aiconfigurator cli estimate --system h200_sxm --isl 2048 --osl 256 --batch-size 64 --tp-size 4, version 0.12.0
    assert found["version"] == "1.3.0rc20"
    [figures] = msgspec.convert(found["points"], list[dict[str, float]])
    assert figures["ttft_ms"] == pytest.approx(573, abs=0.5)
    assert figures["tpot_ms"] == pytest.approx(48.6, abs=0.05)
    assert figures["requests_per_s"] * 255 == pytest.approx(1283, abs=0.5)  # it counts the tokens after the first
    process.close()


def test_a_mistral_is_to_it_what_a_llama_of_its_sizes_is() -> None:
    process = AiSimulateProcess()
    sizes = {"tp_size": 1, "pp_size": 1, "attention_dp_size": 1, "moe_tp_size": 1, "moe_ep_size": 1}
    point = Point(isl=1000, osl=300, batch_size=64, prompt_tokens_per_step=1000)
    llama = known_models()["llama-3.1-8b"].config
    mistral = llama | {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": None}
    found = []
    for config in (llama, mistral):
        with model_folder(config) as folder:
            question = H100 | sizes | {"points": [msgspec.to_builtins(point)], "model": folder}
            found.append(process.ask(msgspec.convert(question, Question)))
    assert isinstance(found[0], Answer)
    assert found[0] == found[1]
    process.close()


@pytest.mark.parametrize("model", ["mixtral-8x7b", "llama-2-7b", "qwen2.5-7b"])
def test_it_takes_the_configs_that_we_write(model: str) -> None:
    process = AiSimulateProcess()
    sizes = {"tp_size": 2, "pp_size": 1, "attention_dp_size": 1, "moe_tp_size": 2, "moe_ep_size": 1}
    point = Point(isl=128, osl=128, batch_size=8, prompt_tokens_per_step=128)
    found = ask(process, model, H100 | sizes | {"points": [msgspec.to_builtins(point)]})
    assert "error" not in found, found
    process.close()
