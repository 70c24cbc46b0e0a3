# SPDX-License-Identifier: Apache-2.0
"""LoRA adapters of vLLM's engine core: loaded before a request that names one, and freed when its files are gone.

vLLM 0.32 reads an adapter within the step that first needs it, also one that it has put away to make room, and a step
that fails ends the core. So every adapter in use is loaded here, at most as many at once as vLLM keeps
(`max_host_adapters`), and it never has to read one again; requests that name further ones wait. Requests know an
adapter by a name that is another one when its files are others: KV blocks are shared by that name.

In vLLM's CPU build a request without an adapter is computed with the last slot's (its torch operators index the slots
by -1). There such requests name an adapter without weights, which has a place of its own.
"""

import json
import os
import struct
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ensemble_configs.spec.engine.lora_spec import LoraSpec
from ensemble_configs.spec.engine.vllm_spec import VllmEngineSpec
from serving.engines.seam.adapter_check import CONFIG, MODULES, WEIGHTS
from serving.engines.seam.adapter_folder import Adapter, AdapterFolder, model_sizes, named_modules
from serving.engines.seam.base import SamplingParams
from serving.engines.vllm.vllm_upstream import (
    FOLDER,
    Core,
    LoraLayer,
    LoraManager,
    LoraWeights,
    Upstream,
    lora_manager,
    one_line,
)
from trireme.base.errors import RequestError, SpecError

_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # MaxLoRARanks of vLLM
_LOOK_S = 1.0  # between looks whether the files of idle adapters are still there
_NONE = 1  # vLLM's number of the adapter without weights
_NO_NAME = "none"
_OTHER_FILES = "-"  # between an adapter's name and the number of its files


def lora_arguments(spec: VllmEngineSpec) -> dict[str, Any]:
    """Return the keywords of EngineArgs.

    Raises:
        SpecError: vLLM has no such rank, or the model is divided among CPUs.
    """
    lora = spec.lora
    if lora is None:
        return {}
    if spec.is_on_cpu and spec.world_size > 1:
        raise SpecError(
            f"engine.lora does not go with {spec.world_size} ranks on a CPU: vLLM's CPU build computes requests "
            "without an adapter wrongly beside adapters, and we correct that in one rank alone; set tp_size and "
            "pp_size to 1",
            field="engine.lora",
        )
    rank = next((rank for rank in _RANKS if rank >= lora.max_rank), None)
    if rank is None:
        raise SpecError(
            f"engine.lora.max_rank ({lora.max_rank}) is more than the highest of vLLM, {_RANKS[-1]}; lower it",
            field="engine.lora.max_rank",
            value=lora.max_rank,
        )
    on_device, on_host = _places(lora)
    arguments: dict[str, Any] = {
        "enable_lora": True,
        "max_lora_rank": rank,
        "max_loras": on_device + spec.is_on_cpu,
        "max_cpu_loras": on_host + spec.is_on_cpu,
    }
    if modules := named_modules(lora):
        arguments["lora_target_modules"] = [name for name, ours in MODULES.items() if ours in modules]
    return arguments


def _places(lora: LoraSpec) -> tuple[int, int]:
    on_device = lora.max_device_adapters or 1
    return on_device, max(on_device, lora.max_host_adapters or on_device)


@dataclass(slots=True)
class _Loaded:
    """An adapter in vLLM."""

    request: Any  # LoRARequest
    adapter: Adapter
    num_users: int = 0


