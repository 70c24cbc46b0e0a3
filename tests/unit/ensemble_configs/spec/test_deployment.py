# SPDX-License-Identifier: Apache-2.0
"""A deployment file is read whole or refused with one line that names what is wrong."""

from pathlib import Path

import pytest

from ensemble_configs.spec.deployment import load_deployment, override_triton
from ensemble_configs.spec.engine.openvino_spec import OpenVinoEngineSpec
from ensemble_configs.spec.engine.tensorrt_llm_specs import PyTorchEngineSpec, TensorRtEngineSpec
from trireme.base.errors import SpecError

GOOD = """
name: test
tokenizer: {dir: tok}
engine: {provider: simulated, vocab_size: 300}
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "d.yaml"
    path.write_text(text)
    return path


def test_relative_paths_are_meant_from_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, GOOD)
    monkeypatch.chdir("/")
    assert load_deployment(path).model.tokenizer.dir == tmp_path / "tok"


@pytest.mark.parametrize(
    ("text", "finding"),
    [
        pytest.param("a: [", "is not YAML", id="broken yaml"),
        pytest.param("- 1", "must hold keys and values", id="a list"),
        pytest.param(GOOD + "colour: red", "colour: extra inputs are not permitted (got 'red')", id="unknown key"),
        pytest.param(
            GOOD + "tokeniser: 1", "extra inputs are not permitted (got 1); did you mean tokenizer?", id="mistyped key"
        ),
        pytest.param(
            GOOD.replace("300", "300, kv_blocks: 1"),
            "engine.kv_blocks: extra inputs are not permitted (got 1); did you mean num_kv_blocks?",
            id="mistyped key of an engine",
        ),
        pytest.param(
            GOOD.replace("300", "300, spec: {}"),
            "engine.spec: extra inputs are not permitted; allowed here: batch_wait_ms, decode_us_per_seq, ",
            id="unknown key of an engine",
        ),
        pytest.param(GOOD.replace("300", "true"), "valid integer (got True)", id="boolean for a number"),
        pytest.param(GOOD.replace("300", "'300'"), "valid integer (got '300')", id="string for a number"),
        pytest.param(GOOD + "triton: {http_port: '9000'}", "valid integer (got '9000')", id="string for a port"),
        pytest.param(GOOD + "triton: {max_restarts: true}", "valid integer (got True)", id="boolean for a count"),
        pytest.param(
            GOOD + "triton: {hang_timeout_s: true}",
            "valid number, not true or false (got True)",
            id="boolean for seconds",
        ),
        pytest.param("name: test\nbls: {}", "tokenizer: field required; engine: field required", id="missing keys"),
        pytest.param("name: test", "no model; name several in models, or set tokenizer and engine", id="no model"),
        pytest.param(
            GOOD.replace("provider", "provder"),
            "d.yaml: engine.provider: field required, one of openvino, pytorch, simulated, tensorrt, vllm; provder is "
            "not known there",
            id="mistyped key that says which of several",
        ),
        pytest.param(GOOD.replace("300", "300, step_ms: .inf"), "step_ms: input should be", id="endless number"),
        pytest.param(GOOD + "triton: {restart_window_s: .nan}", "triton.restart_window_s: ", id="no number"),
        pytest.param(GOOD.replace("300", f"{2**31}"), "vocab_size: input should be at most 2147483647", id="huge"),
        pytest.param(
            GOOD.replace("300", f"300, seed: -{2**63}"), "seed: input should be at most 9223372036854775807", id="low"
        ),
        pytest.param(
            GOOD.replace("tok}", "tok, add_special_tokens: 'no'}"), "should be a valid boolean (got 'no')", id="'no'"
        ),
        pytest.param(GOOD + "triton: {host: a b}", "triton.host: string should match pattern", id="no host"),
        pytest.param(
            GOOD.replace("simulated", "magic"), "'magic' found using 'provider' does not match", id="unknown provider"
        ),
        pytest.param(GOOD.replace("300", "none"), "vocab_size", id="wrong type"),
        pytest.param(GOOD + "triton: {http_port: 70000}", "triton.http_port", id="port out of range"),
        pytest.param(GOOD + "triton: {http_port: 8001}", "must differ", id="two services on one port"),
        pytest.param(GOOD.replace("name: test", "name: ../up"), "name: string should match", id="name that is a path"),
    ],
)
def test_a_bad_deployment_is_refused_with_one_line_that_names_it(tmp_path: Path, text: str, finding: str) -> None:
    with pytest.raises(SpecError) as caught:
        load_deployment(write(tmp_path, text))
    assert finding in str(caught.value)
    assert "\n" not in str(caught.value)
    assert str(tmp_path / "d.yaml") in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"nowhere\.yaml"):
        load_deployment(tmp_path / "nowhere.yaml")


def test_ports_from_the_command_line_are_checked_like_those_of_the_file(tmp_path: Path) -> None:
    spec = load_deployment(write(tmp_path, GOOD))
    assert override_triton(spec, http_port=9000, grpc_port=None).triton.http_port == 9000
    with pytest.raises(SpecError, match="must differ"):
        override_triton(spec, http_port=8001)


@pytest.mark.parametrize(
    ("speculation", "expected"),
    [
        (None, 1),
        ({"method": "lookahead", "window_size": 4, "ngram_size": 3, "verification_set_size": 4}, 3),
        ({"method": "medusa", "max_draft_len": 5, "num_heads": 4}, 6),
    ],
)
def test_what_a_step_may_add_to_a_sequence_is_known_from_its_speculation(speculation: object, expected: int) -> None:
    spec = TensorRtEngineSpec.model_validate({"provider": "tensorrt", "dir": "x", "speculation": speculation})
    assert spec.max_tokens_per_step == expected
    mtp = {"provider": "pytorch", "dir": "x", "speculation": {"method": "mtp", "num_nextn_predict_layers": 2}}
    assert PyTorchEngineSpec.model_validate(mtp).max_tokens_per_step == 3
    drafting = {"provider": "openvino", "dir": "x", "max_ngram_size": 3, "num_assistant_tokens": 5, "max_num_seqs": 8}
    assert OpenVinoEngineSpec.model_validate(drafting).max_tokens_per_step == 6
