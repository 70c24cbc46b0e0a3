# SPDX-License-Identifier: Apache-2.0
"""`trireme doctor`: all that stands in the way of serving a built release on this machine, found without a GPU.

With --tensorrt-llm it checks TensorRT-LLM itself instead.
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from ensemble_configs.releases.memory_need import memory_need_bytes
from ensemble_configs.releases.release_manifest import ReleaseManifest, address, load_manifest
from ensemble_configs.spec.deployment import load_deployment
from ensemble_configs.spec.finding import Finding
from ensemble_configs.spec.grpc_tls import GrpcTlsSpec, certificate_of, grpc_tls_findings
from ensemble_configs.spec.release_spec import ReleaseSpec
from ensemble_configs.spec.trtllm_facts import facts_note, facts_of
from serving.doctor.release_check import built_release_of, findings_here, launcher_findings
from serving.doctor.server_features import consequences
from serving.doctor.server_probe import ask_server
from serving.doctor.tensorrt_llm_findings import findings_of_tensorrt_llm, installed_version
from serving.process.installation import find_triton
from trireme.base.errors import SpecError


def doctor(
    release: Annotated[
        Path | None, typer.Argument(help="Folder of a built release.", show_default="the deployment's releases")
    ] = None,
    deployment: Annotated[
        Path | None,
        typer.Option(help="Deployment file that is to serve the release: gives limits, memory, tokenizer and key."),
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option(
            help="Number of machines that the ranks are spread over.", min=1, show_default="the deployment's, or 1"
        ),
    ] = None,
    is_full: Annotated[
        bool, typer.Option("--full", help="Read every file again, also those that have not changed since last time.")
    ] = False,
    is_server: Annotated[
        bool,
        typer.Option(
            "--server",
            help="Only start this machine's Triton without your models for some seconds and show what it can do.",
        ),
    ] = False,
    is_trying_upstream: Annotated[
        bool,
        typer.Option(
            "--tensorrt-llm",
            help="Check whether TensorRT-LLM itself runs here: driver, versions, imports; takes a minute.",
        ),
    ] = False,
    is_without_gpu: Annotated[
        bool,
        typer.Option(
            "--without-gpu", help="With --tensorrt-llm, leave out what needs a driver, as when an image is built."
        ),
    ] = False,
    is_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Check a built release against this machine and, if you name it, a deployment; exit status 1 if anything is wrong.

    Examples:

      trireme doctor /models/demo-int8

      trireme doctor --deployment my.yaml --full

      trireme doctor --server

      trireme doctor --tensorrt-llm
    """
    if is_server:
        if release is not None or deployment is not None:
            given = release if release is not None else f"--deployment {deployment}"
            raise SpecError(
                f"--server takes no value and asks this machine's Triton alone; check {given} by a `trireme doctor` "
                "without --server",
                field="server",
            )
        _report_server(is_json=is_json)
        return
    if is_without_gpu and not is_trying_upstream:
        raise SpecError("--without-gpu is for --tensorrt-llm alone; add that, or leave it out")
    upstream = _try_upstream(is_without_gpu=is_without_gpu, is_json=is_json) if is_trying_upstream else None
    served = _releases(release, deployment, is_one_wanted=not is_trying_upstream)
    tls = None if deployment is None else load_deployment(deployment).triton.grpc_tls
    wrong_tls = [] if tls is None else grpc_tls_findings(tls)
    results = [
        (
            folder,
            [
                *findings_here(folder, spec, num_nodes=nodes, is_full=is_full),
                *(launcher_findings(spec) if spec is not None else []),
                *wrong_tls,
            ],
            spec,
        )
        for folder, spec in served
    ]
    if is_json:
        facts = [_facts(folder, findings, tls) for folder, findings, _ in results]
        typer.echo(json.dumps(([] if upstream is None else [_upstream_facts(upstream)]) + facts, indent=2))
    else:
        for folder, findings, spec in results:
            _print(folder, findings, spec, tls)
    if upstream or any(findings for _, findings, _ in results):
        raise typer.Exit(1)


def _report_server(*, is_json: bool) -> None:
    features = ask_server(find_triton())
    if is_json:
        typer.echo(json.dumps(asdict(features), indent=2))
    else:
        console = Console(highlight=False, markup=False)
        console.print(f"tritonserver {features.version}, numpy {features.numpy}: {features.program}", soft_wrap=True)
        table = Table()
        for column in ("asked", "answer", "here"):
            table.add_column(column, overflow="fold")
        for question, answer, here in consequences(features):
            table.add_row(question, "yes" if answer else "no", here)
        console.print(table)
    if not features.are_tensors_whole:
        raise typer.Exit(1)


def _try_upstream(*, is_without_gpu: bool, is_json: bool) -> list[Finding]:
    """Return what is wrong with TensorRT-LLM here, and print it for a person."""
    if not is_json:
        Console(stderr=True, highlight=False).print("importing tensorrt_llm, which takes up to a minute ...")
    findings = findings_of_tensorrt_llm(is_without_gpu=is_without_gpu)
    if is_json:
        return findings
    console = Console(highlight=False, markup=False)
    if findings:
        _print_findings(console, f"TensorRT-LLM does not run here: {len(findings)} found", findings)
    elif is_without_gpu:
        console.print("TensorRT-LLM is imported as far as that goes without a driver", soft_wrap=True)
    else:
        console.print(f"TensorRT-LLM {installed_version()} can be imported here", soft_wrap=True)
    return findings


