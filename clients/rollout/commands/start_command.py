# SPDX-License-Identifier: Apache-2.0
"""The command `trireme rollout start`, which begins a rollout and drives it to its end."""

from pathlib import Path
from typing import Any

from clients.rollout.api_access import access_of, check_access
from clients.rollout.choice import StoreOption, WhyOption, driven_store, store_of
from clients.rollout.commands.api_options import CertOption, HostOption, KeyOption, PortOption, TokenOption
from clients.rollout.commands.estimate_command import MatchOption, PrometheusOption, tell_estimate
from clients.rollout.commands.start_options import (
    ApartOption,
    DrainTimeoutOption,
    GateOption,
    KeepOldOption,
    KeysOption,
    LeaseOption,
    LeaveOption,
    MaxCopiesOption,
    MaxRequestsOption,
    ModelOption,
    ModeOption,
    PromptsAtATimeOption,
    PromptsOption,
    ReleasesArgument,
    SecondServerOption,
    SecondUrlOption,
    SharesOption,
    SplitOption,
    StepRequestsOption,
    StepsOption,
)
from clients.rollout.commands.start_refusals import (
    refuse_other_modes,
    refuse_other_splits,
    refuse_without,
    usual_split,
)
from clients.rollout.drive import drive, tell
from clients.rollout.planning import candidates, gate_settings, gpus_per_seat
from clients.rollout.records.held_out import held_out_in
from clients.rollout.records.open_database import is_there
from clients.rollout.records.rollout_plan import (
    Mode,
    Plan,
    check_plan,
    read_plan,
    read_shares,
    read_steps,
)
from clients.rollout.records.store import Store
from clients.rollout.replicas import server_of
from clients.rollout.routing.hash_seed import best_hash_seed, new_hash_seed, read_keys
from clients.rollout.second_server import check_second, plan_second_server, refuse_without_room, why_second_server
from clients.rollout.server_place import (
    SecondServerCaOption,
    SecondServerTokenOption,
    ServerCaOption,
    ServerOrAddressOption,
    ServerTokenOption,
    second_place,
    server_place,
)
from clients.rollout.steering_lease import steering_all
from clients.rollout.waiting import leave
from clients.rollout.weights.named_weights import check_weights
from clients.rollout.weights.weight_options import (
    AdminOption,
    CandidateServiceOption,
    StableServiceOption,
    WeightsOption,
    weight_fields,
)
from trireme.base.http_servers.http_thread import listen
from trireme.base.store_place import StorePlace


