# SPDX-License-Identifier: Apache-2.0
"""`trireme rollout`: start one, look at it, stop it, push it on; and what was done, by whom and why."""

import contextlib
import secrets
import time
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
import yaml

from clients.rollout.choice import alone, any_rollout, is_free, open_rollout, server_folder
from clients.rollout.controller import Controller, share_now
from clients.rollout.front import RolloutFront
from clients.rollout.gate.gate import Gate
from clients.rollout.gate.gate_spec import GateSpec
from clients.rollout.local_server import LocalServer
from clients.rollout.plan import Plan, gate_spec_of, read_plan, read_steps
from clients.rollout.server_control import ServerControl
from clients.rollout.state import Phase, Rollout, Wish
from clients.rollout.store import Store
from ensemble_configs.control_socket import CONTROL_SOCKET
from ensemble_configs.errors import RequestError, SpecError, Unavailable
from ensemble_configs.model_spec import ModelSpec
from ensemble_configs.release_changes import candidate_from, release_of
from ensemble_configs.strict_yaml import load_yaml
from ensemble_configs.validation import validate

_TICK_S = 0.5
_STORE = "rollouts.sqlite"

ServerOption = Annotated[
    Path | None,
    typer.Option("--server", help="The server's folder, build/NAME where it was started; none: the only one here."),
]
StoreOption = Annotated[Path | None, typer.Option(help="Where rollouts are kept; none: rollouts.sqlite beside it.")]
WhyOption = Annotated[str, typer.Option(help="For the log.")]
NumberOption = Annotated[int | None, typer.Option("--rollout", help="Its number; none: the one that goes on.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")]


def start(
    release: Annotated[
        str,
        typer.Argument(metavar="RELEASE", help="A built release's folder, a YAML file of what differs, or a number."),
    ],
    *,
    steps: Annotated[str, typer.Option(help="Percentages of the requests, one after the other.")] = "1,5,25,50,100",
    step_requests: Annotated[int, typer.Option(min=1, help="That each arm answers at a share before the next.")] = 100,
    max_requests: Annotated[
        int | None,
        typer.Option(min=1, help="Of each arm; a rollout without a verdict by then is held.", show_default="4000"),
    ] = None,
    gate: Annotated[
        Path | None, typer.Option(help="YAML file with settings of the gate, such as 'effects: {ttft: 0.2}'.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Of a server with several.")] = None,
    server: ServerOption = None,
    store: StoreOption = None,
    host: Annotated[str, typer.Option(help="Where clients ask for the split.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The same; 0: any that is free.")] = 8010,
    lease_s: Annotated[float, typer.Option(min=0.5, max=300, help="How long clients go by what they were told.")] = 5.0,
    drain_timeout_s: Annotated[float, typer.Option(min=0, help="For streams of a release that goes.")] = 600.0,
    is_keeping_old: Annotated[
        bool, typer.Option("--keep-old", help="Leave the old release loaded after a promotion.")
    ] = False,
    why: WhyOption = "",
) -> None:
    """Try a release out beside the one that is served, and promote it or roll it back by what its requests show.

    It runs until the rollout is over; killed, `trireme rollout run` goes on where it was. Clients that ask
    `http://HOST:PORT/split` (`clients.rollout.routed_client`, `trireme generate --split-url`) are sent by it.

    \b
    Examples:
      trireme rollout start releases/chat-int4 --why "half the memory"
      trireme rollout start candidate.yaml --steps 5,50,100 --max-requests 5000
    """
    shares = read_steps(steps)
    folder = server_folder(server)
    local = LocalServer(ServerControl(folder / CONTROL_SOCKET, tell=_tell), model)
    status = local.status()
    path = store or folder / _STORE
    candidate = _candidate(release, status, above=_highest_number(path))
    plan = Plan(
        candidate=int(candidate["release"]),
        stable=int(status["release"]),
        release=candidate,
        shares=shares,
        salt=secrets.token_hex(8),
        step_requests=step_requests,
        gate=_gate_settings(gate, max_requests, candidate),
        lease_s=lease_s,
        drain_timeout_s=drain_timeout_s,
        is_keeping_old=is_keeping_old,
    )
    gate_spec_of(plan)  # what is wrong is told before anything is begun
    with alone(path), Store(path) as kept:
        rollout = kept.begin(str(status["name"]), plan.text(), why=why)
        _drive(kept, path, rollout, local, host=host, port=port)


