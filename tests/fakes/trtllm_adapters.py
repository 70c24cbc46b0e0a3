# SPDX-License-Identifier: Apache-2.0
"""LoRA adapters of the fake: read by path where a request comes in, known by number, and copied into a host cache.

The weights change every token, as a real adapter's would. Nothing of the project is imported. Source (NVIDIA/
TensorRT-LLM, 1.2 line): executor/base_worker.py (`_enqueue_request`, `_load_lora_adapter`), lora_manager.py
(`load_from_hf`), _torch/pyexecutor/resource_manager.py (`PeftCacheManager.add_request_peft`, `prepare_resources`),
cpp/tensorrt_llm/batch_manager/peftCacheManager.cpp (`addRequestPeft`), runtime/loraCache.cpp (`put`,
`claimPagesWithEvict`).
"""

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtllm_switches import Behaviour

# get_default_trtllm_modules_to_hf_modules() of lora_manager.py, the other way round.
_MODULES = {
    "q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_dense", "gate_proj": "mlp_h_to_4h",
    "down_proj": "mlp_4h_to_h", "up_proj": "mlp_gate", "gate_up_proj": "mlp_gate_up", "w1": "moe_h_to_4h",
    "w2": "moe_4h_to_h", "w3": "moe_gate", "gate": "moe_router",
}  # fmt: skip
_TENSOR = re.compile(r".*\.(\d+)\.\w+\.(?:\w+\.)?(\w+)\.lora_[AB]\.weight")
_ENOUGH = 10**6  # adapters that a host cache of the default size holds


class CacheFullError(Exception):
    """`LoraCacheFullException`: every adapter of the host cache belongs to a request that has begun."""


class OtherModelError(Exception):
    """A failed TLLM_CHECK of loraValidateRequestTensors."""


@dataclass(frozen=True, slots=True)
class Sent:
    """The adapter of a request as the worker hands it to the executor."""

    key: object
    number: int
    path: str
    weights: bytes | None  # None: the cache had them when the request came


