# SPDX-License-Identifier: Apache-2.0
"""Checks that a machine can serve a built release as a deployment says, made before a GPU is touched.

Nothing is imported that loads an engine, and all that is known of the machine is the `Machine` that is given.
"""

import json
import re
from pathlib import Path

from ensemble_configs.chat.chat_template import load_chat_template
from ensemble_configs.releases.engine_fit import fit_findings
from ensemble_configs.releases.file_hashes import HashMemory, hash_file
from ensemble_configs.releases.machine import Machine
from ensemble_configs.releases.memory_need import check_memory, is_on_host
from ensemble_configs.releases.promotion import check_evaluation
from ensemble_configs.releases.release_manifest import (
    BINDING_PACKAGES,
    ReleaseManifest,
    address,
    compare_files,
    load_manifest,
)
from ensemble_configs.releases.release_signature import check_signature
from ensemble_configs.spec.batch_limits import is_default
from ensemble_configs.spec.engine.tensorrt_llm_specs import PyTorchEngineSpec, TensorRtEngineSpec
from ensemble_configs.spec.engine.vllm_spec import VllmEngineSpec
from ensemble_configs.spec.extra_llm_args import FIELD, argument_meant
from ensemble_configs.spec.finding import Finding
from ensemble_configs.spec.release_spec import ReleaseSpec
from ensemble_configs.spec.trtllm_facts import facts_of, leading_numbers
from trireme.base.errors import SpecError


