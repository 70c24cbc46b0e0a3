# SPDX-License-Identifier: Apache-2.0
"""The model that all peers serve, in the format of each; `make peers` writes what `make bench-model` did not."""

from pathlib import Path

from ensemble_configs.spec.deployment import DeploymentSpec, load_deployment

ROOT = Path(__file__).parents[2]
MODEL = "random_125m"
FOLDER = ROOT / "build" / MODEL
CHECKPOINT = FOLDER / "target"
OPENVINO = {8: FOLDER / "openvino" / "target", 16: FOLDER / "openvino_bf16"}
GGUF = {8: FOLDER / "q8_0.gguf", 16: FOLDER / "bf16.gguf"}
_DEPLOYMENT = ROOT / "benchmarks" / "random_model" / f"{MODEL}.yaml"


def deployment(bits: int) -> DeploymentSpec:
    """Return our deployment, with weights of `bits` bits."""
    spec = load_deployment(_DEPLOYMENT)
    if bits == 8:
        return spec
    engine = spec.model.engine.model_copy(update={"dir": OPENVINO[bits]})
    return spec.with_model(engine=engine).model_copy(update={"name": f"{spec.name}_bf16"})


def lacks(*paths: Path) -> str | None:
    """Return what is to be done for these paths to exist; None: nothing."""
    missing = [str(path.relative_to(ROOT)) for path in paths if not path.exists()]
    return (
        f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not there; run: make peers" if missing else None
    )
