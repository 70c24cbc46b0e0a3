# SPDX-License-Identifier: Apache-2.0
"""The writer of `ensemble_configs/spec/trtllm_facts.json`: names of `tests/fakes/trtllm_facts`.

They are for a check without upstream. Run by `make docs`; a test compares.
"""

from __future__ import annotations

import json
import re
from typing import Any

from ensemble_configs.spec.trtllm_facts import DATA
from scripts.trtllm_facts import FACTS, known_versions

_LLM_CLASSES = {"pytorch": "TorchLlmArgs", "tensorrt": "TrtLlmArgs"}
# The facts' files in the words of docs/support.md.
PARTS = {
    "llm_args": "arguments of `LLM`",
    "kv_cache_config": "KV cache settings",
    "sampling_params": "sampling parameters",
    "llm_calls": "calls of `LLM`",
    "outputs": "outputs",
    "disaggregation": "parameters of disaggregated serving",
    "kv_retention": "KV retention",
    "stats": "statistics",
    "trtllm_build_flags": "flags of `trtllm-build`",
    "quantize_flags": "flags of `quantize.py` and `convert_checkpoint.py`",
    "modelopt_hf_ptq_flags": "flags of ModelOpt's `hf_ptq.py`",
    "build_config_fields": "build settings in an engine",
    "quant_algos": "formats",
}

_OF_ENGINES = frozenset({"trtllm_build_flags", "quantize_flags", "build_config_fields"})


def names() -> dict[str, dict[str, Any]]:
    """Return for each version what `ensemble_configs.spec.trtllm_facts` reads."""
    return {version: _names_of(version) for version in known_versions()}


def _names_of(version: str) -> dict[str, Any]:
    files = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in (FACTS / version).glob("*.json")}
    facts = {name: fact for file in files.values() for name, fact in file.get("classes", {}).items()}
    llm = {provider: name for provider, name in _LLM_CLASSES.items() if name in facts}
    found: dict[str, dict[str, list[str]]] = {}
    waiting = list(llm.values())
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name] = _fields(name, facts)
            waiting += [part for parts in found[name].values() for part in parts]
    flags = files.get("trtllm_build_flags", {}).get("flags", {})
    return {
        "read": {PARTS[file]: _how(file, files, has_engines="tensorrt" in llm) for file in PARTS},
        "llm": llm,
        "classes": {name: found[name] for name in sorted(found)},
        "build_flags": sorted(flag.lstrip("-") for flag in flags),
    }


def _how(file: str, files: dict[str, Any], *, has_engines: bool) -> str:
    """Return how a part was read; `absent` where the version has no such thing."""
    if file in files:
        return str(files[file]["read"])
    return "absent" if file in _OF_ENGINES and not has_engines else "no"


def _fields(name: str, facts: dict[str, Any]) -> dict[str, list[str]]:
    inherited = {field: parts for base in facts[name].get("bases", ()) for field, parts in _fields(base, facts).items()}
    own = {field: _parts(fact["type"], facts) for field, fact in facts[name]["fields"].items()}
    return inherited | own


def _parts(text: str, facts: dict[str, Any]) -> list[str]:
    """Return the classes that a type names; a mapping of names to parts is not looked into."""
    plain = re.sub(r"Literal\[[^\]]*\]|Dict\[.*\]", "", text)
    return [name for name in re.findall(r"\w+", plain) if "fields" in facts.get(name, ())]


def text() -> str:
    """Return the file's content, a class a line."""
    return (
        "{\n" + ",\n".join(f" {json.dumps(version)}: {_block(facts)}" for version, facts in names().items()) + "\n}\n"
    )


def _block(facts: dict[str, Any]) -> str:
    classes = ",\n".join(f"   {json.dumps(name)}: {json.dumps(fields)}" for name, fields in facts["classes"].items())
    others = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in facts.items() if key != "classes"]
    return "{\n" + ",\n".join([*others, f'  "classes": {{\n{classes}\n  }}']) + "\n }"


def main() -> None:
    """Write the file."""
    DATA.write_text(text(), encoding="utf-8")


if __name__ == "__main__":
    main()
