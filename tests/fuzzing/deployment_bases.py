# SPDX-License-Identifier: Apache-2.0
"""Deployments that are right, to be made wrong: together they have a place for every spec that a deployment can hold.

Plain data, as it comes out of a YAML file. Few endpoints each, because each is a process where they are loaded.
"""

from pathlib import Path

from small_encoder import write_encoder

Data = dict[str, object]

_DEMO = Path(__file__).resolve().parent.parent.parent / "examples" / "demo_model"
ENCODER = "encoder"
OPENVINO_DIR = str(_DEMO / "openvino" / "target")
_TOKENIZER: Data = {"dir": str(_DEMO / "target")}
_ENGINE: Data = {"provider": "simulated", "num_kv_blocks": 64}
_TRTLLM: Data = {"dir": "/engine", "num_kv_blocks": 64, "max_seq_len": 1024}

OWN_MODEL = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        ask = lambda request: pb_utils.get_input_tensor_by_name(request, "IN").as_numpy() * 2
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", ask(request))]) for request in requests]
"""
OWN_CONFIG = """
backend: "python"
input { name: "IN" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] }
"""


def write_own_models(folder: Path) -> Path:
    """Write the models that the bases name into the folder of the deployment; return `folder`."""
    for name in ("doubling", "other"):
        (folder / name / "1").mkdir(parents=True, exist_ok=True)
        (folder / name / "config.pbtxt").write_text(OWN_CONFIG)
        (folder / name / "1" / "model.py").write_text(OWN_MODEL)
    write_encoder(folder / ENCODER)
    return folder


def _model(name: str, engine: Data | None = None, **more: object) -> Data:
    return {"name": name, "tokenizer": _TOKENIZER, "endpoints": [], "engine": _ENGINE | (engine or {}), **more}


def _gpu(name: str, provider: str, speculation: Data, **more: object) -> Data:
    engine = {"provider": provider, **_TRTLLM, "speculation": speculation, **more}
    return {"name": name, "endpoints": ["ensemble"], "tokenizer": _TOKENIZER, "engine": engine}


BASES: dict[str, Data] = {
    "flat": {
        **_model("flat"),
        "triton": {"host": "127.0.0.1", "http_port": 8000, "grpc_port": 8001, "metrics_port": 8002, "max_restarts": 3},
        "responses": {"max_chunk_delay_ms": 5.0},
        "bls": {"accumulate_tokens": True},
        "machine": {"host_memory_gib": 8, "num_gpus": 0},
        "tracing": {
            "endpoint": "http://127.0.0.1:4318",
            "sample_ratio": 0.1,
            "export_delay_s": 0.5,
            "is_triton_traced": True,
        },
        "logs": {"format": "json", "requests": "failed"},
        "gateway": {
            "when_limits_are_away": "admit",
            "answer_cache": {
                "ttl_s": 120.0,
                "semantic": {
                    "embedding_model": "embed",
                    "least_similarity": 0.97,
                    "tenants": ["acme"],
                    "max_questions": 1000,
                    "wait_ms": 200.0,
                },
            },
            "aliases": {"gpt-4o": "flat"},
            "tenants": [{"name": "acme", "requests_per_minute": 60, "usd_per_day": 5.0}],
            "oidc": {
                "issuer": "https://login.example.com/realms/acme",
                "audience": "trireme",
                "jwks_url": "https://login.example.com/realms/acme/certs",
                "algorithms": ["RS256", "EdDSA"],
                "takes_access_tokens_alone": True,
                "tenant_claim": "tenant",
                "models_claim": "models",
                "role_claim": "realm_access.roles",
                "admin_values": ["operator"],
                "caller_limits": {"requests_per_minute": 60, "usd_per_day": 1.0},
                "leeway_s": 10.0,
                "refresh_s": 60.0,
                "grace_s": 600.0,
                "ca_file": "login_ca.pem",
                "proxy": "http://proxy.example.com:3128",
            },
        },
        "price": {"input": 0.15, "output": 0.6, "cached_input": 0.075},
        "embedding_models": [
            {
                "name": "embed",
                "provider": "openvino",
                "dir": ENCODER,
                "pooling": "mean",
                "is_normalized": True,
                "is_truncatable": True,
                "max_tokens": 48,
                "prefix": "query: ",
                "max_batch_size": 32,
                "max_batch_tokens": 4096,
                "batch_wait_ms": 2.0,
                "max_queue_size": 100,
                "execution_mode": "performance",
                "num_threads": 2,
                "price": {"input": 0.02},
            }
        ],
        "replicas": 2,
    },
    "limited": {
        "name": "limited",
        "models": [
            _model(
                "chat",
                {"seed": 1},
                rate_limiter={"resources": [{"name": "slots", "count": 2}, {"name": "pool", "is_global": True}]},
                triton_queue={"max_queue_size": 100},
                placement={"cpus": [0]},
            ),
            _model("code", {"seed": 2}, prefix="c_", rate_limiter={"resources": [{"name": "slots"}], "priority": 2}),
        ],
        "extra_models": [
            {"name": "doubling", "dir": "doubling", "instances": 1, "rate_limiter": {"resources": [{"name": "slots"}]}}
        ],
        "rate_limiter": [{"name": "slots", "count": 4, "device": 0}, {"name": "pool", "count": 2}],
        "gateway": {
            "answer_cache": {"ttl_s": 60.0, "max_mib": 16},
            "ledger_retention": {"keep_days": 90, "day_sums": False},
            "tiers": [
                {
                    "name": "auto",
                    "small": "code",
                    "large": "chat",
                    "simple": {
                        "max_prompt_chars": 500,
                        "max_messages": 3,
                        "max_answer_tokens": 256,
                        "tools": True,
                        "schemas": True,
                        "words_of_others": ["prove"],
                    },
                }
            ],
            "managed_apis": [
                {
                    "name": "elsewhere",
                    "url": "https://api.example.com/v1",
                    "model": "theirs",
                    "key_file": "their_key",
                    "proxy": "http://proxy.example.com:3128",
                    "price": {"input": 1.0, "output": 2.0},
                    "silence_s": 30.0,
                }
            ],
            "fallbacks": [
                {
                    "model": "chat",
                    "first_token_s": 20.0,
                    "steps": [{"model": "code", "first_token_s": 10.0}, {"api": "elsewhere"}],
                }
            ],
            "tenants": [
                {"name": "acme", "fallbacks": ["code", "elsewhere"]},
                {"name": "clinic", "fallbacks": ["code"], "is_resident": True},
            ],
        },
    },
    "releases": {
        "name": "releases",
        "models": [
            _model(
                "chat",
                release=2,
                endpoints=["ensemble"],
                instances={"preprocessing": 1},
                other_releases=[{"release": 1, "tokenizer": _TOKENIZER, "engine": _ENGINE | {"seed": 3}}],
            )
        ],
    },
    "trials": {
        "name": "trials",
        "models": [
            _model(
                "chat",
                {"seed": 1},
                endpoints=["ensemble", "tensorrt_llm_bls"],
                canary=2,
                on_trial=[3],
                other_releases=[
                    {"release": number, "tokenizer": _TOKENIZER, "engine": _ENGINE | {"seed": number}}
                    for number in (2, 3)
                ],
            )
        ],
    },
    "admission": {
        **_model("admission"),
        "slo": {"ttft_ms": 500.0, "tpot_ms": 50.0, "availability": 0.999},
        "admission": {
            "budget": {
                "forecast": "learned",
                "shares": {"premium": 1.0, "standard": 0.9, "batch": 0.8},
                "shared": {"weight": 2.0, "resources": [{"name": "streams", "count": 64, "per": "request"}]},
            },
            "queue": {"policy": "fair_classes", "max_requests": 64, "tenant_weights": {"gold": 4.0}},
            "ladder": {
                "window_s": 5.0,
                "steps": [
                    {
                        "action": "cap_max_tokens",
                        "priority_class": "batch",
                        "max_tokens": 64,
                        "enter": 1.2,
                        "leave": 0.9,
                    },
                    {"action": "refuse", "priority_class": "batch", "enter": 1.5, "leave": 1.2},
                ],
            },
        },
    },
    "on_demand": {
        "name": "on_demand",
        "models": [_model(name, on_demand={"pool_mib": 1024, "memory_mib": 800}) for name in ("day", "night")],
        "machine": {"gpu": "h100", "num_gpus": 1},
    },
    "faults": _model("faults", {"error_rate": 0.2, "fault": {"kind": "crash", "after_requests": 1_000_000}}),
    "ends": _model("ends", {"end_id": 6}),
    "openvino": {
        "name": "openvino",
        "tokenizer": _TOKENIZER,
        "endpoints": [],
        "engine": {"provider": "openvino", "dir": OPENVINO_DIR, "num_kv_blocks": 64, "batch_wait_ms": 2},
    },
    "vllm": {
        "name": "vllm",
        "kv_events": {
            "endpoint": "tcp://*:5557",
            "replay_endpoint": "tcp://*:5558",
            "model_name": "org/chat",
            "server_name": "{address}:8000",
            "num_kept_batches": 100,
            "tells_tokens": True,
        },
        "endpoints": ["ensemble"],
        "tokenizer": _TOKENIZER,
        "engine": {
            "provider": "vllm",
            "dir": "/engine",
            "venv_dir": "/vllm",
            "num_kv_blocks": 64,
            "tp_size": 2,
            "lora": {"dir": "/lora"},
            "speculation": {"method": "ngram", "max_draft_len": 4},
        },
    },
    "decode": {
        "name": "decode",
        "endpoints": ["ensemble"],
        "tokenizer": _TOKENIZER,
        "engine": {
            "provider": "vllm",
            "dir": "/engine",
            "kv_transfer": {"role": "decode", "host": "decode-0", "port": 5600, "lease_s": 20},
        },
        "prefill_servers": {
            "urls": ["grpcs://prefill-0:8001", "grpcs://prefill-1:8001"],
            "min_prompt_tokens": 100,
            "cert_file": "/cert",
            "key_file": "/key",
        },
    },
    "lookahead": _gpu(
        "lookahead",
        "tensorrt",
        {"method": "lookahead", "window_size": 4, "ngram_size": 3, "verification_set_size": 4},
        perf_knobs={"is_cuda_graph": True},
        lora={"dir": "/lora"},
        cache_transceiver={"backend": "ucx"},
    ),
    "medusa": _gpu("medusa", "tensorrt", {"method": "medusa", "max_draft_len": 4, "num_heads": 4}, end_ids=[2]),
    "eagle": _gpu("eagle", "tensorrt", {"method": "eagle", "max_draft_len": 4, "choices": [[0], [0, 1]]}),
    "ngram": _gpu("ngram", "pytorch", {"method": "ngram", "max_draft_len": 4, "max_matching_ngram_size": 2}, tp_size=2),
    "mtp": _gpu("mtp", "pytorch", {"method": "mtp"}, max_attention_window=[512, 1024]),
    "eagle3": _gpu("eagle3", "pytorch", {"method": "eagle3", "dir": "/draft", "max_draft_len": 4}),
    "draft_target": {
        **_gpu("draft_target", "pytorch", {"method": "draft_target", "dir": "/draft", "max_draft_len": 4}),
        "placement": {"gpus": [0], "mps_thread_percentage": 50},
        "triton": {
            "grpc_tls": {
                "cert_file": "/tls/tls.crt",
                "key_file": "/tls/tls.key",
                "client_ca_file": "/tls/ca.crt",
                "own_cert_file": "/tls/own.crt",
                "own_key_file": "/tls/own.key",
            }
        },
    },
}