class Adapters:
    """The adapters of one LLM."""

    def __init__(self, args: Any, model: dict[str, Any], *, backend: str, has: Callable[[Behaviour], bool]) -> None:
        """Make the adapters of an LLM.

        Args:
            args: the LLM's arguments.
            model: the config.json of the checkpoint or engine.
            backend: the LLM's backend.
            has: tells whether the executor has a behaviour.
        """
        build = model.get("build_config", {})
        self._model = model.get("pretrained_config", model)
        self._is_pytorch, self._has = backend == "pytorch", has
        config = args.lora_config
        built = build.get("lora_config", {}).get("lora_target_modules", [])
        self._modules = frozenset(config.lora_target_modules if self._is_pytorch and config is not None else built)
        plugin = build.get("plugin_config", {}).get("lora_plugin")
        self.are_served = config is not None and (self._is_pytorch or plugin not in (None, "disable"))
        self._max_cached = (config.max_cpu_loras if config is not None else None) or _ENOUGH
        self._read: dict[object, bytes] = {}  # by the LoraManager, which frees nothing
        self._sizes: dict[str, list[tuple[int, int]]] = {}  # layer and width of what was read, by path
        self._cached: dict[object, bytes] = {}  # in host memory, the one that was used last at the end
        self._users: dict[object, set[int]] = {}  # requests that have begun

    @property
    def num_users(self) -> int:
        """Return the number of requests that have begun with an adapter and not ended."""
        return sum(len(numbers) for numbers in self._users.values())

    @property
    def num_read(self) -> int:
        """Return the number of adapters that the worker has read, and keeps."""
        return len(self._read)

    def enqueue(self, request: Any) -> Sent:
        """Read an adapter where a request comes in, unless its number is known.

        Raises:
            Exception: whatever the files are the reason for.
        """
        key: object = request.lora_int_id
        if not self._has(Behaviour.ADAPTERS_ARE_KNOWN_BY_NUMBER):
            key = (request.lora_int_id, _weights_of(request.lora_path, self._modules))
        is_cached = self._is_pytorch and key in self._cached
        weights = self._load(("enqueued", key), request.lora_path)
        is_left_out = is_cached and self._has(Behaviour.EVICTED_ADAPTERS_ARE_READ_AGAIN)
        return Sent(key, request.lora_int_id, request.lora_path, None if is_left_out else weights)

    def begin(self, sent: Sent, number: int) -> bytes:
        """Put an adapter into the host cache for a request that begins, and return the weights that it is served with.

        Raises:
            CacheFullError: there is no room, and none to be made.
        """
        weights = self._cached.pop(sent.key, None)
        if weights is None:
            # The executor's own key is a number where the worker's is a string: the files are read a second time.
            weights = self._load(("begun", sent.key), sent.path) if sent.weights is None else sent.weights
            self._refuse_other_model(sent)
            self._make_room(sent)
        self._cached[sent.key] = weights
        self._users.setdefault(sent.key, set()).add(number)
        return weights

    def end(self, sent: Sent, number: int) -> None:
        """Note the end of a request; its adapter may be evicted when no request uses it."""
        self._users.get(sent.key, set()).discard(number)

    def _load(self, uid: object, path: str) -> bytes:
        if uid not in self._read:
            is_partial = self._has(Behaviour.OTHER_MODULES_ARE_LEFT_OUT)
            self._read[uid] = _weights_of(path, self._modules if is_partial else frozenset(_MODULES.values()))
            self._sizes[path] = _sizes_of(path)
        return self._read[uid]

    def _refuse_other_model(self, sent: Sent) -> None:
        for layer, hidden_size in self._sizes.get(sent.path, ()):
            if layer >= self._model.get("num_hidden_layers", layer + 1):
                raise OtherModelError("Expected layerId to be in the range [0, numModelLayers)")
            if hidden_size < self._model.get("hidden_size", hidden_size):
                raise OtherModelError("lora_weights has to few values")

    def _make_room(self, sent: Sent) -> None:
        while len(self._cached) >= self._max_cached:
            unused = next((key for key in self._cached if not self._users.get(key)), None)
            if unused is None:
                if not self._has(Behaviour.HOST_CACHE_OF_ADAPTERS_FILLS):
                    return
                raise CacheFullError(f"PEFT Cache is full. Could not store taskId={sent.number}")
            del self._cached[unused]


def _sizes_of(path: str) -> list[tuple[int, int]]:
    """Return layer and hidden size of each module that takes hidden states."""
    data = Path(path, "adapter_model.safetensors").read_bytes()
    tensors = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    found = [(match, tensors[name]["shape"]) for name in tensors if (match := _TENSOR.fullmatch(name))]
    return [(int(match[1]), shape[-1]) for match, shape in found if match[2] == "q_proj" and "lora_A" in match[0]]


def _weights_of(path: str, modules: frozenset[str]) -> bytes:
    """Return a digest of the weights of some modules and of their scale."""
    config = json.loads(Path(path, "adapter_config.json").read_bytes())
    data = Path(path, "adapter_model.safetensors").read_bytes()
    size = int.from_bytes(data[:8], "little")
    digest = hashlib.blake2b(repr((int(config["r"]), config["lora_alpha"])).encode(), digest_size=8)
    for name, tensor in json.loads(data[8 : 8 + size]).items():
        if name == "__metadata__":
            continue
        found = _TENSOR.fullmatch(name)
        if found is None:
            raise KeyError(f"unsupported key {name} from HF LoRA weights")
        assert found[2] in _MODULES, f"hf_module {found[2]} is not in supported list"
        if _MODULES[found[2]] in modules:
            start, end = tensor["data_offsets"]
            digest.update(name.encode() + data[8 + size + start : 8 + size + end])
    return digest.digest()