def check_release(
    folder: Path,
    *,
    machine: Machine,
    deployment: ReleaseSpec | None = None,
    num_nodes: int | None = None,
    memory: HashMemory | None = None,
) -> list[Finding]:
    """Return everything that stands in the way of serving a release.

    Args:
        folder: the release.
        machine: the machine that serves; each of several nodes is asked by itself.
        deployment: how the release is served; without one, only what holds for any deployment is checked.
        num_nodes: nodes that the ranks are spread over; None: as the deployment's `gpus_per_node` says, else one.
        memory: files that have not changed since they were hashed last are not read again; None: all are read.
    """
    try:
        manifest = load_manifest(folder)
    except SpecError as exc:
        found, _, next_step = exc.message.rpartition("; ")
        return [_finding("manifest", found or exc.message, "a whole release", next_step)]
    nodes = num_nodes or _num_nodes(manifest, deployment)
    ranks = _num_ranks(manifest, deployment)
    return [
        *compare_files(folder, manifest, memory=memory),
        *_check_signature(folder, deployment),
        *check_evaluation(manifest),
        *_check_versions(manifest, machine),
        *_check_gpus(manifest, deployment, machine, num_ranks=ranks, num_nodes=nodes),
        *_check_deployment(manifest, deployment),
        *_check_engine(folder, manifest, deployment),
        *_check_extra_arguments(manifest, deployment),
        *_check_tokenizer(folder, manifest, deployment),
        *check_memory(manifest, deployment, machine, num_ranks_here=-(-ranks // nodes)),
    ]


def _finding(check: str, found: object, wanted: object, next_step: str) -> Finding:
    return Finding(check=check, found=str(found), wanted=str(wanted), next_step=next_step)


def _num_nodes(manifest: ReleaseManifest, deployment: ReleaseSpec | None) -> int:
    gpus_per_node = getattr(deployment.engine, "gpus_per_node", None) if deployment else None
    return -(-manifest.world_size // gpus_per_node) if gpus_per_node else 1


def _num_ranks(manifest: ReleaseManifest, deployment: ReleaseSpec | None) -> int:
    """Return the number of ranks: of a checkpoint for vLLM, which ranks divide when they load it, the deployment's."""
    engine = deployment.engine if deployment else None
    return engine.world_size if isinstance(engine, VllmEngineSpec) else manifest.world_size


def _check_signature(folder: Path, deployment: ReleaseSpec | None) -> list[Finding]:
    if deployment is None or deployment.release_public_key is None:
        return []
    return check_signature(folder, address(folder), deployment.release_public_key)


def _check_versions(manifest: ReleaseManifest, machine: Machine) -> list[Finding]:
    findings = []
    for name in BINDING_PACKAGES[manifest.provider]:
        wanted, found = manifest.versions.get(name), machine.packages.get(name)
        if wanted is not None and (found is None or _numbers(found) != _numbers(wanted)):
            next_step = f"install {name}=={wanted}, or build the release for what is installed"
            findings.append(_finding(name, found or "none installed", wanted, next_step))
    return findings


def _numbers(version: str) -> tuple[str, ...]:
    """Return a version without what a wheel adds: 10.14.1.48.post1 is 10.14.1.48, 2026.4.1.0+cpu is 2026.4.1."""
    public = re.split(r"[+-]|\.post", version)[0]
    return tuple(re.sub(r"(\.0)+$", "", public).split("."))


def _check_gpus(
    manifest: ReleaseManifest, deployment: ReleaseSpec | None, machine: Machine, *, num_ranks: int, num_nodes: int
) -> list[Finding]:
    is_of_any_kind = manifest.provider == "vllm" and deployment is None  # on GPUs or not, a deployment says
    if is_of_any_kind or is_on_host(manifest, deployment):
        return []
    here = -(-num_ranks // num_nodes)
    if num_ranks % num_nodes:
        next_step = "change the number of nodes, or engine.gpus_per_node"
        return [_finding("world size", f"{num_nodes} nodes", f"a divisor of {num_ranks} ranks", next_step)]
    findings = []
    if len(machine.gpus) < here:
        why = f" ({machine.why_no_gpus})" if machine.why_no_gpus else ""
        next_step = "serve it on a machine with so many, or build the release for fewer ranks"
        wanted = f"{here} for {num_ranks} ranks on {num_nodes} nodes" if num_nodes > 1 else here
        findings.append(_finding("world size", f"{len(machine.gpus)} GPUs here{why}", wanted, next_step))
    others = [(n, gpu) for n, gpu in enumerate(machine.gpus[:here]) if manifest.sm not in (None, gpu.sm)]
    if others:
        found = ", ".join(f"GPU {n} {gpu.name} with sm_{gpu.sm}" for n, gpu in others)
        next_step = "serve it on the GPU that it was built for, or build the release for this one"
        findings.append(_finding("sm", found, f"sm_{manifest.sm}", next_step))
    return findings


def _check_deployment(manifest: ReleaseManifest, deployment: ReleaseSpec | None) -> list[Finding]:
    """Return a finding for each thing that the deployment asks and the release was not built for."""
    if deployment is None:
        return []
    engine = deployment.engine
    if engine.provider != manifest.provider:
        next_step = f"set engine.provider to {manifest.provider}"
        return [_finding("engine.provider", engine.provider, manifest.provider, next_step)]
    findings = []
    if isinstance(engine, TensorRtEngineSpec | PyTorchEngineSpec):
        for field in ("tp_size", "pp_size", "cp_size"):
            asked, built = getattr(engine, field, 1), getattr(manifest, field)
            if asked != built:
                findings.append(
                    _finding(f"engine.{field}", asked, built, f"set it to {built}, or build the release for {asked}")
                )
    limits = manifest.limits
    for field, limit in (
        ("max_seq_len", limits.max_seq_len),
        ("max_num_seqs", limits.max_batch_size),
        ("max_num_batched_tokens", limits.max_num_tokens),
        ("max_beam_width", limits.max_beam_width),
    ):
        asked = getattr(engine, field, 1)
        if limit is not None and asked > limit and not is_default(field, asked):
            next_step = f"set it to {limit} or less, or build the release for more"
            findings.append(_finding(f"engine.{field}", engine.shown_value(field), f"{limit} at most", next_step))
    return findings


def _check_engine(folder: Path, manifest: ReleaseManifest, deployment: ReleaseSpec | None) -> list[Finding]:
    """Return what the engine's own files say, beside what the manifest does."""
    if deployment is None or deployment.engine.provider != manifest.provider:
        return []
    named = {finding.check for finding in _check_deployment(manifest, deployment)}
    engine = deployment.engine.model_copy(update={"dir": folder / "engine"})
    return [finding for finding in fit_findings(engine) if finding.check not in named]


def _check_extra_arguments(manifest: ReleaseManifest, deployment: ReleaseSpec | None) -> list[Finding]:
    """Return findings about extra arguments that the release's version of TensorRT-LLM lacks, where it was read."""
    engine = deployment.engine if deployment else None
    version = manifest.versions.get("tensorrt_llm")
    if not isinstance(engine, TensorRtEngineSpec | PyTorchEngineSpec) or version is None:
        return []
    findings = []
    if engine.tensorrt_llm is not None and leading_numbers(engine.tensorrt_llm) != leading_numbers(version):
        next_step = "set it to that, or build the release for the other"
        findings.append(_finding("engine.tensorrt_llm", engine.tensorrt_llm, version, next_step))
    if (facts := facts_of(version)) is not None:
        findings += [
            _finding(
                f"engine.{FIELD}.{path}", "no such argument", f"one of TensorRT-LLM {version}",
                argument_meant(path, engine.provider, [facts]),
            )
            for path in facts.unknown_arguments(engine.provider, engine.extra_llm_args)
        ]  # fmt: skip
    return findings


def _check_tokenizer(folder: Path, manifest: ReleaseManifest, deployment: ReleaseSpec | None) -> list[Finding]:
    own = folder / "tokenizer"
    used = deployment.tokenizer.dir if deployment else own
    path = used / "tokenizer.json"
    next_step = f"set tokenizer.dir to {own}"
    if not path.is_file():
        return [] if used == own else [_finding("tokenizer", f"no {path}", "the release's own", next_step)]
    if used != own and (digest := hash_file(path)) != manifest.tokenizer_sha256:
        found = f"{path} with SHA-256 {digest}"
        return [_finding("tokenizer", found, f"SHA-256 {manifest.tokenizer_sha256}", next_step)]
    try:
        num_ids = highest_token_id(path) + 1
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        found = f"{path}, which cannot be read ({exc!r})"
        return [_finding("tokenizer", found, "a tokenizer.json", "build the release with the model's tokenizer")]
    if num_ids > manifest.vocab_size:
        found = f"{num_ids} token ids in {path}"
        wanted = f"{manifest.vocab_size} at most, the model's"
        return [_finding("tokenizer", found, wanted, "build the release with the model's own tokenizer")]
    if used != own and _template_source(used) != _template_source(own):
        return [_finding("tokenizer", f"another chat template in {used}", "the release's own", next_step)]
    return []


def _template_source(folder: Path) -> str | None:
    """Return the text of a folder's chat template; None where there is none, or none that can be read."""
    try:
        template = load_chat_template(folder)
    except SpecError:  # the server refuses messages there, and says why
        return None
    return template.source if template is not None else None


def highest_token_id(path: Path) -> int:
    """Return the highest id that a tokenizer.json gives, added tokens included."""
    data = json.loads(path.read_bytes())
    vocab = data["model"]["vocab"]
    ids = vocab.values() if isinstance(vocab, dict) else range(len(vocab))  # unigram models have a list
    added = [token["id"] for token in data.get("added_tokens") or []]
    return max([*ids, *added], default=-1)
