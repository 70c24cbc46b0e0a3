# SPDX-License-Identifier: Apache-2.0
"""A release with the demo's tokenizer and a simulated or another engine, as `trireme render` writes it."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import TypeAdapter

from ensemble_configs.render.release_file import RELEASE_FILE
from ensemble_configs.render.repository import write_repository
from ensemble_configs.spec.admission_spec import AdmissionSpec
from ensemble_configs.spec.deployment import DeploymentSpec
from ensemble_configs.spec.engine.engine_spec import EngineSpec
from ensemble_configs.spec.release_spec import BlsSpec, ResponseSpec, TokenizerSpec
from trireme.base.project_files import CODE_ROOT

TOKENIZER = CODE_ROOT / "examples" / "demo_model" / "target"
# The demo model, for what needs one; without prefix caching, after which the same prompt has other last digits.
DEMO_ENGINE: Mapping[str, Any] = {
    "provider": "openvino",
    "dir": str(TOKENIZER.parent / "openvino" / "target"),
    "num_threads": 1,
    "is_prefix_caching": False,
}


def write_release(
    root: Path,
    engine: Mapping[str, object] = MappingProxyType({}),
    *,
    release: int = 1,
    is_accumulating: bool = False,
    decoupled: bool = True,
    is_warmed_up: bool = True,
    admission: AdmissionSpec | None = None,
    **responses: object,
) -> Path:
    """Write a model repository; return its `tensorrt_llm/1`.

    The engine is simulated unless `engine` names a provider; then a step takes no time unless `engine` says so.
    """
    free = {"provider": "simulated", "step_ms": 0.0, "prefill_us_per_token": 0.0, "decode_us_per_seq": 0.0}
    spec = DeploymentSpec.of_one(
        name="test",
        release=release,
        decoupled=decoupled,
        is_warmed_up=is_warmed_up,
        bls=BlsSpec(accumulate_tokens=is_accumulating),
        tokenizer=TokenizerSpec(dir=TOKENIZER),
        engine=TypeAdapter[EngineSpec](EngineSpec).validate_python(
            engine if "provider" in engine else {**free, **engine}
        ),
        admission=admission,
        responses=ResponseSpec.model_validate(responses),
    )
    write_repository(spec, root=root, source="test.yaml")
    return root / "tensorrt_llm" / str(release)


def write_broken_release(root: Path) -> Path:
    """Write a release with an engine that cannot be loaded, for its vocabulary is too small."""
    folder = write_release(root)
    file = folder / RELEASE_FILE
    file.write_text(file.read_text().replace('"vocab_size": 4096', '"vocab_size": 16'))
    return folder
