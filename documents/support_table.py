# SPDX-License-Identifier: Apache-2.0
"""The writer of the tables of `docs/support.md`, and of the README's row about GPUs.

They come from data: containers, formats, proofs, facts, and Triton servers. What was tried on a
GPU is what files in `benchmarks/gpu/` say, and nothing else.
"""

import re
from collections.abc import Sequence

from build_engines.checkpoint.gpus import gpus
from build_engines.checkpoint.weight_formats import KV_FORMAT_SMS, WEIGHT_FORMATS
from build_engines.prove.proof import Proof, load_proofs
from build_engines.recipes.trtllm_versions import VERSIONS
from documents.pages import DOCS, ROOT, with_tables
from documents.triton_differences import difference_table
from ensemble_configs.releases.containers import Containers, containers
from ensemble_configs.spec.trtllm_facts import facts_of, known_facts
from trireme.base.text_tables import markdown_table

PAGE, README, PROOFS = DOCS / "support.md", ROOT / "README.md", ROOT / "benchmarks" / "gpu"
NOT_YET = "not yet run on a GPU"
_GPU_ROW = re.compile(r"^\| GPU \| .* \|$", re.MULTILINE)
_READ = {"source": "source", "catalogue": "listing", "partly": "partly", "no": "no", "absent": "-"}


def page(document: str) -> str:
    """Return the document with its tables written again."""
    return with_tables(document, {"support": f"\n{render_tables(load_proofs(PROOFS))}\n"})


def readme(text: str) -> str:
    """Return the README with its row about GPUs written again."""
    return with_gpu_row(text, load_proofs(PROOFS))


def render_tables(proofs: Sequence[Proof]) -> str:
    """Return the tables as Markdown."""
    found = containers()
    parts = [f"As of {found.date}.", "### Containers", _container_table(found, proofs)]
    parts += ["### GPUs and formats", _format_table(), "### Triton servers", difference_table()]
    return "\n\n".join([*parts, "### What was read of TensorRT-LLM", _facts_table()])


def with_gpu_row(readme: str, proofs: Sequence[Proof]) -> str:
    """Return the README with its row about GPUs written again.

    Raises:
        ValueError: the README has no such row.
    """
    text, count = _GPU_ROW.subn(lambda _: f"| GPU | {gpu_sentence(proofs)} |", readme)
    if count != 1:
        raise ValueError(f"{count} rows of the README begin with '| GPU |', not one")
    return text


def gpu_sentence(proofs: Sequence[Proof]) -> str:
    """Return what was tried on which GPU, for the README."""
    table = "[what should run where](docs/support.md)"
    if not proofs:
        return f"{NOT_YET}; [`trireme prove`](docs/prove.md) does it; {table}"
    return f"run on {'; '.join(map(_proved, proofs))}; {table}"


def _proved(proof: Proof) -> str:
    names = {"tensorrt_llm": "TensorRT-LLM", "vllm": "vLLM"}
    version = proof.machine.versions.get(proof.engine, "?")
    where = f"{proof.gpu} with {names[proof.engine]} {version}, {proof.day}"
    if not proof.failures:
        return where
    return f"{where} (failed: {', '.join(step.name for step in proof.failures)})"


def _container_table(found: Containers, proofs: Sequence[Proof]) -> str:
    header = ("tritonserver", "TensorRT-LLM", "TensorRT", "CUDA", "driver", "engines", "`trireme build`", "proved on")
    rows = []
    for row in found.rows:
        version = row.tensorrt_llm
        of_engine = [proof for proof in proofs if proof.engine == "tensorrt_llm"]
        of_row = [proof for proof in of_engine if proof.machine.versions.get("tensorrt_llm") == version]
        proved = "; ".join(f"{proof.gpu}, {proof.day}" for proof in of_row) or "none yet"
        needs = (row.tags, version, row.tensorrt or "", row.cuda or "", row.driver or "")
        rows.append((*needs, _engines(version), _yes(version in VERSIONS), proved))
    return markdown_table(header, rows)


def _format_table() -> str:
    kv_names = [name for name in KV_FORMAT_SMS if name != "bf16"]
    header = ["GPU", "SM", *(f"`{name}`" for name in WEIGHT_FORMATS), *(f"KV `{name}`" for name in kv_names)]
    sms = [each.sms for each in WEIGHT_FORMATS.values()] + [KV_FORMAT_SMS[name] for name in kv_names]
    rows = []
    for sm in sorted({gpu.sm for gpu in gpus().values()}):
        names = ", ".join(gpu.name for gpu in gpus().values() if gpu.sm == sm)
        rows.append([names, str(sm), *(_yes(sm in each) for each in sms)])
    return markdown_table(header, rows)


def _engines(version: str) -> str:
    """Return the providers that are held to the names of a version."""
    facts = facts_of(version)
    return ", ".join(f"`{provider}`" for provider in sorted(facts.llm, reverse=True)) if facts else "not checked"


def _facts_table() -> str:
    versions = known_facts()
    rows = [[part, *(_READ[facts.read[part]] for facts in versions)] for part in versions[-1].read]
    providers = (", ".join(f"`{name}`" for name in sorted(facts.llm, reverse=True)) for facts in versions)
    header = ["of", *(f"TensorRT-LLM {facts.version}" for facts in versions)]
    return markdown_table(header, [*rows, ["served by", *providers]])


def _yes(is_so: bool) -> str:
    return "yes" if is_so else "no"
