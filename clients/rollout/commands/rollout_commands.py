# SPDX-License-Identifier: Apache-2.0
"""The commands of `trireme rollout`: start a rollout, look at it, pause, promote or abort it, and list its history."""

from datetime import datetime
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from clients.rollout.choice import (
    JsonOption,
    NumberOption,
    StoreOption,
    WhyOption,
    any_rollout,
    existing_store,
    open_rollout,
)
from clients.rollout.commands.estimate_command import estimate
from clients.rollout.commands.report_command import report
from clients.rollout.commands.run_command import run
from clients.rollout.commands.start_command import start
from clients.rollout.export.export_command import export
from clients.rollout.judging.judges import judge_of
from clients.rollout.operator_commands import phase_after
from clients.rollout.records.rollout_plan import Mode, Plan, read_plan
from clients.rollout.records.state import OperatorCommand, Rollout
from clients.rollout.records.store import Store
from clients.rollout.server_place import ServerOption
from clients.rollout.traffic import share_now

_UNDRIVEN = "  nobody drives it now, and clients go to the stable release: `trireme rollout run`\n"

__all__ = ["abort", "estimate", "export", "history", "pause", "promote", "report", "resume", "run", "start", "status"]


def status(
    *, number: NumberOption = None, server: ServerOption = None, store: StoreOption = None, is_json: JsonOption = False
) -> None:
    """Say where a rollout stands, and what the gate makes of it.

    \b
    Examples:
      trireme rollout status
      trireme rollout status --json
    """
    with Store(existing_store(server, store)) as kept:
        is_driven = kept.is_driven()
        rollout = any_rollout(kept, number)
        plan = read_plan(rollout.plan)
        judgement = judge_of(plan).judge(kept.evidence(rollout.id, rollout.step))
        if is_json:
            found = {
                **msgspec.to_builtins(rollout),
                "plan": msgspec.to_builtins(plan),
                "share": share_now(rollout, plan),
                "is_driven": is_driven,
                "judgement": msgspec.to_builtins(judgement),
            }
            typer.echo(msgspec.json.encode(found).decode())
            return
        typer.echo(
            f"rollout {rollout.id} of {rollout.model}: {rollout.phase} since {_clock(rollout.phase_since)}\n"
            + (f"  {rollout.reason}\n" if rollout.reason else "")
            + f"  {_what(rollout, plan)}\n"
            f"{'' if is_driven or rollout.phase.is_over else _UNDRIVEN}"
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
    with Store(existing_store(server, store)) as kept:
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
    _queue(OperatorCommand.PAUSE, why, number, server, store)


def resume(
    *, why: WhyOption = "", number: NumberOption = None, server: ServerOption = None, store: StoreOption = None
) -> None:
    """Go on after `pause`; after a hold, look again at what has come since, which holds again without a verdict."""
    _queue(OperatorCommand.RESUME, why, number, server, store)


def promote(
    *,
    release: Annotated[int | None, typer.Option(min=1, help="Release to promote, in an A/B test of several.")] = None,
    why: WhyOption = "",
    number: NumberOption = None,
    server: ServerOption = None,
    store: StoreOption = None,
) -> None:
    """Serve the candidate to all, whatever the gate says.

    \b
    Examples:
      trireme rollout promote --why "as fast, and half the price"
      trireme rollout promote --release 3
    """
    _queue(OperatorCommand.PROMOTE, why, number, server, store, release=release)


def abort(
    *, why: WhyOption = "", number: NumberOption = None, server: ServerOption = None, store: StoreOption = None
) -> None:
    """Roll back: send the candidate no more requests, let its streams end, and unload it."""
    _queue(OperatorCommand.ABORT, why, number, server, store)


def _queue(
    command: OperatorCommand,
    why: str,
    number: int | None,
    server: Path | None,
    store: str | None,
    *,
    release: int | None = None,
) -> None:
    with Store(existing_store(server, store)) as kept:
        rollout = open_rollout(kept, number)
        phase_after(rollout.phase, command, read_plan(rollout.plan), release)
        kept.queue_command(rollout.id, command, why=why, release=release)
        is_driven = kept.is_driven()
    hint = "" if is_driven else "; nobody drives it now: `trireme rollout run`"
    typer.echo(f"rollout {rollout.id}: {command} is asked for{hint}", err=True)


def _what(rollout: Rollout, plan: Plan) -> str:
    share = 100 * share_now(rollout, plan)
    match plan.mode:
        case Mode.CANARY:
            return f"release {plan.candidate} beside {plan.stable}, {share:g} % of the requests"
        case Mode.SHADOW:
            return f"release {plan.candidate} in the shadow of {plan.stable}, copies of {share:g} % of the requests"
        case Mode.AB:
            return "A/B test: " + ", ".join(f"{arm} {100 * part:g} %" for arm, part in plan.arms.items())


def _clock(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).astimezone().isoformat(timespec="seconds")
