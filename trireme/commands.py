# SPDX-License-Identifier: Apache-2.0
"""The subcommands of `trireme`, imported when called; every error becomes one line and an exit code."""

import errno
import functools
import importlib
import os
import sys
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple, ParamSpec, TypeVar

import typer

from trireme.base.errors import AccessDenied, BuildError, RequestError, ServingError, SpecError, Unavailable

P = ParamSpec("P")
T = TypeVar("T")

EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED, EXIT_PIPE_CLOSED = 1, 2, 130, 141
_KEEP_LINES = frozenset({"serve", "render", "group", "doctor", "evaluate"})  # they check releases, and start servers


class Command(NamedTuple):
    """The module of a subcommand: a function with typer annotations, or one for each verb that follows it.

    Attributes:
        verbs: functions of the module; `function` is empty then.
        groups: subcommands of the subcommand: with verbs of their own, or functions of another module.
    """

    module: str
    function: str
    help: str
    verbs: tuple[str, ...] = ()
    groups: Mapping[str, "Command"] = MappingProxyType({})


COMMANDS = {
    "serve": Command(
        "serving.supervisor.serve_command", "serve", "Serve a deployment on Triton, and drain it when it stops"
    ),
    "render": Command("trireme.render_command", "render", "Write the model repository of a deployment"),
    "group": Command(
        "serving.multi_node.group_command",
        "",
        "Serve over several nodes: the pods of a LeaderWorkerSet",
        ("leader", "worker", "server"),
    ),
    "plan": Command(
        "build_engines.planner.plan_command", "plan", "Say what a model needs and how fast it will be on which GPUs"
    ),
    "cost": Command(
        "build_engines.cost.cost_command", "cost", "Say what serving costs, and what would make it cheaper"
    ),
    "doctor": Command("serving.doctor.doctor_command", "doctor", "Check that a built release can be served here"),
    "build": Command("build_engines.stages.build_command", "build", "Build a release from a checkpoint and a recipe"),
    "pull": Command(
        "build_engines.cache.pull_command", "pull", "Copy built releases to a local disk, whole or not at all"
    ),
    "prove": Command(
        "build_engines.prove.prove_command", "prove", "Try everything on this machine's GPU, and write what came of it"
    ),
    "import": Command(
        "build_engines.migration.import_command",
        "import_repository",
        "Turn an inflight_batcher_llm repository into a deployment",
    ),
    "evaluate": Command(
        "build_engines.evaluation.evaluate_command",
        "evaluate_release",
        "Compare a release with the one that it was made from",
    ),
    "generate": Command(
        "clients.commands.generate_command", "generate", "Ask a running server for text, shown as it is made"
    ),
    "chat": Command("clients.commands.chat_command", "chat", "Talk with a running server in the terminal"),
    "gateway": Command(
        "gateway.gateway_command",
        "",
        "Serve OpenAI's API in front of a running server",
        verbs=("serve",),
        groups={
            "keys": Command(
                "gateway.access.keys_command", "", "Make, list and revoke API keys", verbs=("create", "list_", "revoke")
            ),
            "usage": Command("gateway.ledger.usage_command", "usage", "Sum up what requests took and cost"),
            "cache-report": Command(
                "gateway.cache.cache_report_command", "cache_report", "Report the wrong answers of a semantic cache"
            ),
            "envoy": Command(
                "gateway.envoy.envoy_command", "envoy", "Write the configuration of an Envoy before several gateways"
            ),
            "picker": Command(
                "gateway.picker.picker_command", "picker", "Pick the server of each request for a Gateway API's Envoy"
            ),
        },
    ),
    "adapters": Command(
        "serving.supervisor.adapters_command",
        "",
        "Add LoRA adapters to a running deployment, and take them out",
        verbs=("load", "unload", "status"),
    ),
    "drain": Command(
        "clients.commands.drain_command", "drain", "Have a running server finish its streams before it is ended"
    ),
    "observe": Command(
        "observability.observe_commands",
        "",
        "Watch a server with Prometheus; write rules and dashboards",
        ("run", "files", "bandwidth"),
    ),
    "rollout": Command(
        "clients.rollout.commands.rollout_commands",
        "",
        "Try a release out beside the one that is served; promote it, or roll it back",
        verbs=(
            "estimate",
            "start",
            "status",
            "report",
            "pause",
            "resume",
            "promote",
            "abort",
            "history",
            "run",
            "export",
        ),
    ),
    "batch": Command(
        "clients.batch.batch_command",
        "",
        "Answer a file of requests beside everybody else's, resumable",
        verbs=("run",),
    ),
    "bench": Command(
        "clients.commands.bench_commands",
        "",
        "Put a load on a running server, and report what it did",
        verbs=("run", "perf_analyzer", "genai_perf", "aiperf", "locust", "capacity", "report"),
    ),
}