class VllmAdapters:
    """The adapters of one engine; without `engine.lora` a request has none."""

    def __init__(self, spec: VllmEngineSpec, core: Core, upstream: Upstream) -> None:
        self._provider = spec.provider
        self._core = core
        self._upstream = upstream
        self._is_whole = spec.world_size == 1  # no rank has a part of each layer
        self._folder: AdapterFolder | None = None
        self._num_places = 0
        self._num_made = _NONE
        self._next_look_s = 0.0
        self._loaded: dict[int, _Loaded] = {}  # by the number of the files, the least recently used first
        self._used: dict[int, int] = {}  # by request: the number of its adapter's files
        self._none: object = None  # LoRARequest of those without an adapter
        if spec.lora is not None:
            self._folder = AdapterFolder(
                spec.lora, named_modules(spec.lora), model_sizes(spec.dir), upstream="vLLM", is_freed=True
            )
            _, self._num_places = _places(spec.lora)
            if spec.is_on_cpu:
                self._none = self._load_none()

    def find(self, sampling: SamplingParams) -> Adapter | None:
        """Return the adapter that a request names, as its files are now; None: it names none.

        Raises:
            RequestError: there is none of that name, or it cannot be served.
        """
        name, field = _named(sampling)
        if name is None or self._folder is None:
            return None
        try:
            return self._folder.find(name, field=field)
        except RequestError as exc:
            raise RequestError(exc.message, **exc.facts, provider=self._provider) from exc

    def has_room(self, adapter: Adapter | None) -> bool:
        """Return whether a request may be given to vLLM now: its adapter is loaded, or there is a place for it."""
        if adapter is None or adapter.number in self._loaded or len(self._loaded) < self._num_places:
            return True
        return any(loaded.num_users == 0 for loaded in self._loaded.values())

    def lend(self, key: int, adapter: Adapter | None, sampling: SamplingParams) -> object:
        """Return vLLM's LoRARequest for a request, with its adapter loaded; None: vLLM needs none.

        Raises:
            RequestError: vLLM cannot load the adapter.
        """
        if adapter is None:
            return self._none
        loaded = self._loaded.pop(adapter.number, None) or self._load(adapter, _named(sampling)[1])
        self._loaded[adapter.number] = loaded  # now the last one
        loaded.num_users += 1
        self._used[key] = adapter.number
        return loaded.request

    def give_back(self, key: int) -> None:
        """Note that a request has ended."""
        number = self._used.pop(key, None)
        if number is not None:
            loaded = self._loaded[number]
            loaded.num_users -= 1
            self._free_if_gone(loaded)

    def look(self) -> None:
        """Free idle adapters whose files are gone or others, if the last look is a while ago."""
        if self._loaded and time.monotonic() >= self._next_look_s:
            self._next_look_s = time.monotonic() + _LOOK_S
            for loaded in list(self._loaded.values()):
                self._free_if_gone(loaded)

    def _free_if_gone(self, loaded: _Loaded) -> None:
        assert self._folder is not None
        if loaded.num_users == 0 and not self._folder.is_current(loaded.adapter):
            self._free(loaded)

    def _free(self, loaded: _Loaded) -> None:
        del self._loaded[loaded.adapter.number]
        self._core.remove_lora(loaded.request.lora_int_id)

    def _load(self, adapter: Adapter, field: str) -> _Loaded:
        assert self._folder is not None
        if len(self._loaded) >= self._num_places:
            self._free(next(loaded for loaded in self._loaded.values() if loaded.num_users == 0))
        self._num_made += 1
        # KV blocks are shared by the name: other files, another name.
        request = self._request(f"{adapter.name}{_OTHER_FILES}{self._num_made}", self._num_made, adapter.folder)
        try:
            self._core.add_lora(request)
            if self._is_whole:
                manager = lora_manager(self._core)
                _refuse_misfit(manager.get_adapter(self._num_made).loras, manager.modules)
        except Exception as exc:  # whatever vLLM, torch or safetensors raises
            if self._num_made in self._core.list_loras():
                self._core.remove_lora(self._num_made)
            refused = self._folder.note_failed(adapter.name, adapter.number, one_line(exc), field=field)
            raise RequestError(refused.message, **refused.facts, provider=self._provider) from exc
        return _Loaded(request, adapter)

    def _load_none(self) -> object:
        with tempfile.TemporaryDirectory(dir=os.environ.get(FOLDER)) as folder:
            _write_zeros(Path(folder), lora_manager(self._core))
            request = self._request(_NO_NAME, _NONE, Path(folder))
            self._core.add_lora(request)
        return request

    def _request(self, name: str, number: int, folder: Path) -> Any:
        return self._upstream.make_lora_request(lora_name=name, lora_int_id=number, lora_path=str(folder))


def adapter_of(lora_name: str) -> str | None:
    """Return what requests call an adapter, by its name in vLLM; None: it is the one of requests without."""
    return None if lora_name == _NO_NAME else lora_name.rpartition(_OTHER_FILES)[0]


def _named(sampling: SamplingParams) -> tuple[str | None, str]:
    """Return the adapter's name and the field that names it."""
    if sampling.lora_name is not None or sampling.lora_task_id is None:
        return sampling.lora_name, "lora_name"
    return str(sampling.lora_task_id), "lora_task_id"


def _write_zeros(folder: Path, manager: LoraManager) -> None:
    """Write the smallest adapter that vLLM takes: a module of the model, unchanged."""
    name, layer = next(iter(manager.modules.items()))
    module = manager.packed_modules.get(name, [name])[0]
    header, position = {}, 0
    for side, size in (("A", layer.lora_a_stacked[0].shape[-1]), ("B", layer.lora_b_stacked[0].shape[-2])):
        shape, end = [1, size] if side == "A" else [size, 1], position + 4 * size
        header[f"base_model.model.{module}.lora_{side}.weight"] = {
            "dtype": "F32",
            "shape": shape,
            "data_offsets": [position, end],
        }
        position = end
    text = json.dumps(header).encode()
    (folder / WEIGHTS).write_bytes(struct.pack("<Q", len(text)) + text + bytes(position))
    settings = {"peft_type": "LORA", "r": 1, "lora_alpha": 1, "target_modules": [module.rpartition(".")[2]]}
    (folder / CONFIG).write_text(json.dumps(settings), encoding="utf-8")


def _refuse_misfit(weights: Mapping[str, LoraWeights], layers: Mapping[str, LoraLayer]) -> None:
    """Check an adapter's sizes against the model's: vLLM fills up what is too small, and leaves other modules out.

    Raises:
        ValueError: the adapter is of another model.
    """
    for name, weight in weights.items():
        layer = layers.get(name)
        if layer is None:
            raise ValueError(f"it changes {name}, which the model does not have")
        sides = _parts(weight.lora_a), _parts(weight.lora_b)
        for first, second, in_slots, out_slots in zip(*sides, layer.lora_a_stacked, layer.lora_b_stacked, strict=True):
            if first is not None and (first.shape[1], second.shape[0]) != (in_slots.shape[-1], out_slots.shape[-2]):
                raise ValueError(
                    f"{name} of it is {first.shape[1]} by {second.shape[0]}, and of the model {in_slots.shape[-1]} by "
                    f"{out_slots.shape[-2]}"
                )


def _parts(tensors: Any) -> Any:
    return tensors if isinstance(tensors, list | tuple) else [tensors]
