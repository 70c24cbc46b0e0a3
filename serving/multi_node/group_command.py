# SPDX-License-Identifier: Apache-2.0
"""`trireme group`: one server over the pods of a LeaderWorkerSet, a leader and its workers."""

import os
import socket
import sys
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import typer

from ensemble_configs.spec.deployment import load_deployment
from ensemble_configs.spec.engine.tensorrt_llm_specs import PyTorchEngineSpec, TensorRtEngineSpec
from serving.engines.tensorrt_llm.trtllm_arguments import TrtLlmSpec
from serving.engines.tensorrt_llm.trtllm_launch import LAUNCH_SCRIPT, render_launch
from serving.multi_node.group_key import leader_files, own_user, private_folder, program, write_worker_files
from serving.multi_node.group_leader import ask_by_ssh, run_ranks, wait_for_workers
from serving.multi_node.group_record import GroupRecord, run_server
from serving.multi_node.group_worker import GroupWorker
from serving.multi_node.node_group import (
    NodeGroup,
    hostfile,
    mpirun_environment,
    session_script,
    ssh_options,
    sshd_config,
)
from serving.supervisor.stop_signal import StopSignal
from trireme.base.durable_files import write_atomically
from trireme.base.errors import SpecError

_RUN_DIR = Path("/tmp/trireme_group")
_SshDir = Annotated[Path, typer.Option(help="Folder with the group's key, ssh-privatekey: a mounted Secret.")]
_RunDir = Annotated[
    Path, typer.Option(help="Folder for the group's files, which only this user may enter; made if need be.")
]
_Port = Annotated[int, typer.Option(help="Port of the workers' sshd.", min=1, max=65535)]


def leader(
    ssh_dir: _SshDir,
    command: Annotated[list[str], typer.Argument(help="The command serve with its options, behind --.")],
    run_dir: _RunDir = _RUN_DIR,
    port: _Port = 2222,
    workers_timeout_s: Annotated[
        float, typer.Option(help="How long to wait until all workers answer, in seconds.", min=0)
    ] = 1800.0,
) -> None:
    """Start a server with ranks on all nodes of the group, as soon as its workers answer.

    When the server, a rank or a node fails, the whole group ends. On SIGTERM the server drains first.

    Examples:

      trireme group leader --ssh-dir /etc/trireme/ssh -- serve --deployment my.yaml --health-port 8003
    """
    group = _group(is_leader=True)
    engine = _engine(command)
    folder = private_folder(run_dir)
    hosts = folder / "hostfile"
    argv = render_launch(
        engine,
        (sys.executable, "-m", "trireme", "group", "server", "--run-dir", str(folder)),
        num_nodes=group.size,
        launcher_options=("--hostfile", str(hosts)),
    )
    own_user()
    for name in ("mpirun", LAUNCH_SCRIPT):
        program(name)
    identity, known_hosts = leader_files(ssh_dir, folder)
    ssh = ssh_options(identity=identity, known_hosts=known_hosts, port=port)
    slots = engine.world_size // group.size
    write_atomically(hosts, hostfile(group, leader_name=socket.gethostname(), slots=slots))
    stop = StopSignal()
    ask = partial(ask_by_ssh, (program("ssh"), *ssh))
    if not wait_for_workers(group.workers, ask, timeout_s=workers_timeout_s, stop=stop, tell=_tell):
        return
    record = GroupRecord(folder)
    record.begin(command)
    _tell(f"starting {engine.world_size} ranks on {group.size} nodes")
    run_ranks(argv, os.environ | mpirun_environment(ssh), record=record, stop=stop, tell=_tell)


def worker(
    ssh_dir: _SshDir,
    run_dir: _RunDir = _RUN_DIR,
    port: _Port = 2222,
    leader_timeout_s: Annotated[
        float, typer.Option(help="How long the leader may be silent while no rank runs here, in seconds.", min=1)
    ] = 3600.0,
    exit_timeout_s: Annotated[
        float,
        typer.Option(help="How long ranks may go on at shutdown, in seconds; the leader drains meanwhile.", min=0),
    ] = 300.0,
) -> None:
    """Let the leader start ranks on this node, through an sshd; on SIGTERM end when they have ended.

    Examples:

      trireme group worker --ssh-dir /etc/trireme/ssh
    """
    _group(is_leader=False)
    folder = private_folder(run_dir)
    user = own_user()
    write_worker_files(ssh_dir, folder)
    session = folder / "session"
    session.touch(mode=0o700)  # before the environment's values are written to it
    session.write_text(session_script(os.environ, folder=folder))
    (folder / "sshd_config").write_text(sshd_config(folder=folder, port=port, user=user))
    stop = StopSignal()
    GroupWorker(folder, _tell).run(stop, leader_timeout_s=leader_timeout_s, exit_timeout_s=exit_timeout_s)


def server(run_dir: _RunDir = _RUN_DIR) -> None:
    """Run the server of a group; the leader has upstream's script call this at rank 0."""
    record = GroupRecord(run_dir)
    raise typer.Exit(run_server(record, (sys.executable, "-m", "trireme", *record.command())))


def _group(*, is_leader: bool) -> NodeGroup:
    group = NodeGroup.from_environment(os.environ)
    if is_leader != (group.worker_index == 0):
        role = "the leader" if group.worker_index == 0 else f"worker {group.worker_index}"
        verb = "leader" if group.worker_index == 0 else "worker"
        raise SpecError(f"this pod is {role} of its group (LWS_WORKER_INDEX); run trireme group {verb} in it")
    return group


def _engine(command: list[str]) -> TrtLlmSpec:
    """Return the engine of the deployment that `command` serves. Raises: SpecError: it has no engine with ranks."""
    if command[:1] != ["serve"]:
        raise SpecError(f"behind -- stands serve with its options, not {command[0]}")
    option = "--deployment"
    named = [part.removeprefix(f"{option}=") for part in command if part.startswith(f"{option}=")]
    named += [value for name, value in pairwise(command) if name == option]
    if not named:
        raise SpecError("serve needs --deployment here: its engine says how many ranks there are")
    engine = load_deployment(Path(named[-1])).model.engine
    if not isinstance(engine, TensorRtEngineSpec | PyTorchEngineSpec):
        raise SpecError(
            f"an engine of the provider {engine.provider} is on one node; run trireme serve",
            field="engine.provider",
            value=engine.provider,
        )
    return engine


def _tell(line: str) -> None:
    typer.echo(line, err=True)
