# SPDX-License-Identifier: Apache-2.0
"""Every flag of upstream's six client scripts, as their argparse has them, and where each is tried or why it is not.

Read from NVIDIA/TensorRT-LLM, `triton_backend/`, at the commits that `upstream_clients.py` and `upstream_steps.py`
name.
`pytest --upstream-clients FOLDER` asks the scripts of another version;
`test_upstream_flag_lists.py` holds all to it.
"""

import ast
from collections.abc import Iterable, Mapping
from pathlib import Path

from upstream_clients import END_TO_END, INFLIGHT
from upstream_steps import COMPARED, SPECULATIVE, STEPS

# Of the scripts by themselves: what they print, compare or write, and where their prompts come from.
_LOCAL = "what the script prints, compares, writes or draws by itself; the server sees nothing of it"
_ALWAYS = "every case has it: where the server is, what is asked"
_NAMES = "the names of models; those of a deployment with a prefix are tried in test_several_models_on_triton.py"
_LLMAPI = "asks for another backend's model, llmapi, which has other tensors"
_TLS = "TLS of the connection, tried with another client in test_grpc_tls_on_triton.py"
_TOKENIZER = "transformers makes ids of text before anything is sent; other ids than those of the cases"
_STOPS = "tried in test_official_clients.py, on a slow engine"
_RANDOM = "draws ids of all 31 bits, outside of every vocabulary: refused by name, tried in test_upstream_flags.py"
_BEAMS = "the script itself refuses more than 1"


def _because(reason: str, flags: str) -> dict[str, str]:
    return dict.fromkeys(flags.split(), reason)


def _tried(cases: Iterable[str]) -> dict[str, str]:
    """Return the flags in the names of cases, which may have several and values behind them."""
    words = {word for case in cases for word in case.split()}
    return dict.fromkeys((word for word in words if word.startswith("--")), "tried")


# By script: every flag, and "tried" or the reason.
FLAGS: Mapping[str, Mapping[str, str]] = {
    "inflight_batcher_llm/client/end_to_end_grpc_client.py": {
        **_tried(END_TO_END),
        **_because(_ALWAYS, "--url --prompt --model-name --streaming"),
        **_because(_LOCAL, "--verbose --expected-outputs --check-outputs --overwrite-output-text"),
    },
    "inflight_batcher_llm/client/inflight_batcher_llm_client.py": {
        **_tried(INFLIGHT),
        **_because(_ALWAYS, "--url --input-tokens-csv --streaming"),
        **_because(_NAMES, "--model-name"),
        **_because(_TLS, "--ssl --root-certificates --private-key --certificate-chain"),
        **_because(_STOPS, "--stop-after-ms --stop-via-request-cancel --request-id"),
        **_because(_TOKENIZER, "--text --tokenizer-dir --tokenizer-type"),
        **_because(_LOCAL, "--verbose --output-tokens-csv --check-output --correctness-threshold --stream-timeout"),
        "--grpc-compression-algorithm": "the script reads it and does nothing with it",
        "--prompt-task-id": "which row of the file's table is sent",
        "--dtype": "the table's type; the contract's is float16, and Triton refuses another one, as upstream's does",
        "--vocab_size": "which ids get --prompt_table_extra_id",
    },
    "inflight_batcher_llm/client/e2e_grpc_speculative_decoding_client.py": {
        **_tried(SPECULATIVE),
        **_because(_ALWAYS, "--url-target --url-draft --prompt --request-id"),
        **_because(
            _NAMES,
            "--preprocessor-model-name --postprocessor-model-name --draft-tensorrt-llm-model-name "
            "--target-tensorrt-llm-model-name",
        ),
        **_because(_LOCAL, "--verbose"),
        **_because(_BEAMS, "--beam-width"),
    },
    "tools/inflight_batcher_llm/speculative_decoding_test.py": {
        **_tried(SPECULATIVE),  # handed on to the speculative client
        **_tried(COMPARED),
        **_because(_ALWAYS, "--url-target --url-draft --url-control --dataset"),
        **_because(
            _NAMES,
            "--preprocessor-model-name --postprocessor-model-name --draft-tensorrt-llm-model-name "
            "--target-tensorrt-llm-model-name --bls-speculative-tensorrt-llm-model-name",
        ),
        **_because(_LOCAL, "--verbose --max-input-len --output-len --disable-output-comparison"),
        **_because(_BEAMS, "--beam-width"),
        "--return-context-logits": "the script reads it and does nothing with it",
    },
    "tools/inflight_batcher_llm/end_to_end_test.py": {
        **_tried(STEPS),
        **_because(_ALWAYS, "--url --protocol --dataset --test-bls"),
        **_because(_LOCAL, "--verbose --concurrency --max-input-len"),
        **_because(_LLMAPI, "--test-llmapi --model-name --streaming --output-config --sampling-params"),
    },
    "tools/inflight_batcher_llm/benchmark_core_model.py": {
        **_because(_ALWAYS, "--url --protocol --decoupled --dataset"),
        **_because(_NAMES, "--tensorrt-llm-model-name"),
        **_because(_TOKENIZER, "--tokenizer-dir --tokenizer-type"),
        **_because(_RANDOM, "--input-mean --input-stdev --output-mean --output-stdev --histogram-key"),
        **_because(_LLMAPI, "--test-llmapi"),
        **_because(
            _LOCAL,
            "--verbose --stream-timeout --concurrency --max-input-len --request-rate --time-delay-dist "
            "--dump-perfetto-trace --op-stats-csv --exclude-input-in-output --num-requests --check-perf-json "
            "--check-perf-key --check-perf-atol --check-perf-rtol --op-tokens-per-word",
        ),
    },
}


def flags_of(script: Path) -> set[str]:
    """Return the long flags that a script hands to argparse, without running it: it imports torch and more."""
    calls = (node for node in ast.walk(ast.parse(script.read_text())) if isinstance(node, ast.Call))
    added = (node for node in calls if isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument")
    names = (name.value for node in added for name in node.args if isinstance(name, ast.Constant))
    return {str(name) for name in names if str(name).startswith("--")}