def run(
    *,
    model: Annotated[str | None, typer.Option(help="Of a server with several.")] = None,
    server: ServerOption = None,
    store: StoreOption = None,
    host: Annotated[str, typer.Option(help="Where clients ask for the split.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The same; 0: any that is free.")] = 8010,
) -> None:
    """Go on with a rollout whose process was killed, from where it was.

    \b
    Examples:
      trireme rollout run
      trireme rollout run --server build/demo_cpu
    """
    folder = server_folder(server)
    path = store or folder / _STORE
    with alone(path), Store(path) as kept:
        rollout = open_rollout(kept, None)
        local = LocalServer(ServerControl(folder / CONTROL_SOCKET, tell=_tell), model or rollout.model)
        _drive(kept, path, rollout, local, host=host, port=port)


def status(
    *, number: NumberOption = None, server: ServerOption = None, store: StoreOption = None, is_json: JsonOption = False
) -> None:
    """Say where a rollout stands, and what the gate makes of it.

    \b
    Examples:
      trireme rollout status
      trireme rollout status --json
    """
    with Store(store or server_folder(server) / _STORE) as kept:
        rollout = any_rollout(kept, number)
        plan = read_plan(rollout.plan)
        judgement = Gate(gate_spec_of(plan)).judge(kept.evidence(rollout.id, rollout.step))
        if is_json:
            found = {
                **msgspec.to_builtins(rollout),
                "plan": msgspec.to_builtins(plan),
                "share": share_now(rollout, plan),
                "judgement": msgspec.to_builtins(judgement),
            }
            typer.echo(msgspec.json.encode(found).decode())
            return
        typer.echo(
            f"rollout {rollout.id} of {rollout.model}: {rollout.phase} since {_clock(rollout.phase_since)}\n"
            + (f"  {rollout.reason}\n" if rollout.reason else "")
            + f"  release {plan.candidate} beside {plan.stable}, {100 * share_now(rollout, plan):g} % of the requests\n"
            f"  gate: {judgement.verdict}, {judgement.num_requests} requests of each arm; {judgement.reason}"
        )


def history(
    *, number: NumberOption = None, server: ServerOption = None, store: StoreOption = None, is_json: JsonOption = False
) -> None:
    """List what was done, by whom, when and why; of all rollouts, or of one.

    \b
    Examples:
      trireme rollout history
      trireme rollout history --rollout 3 --json
    """
    with Store(store or server_folder(server) / _STORE) as kept:
        rollouts = kept.rollouts() if number is None else [kept.get(number)]
        for rollout in rollouts:
            for event in kept.events(rollout.id):
                if is_json:
                    typer.echo(msgspec.json.encode(event).decode())
                else:
                    typer.echo(f"{rollout.id}  {_clock(event.at)}  {event.who}  {event.what}: {event.why}")


def pause(
    *, why: WhyOption = "", number: NumberOption = None, server: ServerOption = None, store: StoreOption = None
) -> None:
    """Keep the share where it is; a failing candidate is still rolled back."""
    _wish(Wish.PAUSE, why, number, server, store)


def resume(
    *, why: WhyOption = "", number: NumberOption = None, server: ServerOption = None, store: StoreOption = None
) -> None:
    """Go on after `pause`, or after a hold for want of a verdict."""
    _wish(Wish.RESUME, why, number, server, store)