def start(
    releases: ReleasesArgument,
    *,
    mode: ModeOption = Mode.CANARY,
    steps: StepsOption = "",
    shares: SharesOption = "",
    step_requests: StepRequestsOption = None,
    max_requests: MaxRequestsOption = None,
    gate: GateOption = None,
    prompts: PromptsOption = None,
    prompts_at_a_time: PromptsAtATimeOption = None,
    max_copies: MaxCopiesOption = None,
    keys: KeysOption = None,
    second_server: SecondServerOption = None,
    second_server_ca_file: SecondServerCaOption = None,
    second_server_token_file: SecondServerTokenOption = None,
    is_second_server_forced: ApartOption = False,
    second_url: SecondUrlOption = None,
    weights: WeightsOption = None,
    envoy_admins: AdminOption = None,
    stable_service: StableServiceOption = None,
    candidate_service: CandidateServiceOption = None,
    split: SplitOption = None,
    model: ModelOption = None,
    server: ServerOrAddressOption = None,
    server_ca_file: ServerCaOption = None,
    server_token_file: ServerTokenOption = None,
    store: StoreOption = None,
    host: HostOption = "127.0.0.1",
    port: PortOption = 8010,
    cert_file: CertOption = None,
    key_file: KeyOption = None,
    token_file: TokenOption = None,
    lease_s: LeaseOption = 5.0,
    drain_timeout_s: DrainTimeoutOption = 600.0,
    is_keeping_old: KeepOldOption = False,
    is_left: LeaveOption = False,
    prometheus: PrometheusOption = None,
    match: MatchOption = "",
    why: WhyOption = "",
) -> None:
    """Try a release out beside the one that is served, and promote it or roll it back by what its requests show.

    It runs until the rollout is over; killed, `trireme rollout run` goes on where it was. With --leave another process
    drives the rollout, and `trireme rollout status` shows it. Clients that ask
    `http://HOST:PORT/split` (`clients.rollout.routing.routed_client`, `trireme generate --split-url`) are sent by it.

    \b
    Examples:
      trireme rollout start releases/chat-int4 --why "half the memory"
      trireme rollout start candidate.yaml --steps 5,50,100 --max-requests 5000
      trireme rollout start candidate.yaml --prompts held_out.jsonl
      trireme rollout start candidate.yaml --mode shadow --steps 10,100 --max-copies 8
      trireme rollout start fp8.yaml int4.yaml --mode ab --shares 50,25,25
      trireme rollout start candidate.yaml --server https://gpu-3:8004 \\
          --server-ca-file ca.crt --server-token-file key.txt
      trireme rollout start candidate.yaml --weights gateway:llm/chat \\
          --stable-service chat --candidate-service chat-2 \\
          --server https://chat:8004 --second-server https://chat-2:8004 \\
          --server-ca-file ca.crt --server-token-file key.txt
      trireme rollout start candidate.yaml --split clients --host 0.0.0.0 \\
          --token-file keys.txt --cert-file tls.crt --key-file tls.key

    \b
    Exit codes: 0 promoted, or ended without a promotion that was due; 1 rolled back; 2 something named is wrong.
    """
    refuse_other_modes(
        mode,
        steps=steps or None,
        shares=shares or None,
        step_requests=step_requests,
        max_copies=max_copies,
        keep_old=is_keeping_old or None,
        second_server=second_server,
        weights=weights,
    )
    refuse_without(weights=(weights, "second_server", second_server))
    weighed = weight_fields(
        weights, admins=envoy_admins, stable_service=stable_service, candidate_service=candidate_service
    )
    refuse_without(prompts_at_a_time=(prompts_at_a_time, "prompts", prompts))
    refuse_without(apart=(is_second_server_forced or None, "second_server", second_server))
    refuse_without(
        second_url=(second_url, "second_server", second_server),
        second_server_ca_file=(second_server_ca_file, "second_server", second_server),
        second_server_token_file=(second_server_token_file, "second_server", second_server),
    )
    refuse_without(match=(match or None, "prometheus", prometheus))
    held_out = None if prompts is None else held_out_in(prompts, num_at_a_time=prompts_at_a_time or 2)
    place = server_place(server, server_ca_file, server_token_file)
    controls = [place.controls(tell)]
    first = server_of(controls[0], model)
    status = first.status()
    path = store_of(place.folder, store)
    found = candidates(releases, status, mode=mode, above=_highest_number(path))
    second_fields: dict[str, Any] = {}
    if second_server is None:
        refuse_without_room(first, found)
    else:
        other = second_place(second_server, second_server_ca_file, second_server_token_file, place)
        second_controls = other.controls(tell)
        second = server_of(second_controls, model)
        check_second(status, second.status(), other.name)
        if why_not := why_second_server(first, found[0], is_forced=is_second_server_forced or bool(weighed)):
            tell(f"the second server is used: {why_not}")
            found[0], second_fields = plan_second_server(
                releases,
                first,
                second,
                other,
                above=_highest_number(path),
                is_keeping_old=is_keeping_old,
                url=second_url,
                is_behind_router=bool(weighed),
                tell=tell,
            )
            second_fields["second_server_ca_file"] = _absolute(second_server_ca_file)
            second_fields["second_server_token_file"] = _absolute(second_server_token_file)
            second_fields["is_second_replicated"] = not second_controls.is_one
            controls.append(second_controls)
        else:
            tell("the server has memory for both releases: the second one is not needed")
    step_shares = (1.0,) if mode is Mode.AB else read_steps(steps or "1,5,25,50,100", is_whole=mode is Mode.CANARY)
    arm_shares = read_shares(shares, num_arms=1 + len(found)) if mode is Mode.AB else ()
    stable = next(each for each in status["releases"] if each["release"] == status["release"])
    plan = Plan(
        mode=mode,
        candidate=int(found[0]["release"]),
        stable=int(status["release"]),
        release=found[0],
        shares=step_shares,
        salt=new_hash_seed() if keys is None else _hash_seed(read_keys(keys), arm_shares, step_shares),
        step_requests=step_requests or 100,
        gate=gate_settings(gate, max_requests, found[0]),
        lease_s=lease_s,
        drain_timeout_s=drain_timeout_s,
        is_keeping_old=is_keeping_old,
        more_releases=tuple(found[1:]),
        arm_shares=arm_shares,
        gpus_per_seat=tuple(gpus_per_seat(each) for each in (stable, *found)),
        max_copies=max_copies or 4,
        held_out=held_out,
        host=host,
        port=port,
        loaded_before=tuple(
            int(each["release"]) for each in found if each["release"] in {one["release"] for one in status["releases"]}
        ),
        cert_file=_absolute(cert_file),
        key_file=_absolute(key_file),
        token_file=_absolute(token_file),
        split_by=split or usual_split(mode, has_second=bool(second_fields), has_weights=bool(weighed)),
        server_url=place.url,
        server_ca_file=place.ca_file,
        server_token_file=place.token_file,
        is_replicated=not controls[0].is_one,
        **weighed,
        **second_fields,
    )
    refuse_other_splits(plan)
    check_plan(plan)  # what is wrong is told before anything is begun
    access = access_of(plan)
    check_access(access, host, plan)
    if not is_left:
        listen(host, port).close()
    if plan.weights:
        check_weights(plan)
    tell_estimate(plan, status, prometheus, match)
    if is_left:
        leave(path, str(status["name"]), plan, why, tell=tell)
        return
    with driven_store(place, path, tell=tell) as kept, steering_all(controls, plan, tell=tell):
        rollout = kept.begin(str(status["name"]), plan.text(), why=why)
        drive(kept, path, rollout, controls, host=host, port=port, access=access)


def _absolute(path: Path | None) -> str:
    return "" if path is None else str(path.absolute())  # the rollout may go on in another folder


def _hash_seed(keys: list[str], arm_shares: tuple[float, ...], step_shares: tuple[float, ...]) -> str:
    bounds = [sum(arm_shares[: number + 1]) for number in range(len(arm_shares) - 1)] or step_shares
    seed = best_hash_seed(keys, bounds)
    tell(f"{len(keys)} keys: every share is met within {100 * seed.off_by:.2f} points")
    return seed.text


def _highest_number(store: StorePlace) -> int:
    """Return the highest number of any candidate in a store, 0 without a store."""
    if not is_there(store):
        return 0
    with Store(store) as kept:
        return max((max(read_plan(rollout.plan).candidates) for rollout in kept.rollouts()), default=0)
