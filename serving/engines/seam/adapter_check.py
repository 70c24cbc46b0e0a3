# SPDX-License-Identifier: Apache-2.0
"""The check of LoRA adapters, as Hugging Face's PEFT writes them, before an engine is given one.

TensorRT-LLM 1.2 loads an adapter in its worker with the request that names it, where a failure is not that request's
alone; it takes pickled weights (`adapter_model.bin`), which can run code; and it leaves modules out that the engine was
not started for, without a word. vLLM 0.32 ends when an adapter cannot be loaded within a step. Module names are
TensorRT-LLM's. Source: tensorrt_llm/lora_manager.py, executor/base_worker.py (`_enqueue_request`).
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from ensemble_configs.releases.safetensors_file import read_header
from ensemble_configs.spec.engine.lora_spec import LoraSpec
from trireme.base.errors import SpecError
from trireme.base.known_types import known

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")

# Upstream's names by PEFT's. Source: get_default_trtllm_modules_to_hf_modules of lora_manager.py.
MODULES = {
    "q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_dense", "gate_proj": "mlp_h_to_4h",
    "down_proj": "mlp_4h_to_h", "up_proj": "mlp_gate", "gate_up_proj": "mlp_gate_up", "w1": "moe_h_to_4h",
    "w2": "moe_4h_to_h", "w3": "moe_gate", "gate": "moe_router",
}  # fmt: skip
_INTO = frozenset({"attn_q", "attn_k", "attn_v", "mlp_h_to_4h", "mlp_gate", "mlp_gate_up"})  # read the hidden state
_OUT_OF = frozenset({"attn_dense", "mlp_4h_to_h"})  # write the hidden state
# A layer's number, its part, perhaps an expert, and the module; upstream reads no other names (HF_LORA_PATTERN).
_TENSOR = re.compile(r"\.(?P<layer>\d+)\.\w+\.(?:\w+\.(?:\d+\.)?)?(?P<module>\w+)\.lora_(?P<side>[AB])\.weight$")


class _Config(msgspec.Struct):
    """The fields of adapter_config.json that decide whether an adapter can be served."""

    r: int
    lora_alpha: float
    peft_type: str = "LORA"
    bias: str = "none"
    use_dora: bool = False
    modules_to_save: list[str] | None = None


class ModelSizes(NamedTuple):
    """The sizes of a model that its adapters must have, where its configuration tells them."""

    num_layers: int | None = None
    hidden_size: int | None = None


ANY_SIZES = ModelSizes()


class AdapterFacts(NamedTuple):
    """The demands of an adapter on the engine."""

    rank: int  # rank of the largest tensor
    modules: frozenset[str]  # upstream's names
    num_bytes: int  # size of the weights


def check_adapter(
    folder: Path, lora: LoraSpec, modules: frozenset[str] | None = None, sizes: ModelSizes = ANY_SIZES
) -> AdapterFacts:
    """Return the rank, modules and size of an adapter that can be served.

    Args:
        folder: holds `adapter_config.json` and `adapter_model.safetensors`.
        lora: the deployment's LoRA settings.
        modules: that the engine was started for; None: any that upstream knows.
        sizes: of the engine's model.

    Raises:
        SpecError: a file is missing, not whole or pickled, the rank is above `engine.lora.max_rank`, or the adapter
            changes something that the engine does not, or is of another model.
    """
    config = _read_config(folder)
    facts = _read_weights(folder, config.r, sizes)
    if facts.rank > lora.max_rank:
        raise SpecError(
            f"{folder} has rank {facts.rank}, and engine.lora.max_rank is {lora.max_rank}; raise it, which takes an "
            "engine that is started anew (and a compiled one that was built for it), or train a smaller adapter",
            field="engine.lora.max_rank",
            value=facts.rank,
        )
    foreign = sorted(facts.modules - modules) if modules is not None else []
    if foreign:
        raise SpecError(
            f"{folder} changes {', '.join(foreign)}, and the engine was started for "
            f"{', '.join(sorted(modules or ()))}; add it to engine.lora.target_modules and start the engine anew",
            field="engine.lora.target_modules",
            value=foreign[0],
        )
    return facts


def _read_config(folder: Path) -> _Config:
    path = folder / CONFIG
    try:
        config = msgspec.json.decode(path.read_bytes(), type=known(_Config))
    except FileNotFoundError as exc:
        raise SpecError(f"{folder} has no {CONFIG}; save the adapter there with save_pretrained(folder)") from exc
    except OSError as exc:
        raise SpecError(f"cannot read {path}: {exc.strerror}", file=path) from exc
    except (msgspec.DecodeError, msgspec.ValidationError) as exc:
        raise SpecError(f"{path} is no adapter's configuration: {exc}", file=path) from exc
    extras = {
        "peft_type": (config.peft_type, "LORA"),
        "bias": (config.bias, "none"),
        "use_dora": (config.use_dora, False),
        "modules_to_save": (config.modules_to_save or None, None),
    }
    for field, (value, allowed) in extras.items():
        if value != allowed:
            raise SpecError(
                f"{path}: {field} is {value!r}; adapters with {allowed!r} there can be served alone",
                field=field,
                value=value,
            )
    return config


def _read_weights(folder: Path, rank: int, sizes: ModelSizes) -> AdapterFacts:
    path = folder / WEIGHTS
    if not path.is_file():
        pickled = sorted(file.name for file in folder.glob("adapter_model.bin"))
        why = f"{pickled[0]} is pickled, which can run code: save it as safetensors" if pickled else "save it there"
        raise SpecError(f"{folder} has no {WEIGHTS}; {why}", file=path)
    modules: set[str] = set()
    sides: dict[str, set[str]] = {}
    num_bytes = 0
    for name, tensor in read_header(path).items():
        found = _TENSOR.search(name)
        module = MODULES.get(found["module"]) if found else None
        if found is None or module is None or not tensor.shape:
            raise SpecError(
                f"{path}: {name!r} is no LoRA tensor of {', '.join(MODULES)}; an engine would leave it out, or not "
                "read the file",
                file=path,
                value=name,
            )
        is_first = found["side"] == "A"
        _refuse_other_model(path, name, int(found["layer"]), _width(module, tensor.shape, is_first=is_first), sizes)
        sides.setdefault(name[: found.start("side")], set()).add(found["side"])
        modules.add(module)
        rank = max(rank, tensor.shape[0 if is_first else -1])
        num_bytes += tensor.num_bytes
    if not modules:
        raise SpecError(f"{path} has no tensors; save the adapter again", file=path)
    if alone := next((name for name, found in sides.items() if len(found) < len("AB")), None):
        raise SpecError(f"{path} has one of {alone}A.weight and {alone}B.weight alone; save it again", file=path)
    return AdapterFacts(rank, frozenset(modules), num_bytes)


def _width(module: str, shape: Sequence[int], *, is_first: bool) -> int | None:
    """Return the size of the hidden state, as far as one tensor of a module says it; None: it does not."""
    if is_first and module in _INTO:
        return shape[-1]
    return shape[0] if not is_first and module in _OUT_OF else None


def _refuse_other_model(path: Path, name: str, layer: int, width: int | None, sizes: ModelSizes) -> None:
    """Check one tensor against the model.

    Upstream does when the adapter is put into its cache (loraValidateRequestTensors, cpp/tensorrt_llm/runtime/
    loraUtils.cpp), where the PyTorch backend does not survive it; one that is too large is not noticed.

    Raises:
        SpecError: the tensor is of another model.
    """
    if sizes.num_layers is not None and layer >= sizes.num_layers:
        what = f"is of layer {layer}, and the engine's model has {sizes.num_layers} layers"
    elif sizes.hidden_size is not None and width not in (None, sizes.hidden_size):
        what = f"is for hidden states of {width}, and the engine's model has {sizes.hidden_size}"
    else:
        return
    raise SpecError(f"{path}: {name!r} {what}; the adapter was trained on another one", file=path, value=name)