def promote(
    *, why: WhyOption = "", number: NumberOption = None, server: ServerOption = None, store: StoreOption = None
) -> None:
    """Serve the candidate to all, whatever the gate says."""
    _wish(Wish.PROMOTE, why, number, server, store)


def abort(
    *, why: WhyOption = "", number: NumberOption = None, server: ServerOption = None, store: StoreOption = None
) -> None:
    """Roll back: no more requests to the candidate, its streams end, it goes."""
    _wish(Wish.ABORT, why, number, server, store)


def _wish(wish: Wish, why: str, number: int | None, server: Path | None, store: Path | None) -> None:
    path = store or server_folder(server) / _STORE
    with Store(path) as kept:
        rollout = open_rollout(kept, number)
        kept.wish(rollout.id, wish, why=why)
        is_driven = not is_free(path)
    hint = "" if is_driven else "; nobody drives it now: `trireme rollout run`"
    typer.echo(f"rollout {rollout.id}: {wish} is asked for{hint}", err=True)


def _drive(kept: Store, path: Path, rollout: Rollout, local: LocalServer, *, host: str, port: int) -> None:
    gate = Gate(gate_spec_of(read_plan(rollout.plan)))
    prefix = _prefix(local)
    controller = Controller(kept, rollout.id, local, gate, tell=_tell)
    try:
        front = RolloutFront(path, rollout.id, prefix, gate.merge, host=host, port=port)
    except OSError as exc:
        raise SpecError(
            f"port {port} of host {host} cannot be used ({exc.strerror}); choose another with --port",
            field="port",
            value=port,
        ) from exc
    with contextlib.closing(front):
        _tell(f"rollout {rollout.id}: clients ask {front.url}/split")
        while not (rollout := controller.tick()).phase.is_over:
            time.sleep(_TICK_S)
    if rollout.phase is Phase.ROLLED_BACK:
        raise typer.Exit(1)


def _prefix(local: LocalServer) -> str:
    """Of a server that may be away for a moment."""
    while True:
        try:
            return str(local.status()["prefix"])
        except Unavailable as exc:
            _tell(f"waiting for the server: {exc.message}")
            time.sleep(_TICK_S)


def _highest_number(store: Path) -> int:
    """Of all candidates that there were."""
    if not store.exists():
        return 0
    with Store(store) as kept:
        return max((read_plan(rollout.plan).candidate for rollout in kept.rollouts()), default=0)


def _candidate(release: str, status: dict[str, Any], *, above: int) -> dict[str, Any]:
    """The candidate's fields, from what was named."""
    fields = dict(next(each for each in status["releases"] if each["release"] == status["release"]))
    others = [each for each in status["releases"] if each["release"] != status["release"]]
    model = validate(ModelSpec, {**fields, "name": status["name"], "other_releases": others}, source=Path("the server"))
    found = (
        release_of(model, int(release)) if release.isdecimal() else candidate_from(Path(release), model, above=above)
    )
    if found.release == model.release:
        raise RequestError(f"release {found.release} is the stable one already", field="release", value=found.release)
    return found.model_dump(mode="json")


def _gate_settings(file: Path | None, max_requests: int | None, candidate: dict[str, Any]) -> dict[str, Any]:
    """The file's, with the deployment's target of TTFT and the command line's bound where it does not say."""
    settings: dict[str, Any] = {}
    if file is not None:
        try:
            loaded = load_yaml(file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as exc:
            raise SpecError(f"cannot read the gate's settings {file}: {' '.join(str(exc).split())}", file=file) from exc
        settings = validate(GateSpec, loaded, source=file).model_dump(exclude_unset=True)
    target_ms = candidate["slo"]["ttft_ms"]
    if target_ms is not None:
        settings.setdefault("ttft_target_ms", target_ms)
    if max_requests is not None:
        settings["max_requests"] = max_requests
    return settings


def _clock(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).astimezone().isoformat(timespec="seconds")


def _tell(line: str) -> None:
    typer.echo(line, err=True)