def _upstream_facts(findings: list[Finding]) -> dict[str, object]:
    return {
        "tensorrt_llm": installed_version(),
        "is_fit": not findings,
        "findings": [finding.model_dump() for finding in findings],
    }


def _releases(
    release: Path | None, deployment: Path | None, *, is_one_wanted: bool
) -> list[tuple[Path, ReleaseSpec | None]]:
    """Return the releases to check, each with its spec if a deployment gives one.

    Raises:
        SpecError: neither option names a release though one is wanted, or they name different ones.
    """
    if deployment is None:
        if release is None and not is_one_wanted:
            return []
        if release is None:
            raise SpecError("name the folder of a release, or a deployment that serves one (--deployment)")
        return [(release.resolve(), None)]
    specs = load_deployment(deployment).releases
    served = [(folder, spec) for spec in specs if (folder := built_release_of(spec)) is not None]
    if not served:
        raise SpecError(f"{deployment} serves no built release; set release_dir in it", file=deployment)
    wanted = [part for part in served if release is None or part[0].resolve() == release.resolve()]
    if not wanted:
        others = ", ".join(str(folder) for folder, _ in served)
        raise SpecError(f"{deployment} serves {others}, not {release}; set release_dir in it", file=deployment)
    return [*wanted]


def _facts(folder: Path, findings: list[Finding], tls: GrpcTlsSpec | None) -> dict[str, object]:
    manifest = _manifest(folder)
    certificate = None if tls is None or findings else certificate_of(tls)
    return {
        "release": str(folder),
        "name": manifest and manifest.name,
        "address": manifest and address(folder),
        **_trtllm_facts(manifest),
        "is_fit": not findings,
        "findings": [finding.model_dump() for finding in findings],
        **({} if certificate is None else {"grpc_certificate": certificate.facts}),
    }


def _trtllm_facts(manifest: ReleaseManifest | None) -> dict[str, object]:
    """Return the version by which to check the release's settings; nothing for engines other than TensorRT-LLM."""
    version = manifest.versions.get("tensorrt_llm") if manifest else None
    if version is None:
        return {}
    return {"tensorrt_llm_facts": facts.version if (facts := facts_of(version)) else None}


def _manifest(folder: Path) -> ReleaseManifest | None:
    try:
        return load_manifest(folder)
    except SpecError:  # reported as one of the findings
        return None


def _print(folder: Path, findings: list[Finding], spec: ReleaseSpec | None, tls: GrpcTlsSpec | None) -> None:
    console = Console(highlight=False, markup=False)
    manifest = _manifest(folder)
    if manifest is not None:
        console.print(f"{manifest.name}  {address(folder)}", soft_wrap=True)
    if not findings:
        assert manifest is not None
        for line in _summary(manifest, spec):
            console.print(line, soft_wrap=True)
        if tls is not None:
            console.print(f"  gRPC     certificate of {certificate_of(tls).summary}", soft_wrap=True)
        return
    _print_findings(console, f"{folder} cannot be served here: {len(findings)} found", findings)


def _print_findings(console: Console, title: str, findings: list[Finding]) -> None:
    """Print a table on a terminal; elsewhere a line for each finding, never wrapped."""
    if not console.is_terminal:
        console.print("\n".join([title, *map(str, findings)]), soft_wrap=True)
        return
    table = Table(title=title, title_justify="left")
    for column in ("check", "found", "wanted", "next step"):
        table.add_column(column, overflow="fold")
    for finding in findings:
        table.add_row(finding.check, finding.found, finding.wanted, finding.next_step)
    console.print(table)


def _summary(manifest: ReleaseManifest, spec: ReleaseSpec | None) -> list[str]:
    num_bytes = sum(file.size for file in manifest.files.values())
    ranks = f", {manifest.world_size} ranks" if manifest.world_size > 1 else ""
    sm = f", sm_{manifest.sm}" if manifest.sm else ""
    versions = ", ".join(f"{name} {version}" for name, version in manifest.versions.items())
    return [
        "can be served here",
        f"  model    {manifest.model.architecture}, {manifest.model.num_parameters:,} parameters",
        f"  engine   {manifest.provider}{ranks}{sm}; {versions}",
        *(
            [f"  settings {facts_note(manifest.versions['tensorrt_llm'])}"]
            if "tensorrt_llm" in manifest.versions
            else []
        ),
        f"  files    {len(manifest.files)}, {num_bytes / 1e6:,.1f} MB, as the manifest lists them",
        f"  memory   {memory_need_bytes(manifest, spec) / 1e9:,.2f} GB a rank at least",
        f"  quality  {_quality(manifest)}",
    ]


def _quality(manifest: ReleaseManifest) -> str:
    failed = [result for result in manifest.evaluation if result.passed is False]
    text = f"{len(manifest.evaluation)} results, {len(failed)} failed" if manifest.evaluation else "not evaluated"
    if manifest.override is not None:
        text += f"; promoted all the same by {manifest.override.who}: {manifest.override.reason}"
    return text
