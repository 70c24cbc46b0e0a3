# SPDX-License-Identifier: Apache-2.0
"""The checkpoint of a proof: a model of ours by name, or a folder."""

from pathlib import Path

from build_engines.checkpoint.checkpoint_folder import CheckpointFiles
from build_engines.checkpoint.weight_table import num_parameters
from build_engines.prove.proof import ProofModel
from trireme.base.errors import SpecError
from trireme.base.project_files import project_file

_OURS = {"demo": "examples/demo_model/target", "demo-draft": "examples/demo_model/draft"}
DEFAULT = "demo"


def find_checkpoint(name: str) -> CheckpointFiles:
    """Return a Hugging Face checkpoint in 16 bits.

    Raises:
        SpecError: there is none under that name, or it is quantized: what is compared with a plan starts from 16 bits.
    """
    folder = Path(name)
    if name in _OURS and not folder.is_dir():
        folder = project_file(_OURS[name])
    if not folder.is_dir():
        raise SpecError(
            f"--model {name!r} is neither a folder here nor one of {', '.join(_OURS)}; name a Hugging Face checkpoint: "
            "a folder with config.json, safetensors and tokenizer.json",
            field="model",
            value=name,
        )
    checkpoint = CheckpointFiles(folder.resolve())
    is_quantized = "quantization_config" in checkpoint.config or (folder / "hf_quant_config.json").is_file()
    if checkpoint.is_converted or is_quantized:
        raise SpecError(
            f"--model {name} is quantized or converted already; name the checkpoint in 16 bits", field="model"
        )
    return checkpoint


def describe_model(checkpoint: CheckpointFiles) -> ProofModel:
    """Return the model's facts for the record."""
    shape = checkpoint.shape
    return ProofModel(
        name=checkpoint.dir.name if checkpoint.dir.parent.name != "demo_model" else f"demo_model/{checkpoint.dir.name}",
        architecture=shape.architecture,
        num_parameters=num_parameters(shape),
        format=format_of(checkpoint),
        weights_sha256=checkpoint.weights_sha256,
    )


def format_of(checkpoint: CheckpointFiles) -> str:
    """Return the format of the matrices: fp16 or bf16. TensorRT-LLM makes 16 bits of float32."""
    return "bf16" if checkpoint.shape.dtype == "bfloat16" else "fp16"