def run_command(name: str, args: list[str]) -> None:
    """Run one subcommand; it ends with SystemExit, as typer does."""
    # gRPC's own log lines would stand between ours when a server goes or refuses TLS; GRPC_VERBOSITY=info shows them.
    os.environ.setdefault("GRPC_VERBOSITY", "none")
    command_app(name)(args=args, prog_name=f"trireme {name}")


def command_app(name: str) -> typer.Typer:
    """Return the command line of one subcommand."""
    return _app(name, COMMANDS[name], path=name)


def _app(name: str, command: Command, *, path: str) -> typer.Typer:
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    for function in command.verbs or (command.function,):
        verb = verb_of(function) if command.verbs else name
        app.command(verb)(_exiting(_load(path, command.module, function), keeps_lines=path in _KEEP_LINES))
    for group, below in command.groups.items():
        below_path = f"{path} {group}"
        if below.verbs:
            app.add_typer(_app(group, below, path=below_path), name=group)
        else:
            found = _load(below_path, below.module, below.function)
            app.command(group)(_exiting(found, keeps_lines=below_path in _KEEP_LINES))
    if command.verbs:  # typer takes a single one for the whole command otherwise
        app.callback(help=f"{command.help}.")(lambda: None)
    return app


def verb_of(function: str) -> str:
    """Return the verb that a function is on the command line; `list_` would hide Python's own `list` otherwise."""
    return function.rstrip("_").replace("_", "-")


def _load(path: str, module_name: str, function: str) -> Callable[..., object]:
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as exc:
        typer.echo(f"trireme: {path} needs the Python package {exc.name!r}, which is not installed", err=True)
        raise SystemExit(EXIT_FAILED) from exc
    except KeyboardInterrupt as exc:  # imports take a while
        raise SystemExit(EXIT_INTERRUPTED) from exc
    found: Callable[..., object] = getattr(module, function)
    return found


def _exiting(function: Callable[P, T], *, keeps_lines: bool = False) -> Callable[P, T]:
    """Return the function with a process boundary: an exception becomes one line on stderr and an exit code.

    Args:
        keeps_lines: the lines of a message are ours, one for each thing that is wrong, and not what a server says.
    """

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except ServingError as exc:
            hint_ms = exc.facts.get("retry_after_ms")
            hint = "" if hint_ms is None else f" (retry_after_ms={hint_ms})"
            lines = exc.message.splitlines() if keeps_lines else [exc.message]
            typer.echo("trireme: " + "\n  ".join(" ".join(line.split()) for line in lines) + hint, err=True)
            raise typer.Exit(exit_code(exc)) from exc
        except KeyboardInterrupt as exc:
            raise typer.Exit(EXIT_INTERRUPTED) from exc
        except BrokenPipeError as exc:
            # Python flushes stdout once more when it ends; what is left has no reader.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(EXIT_PIPE_CLOSED) from exc
        except OSError as exc:  # a folder that cannot be written, a full disk
            place = "" if exc.filename is None else f"{exc.filename}: "
            reason = exc.strerror.lower() if exc.strerror else str(exc)
            hint = "; free some, or write elsewhere" if exc.errno == errno.ENOSPC else ""
            typer.echo(f"trireme: {place}{reason}{hint}", err=True)
            raise typer.Exit(EXIT_FAILED) from exc

    return run


def exit_code(error: ServingError) -> int:
    """Return the exit code of an error: 2 where the caller has to change something, 1 where the server failed.

    The caller can change a spec, a request, an address or a key.
    """
    if isinstance(error, SpecError | BuildError | RequestError | AccessDenied):
        return EXIT_USAGE
    is_wrong_address = isinstance(error, Unavailable) and error.facts.get("reason") == "unreachable"
    return EXIT_USAGE if is_wrong_address else EXIT_FAILED
