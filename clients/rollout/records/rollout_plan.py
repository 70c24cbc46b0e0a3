# SPDX-License-Identifier: Apache-2.0
"""The plan that a rollout was started with; it never changes afterwards."""

from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from clients.rollout.records.held_out import HeldOut
from clients.rollout_gate.gate_spec import GateSpec
from clients.rollout_gate.metrics import alpha_of
from clients.rollout_gate.statistics.score_test import least_pairs
from ensemble_configs.spec.validation import validate
from trireme.base.errors import RequestError, SpecError
from trireme.base.known_types import known


class Mode(StrEnum):
    """The modes of a rollout."""

    CANARY = "canary"  # the candidate answers a growing share, and is promoted or rolled back
    SHADOW = "shadow"  # the candidate gets copies, and nobody its answers
    AB = "ab"  # several releases answer a share each, until a person has seen enough


class SplitBy(StrEnum):
    """The one that splits requests among releases."""

    SERVER = "server"  # its models do, for every client
    CLIENTS = "clients"  # clients that ask the rollout, and everybody else gets the stable release
    ROUTER = "router"  # Envoy or a Gateway before two servers, by weights that the rollout moves


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of one rollout.

    Attributes:
        candidate: release that is tried out; stable: the release it is compared with.
        release: the candidate's `ReleaseSpec` as JSON data, its paths absolute.
        shares: parts of the requests that the candidate gets, one after the other, 0 to 1.
        salt: hash seed of the split (`clients.rollout.routing.split`).
        step_requests: number that each arm must have answered at a share before the next one.
        gate: settings of the gate (`clients.rollout_gate.gate_spec.GateSpec`), as JSON data.
        lease_s: how long a client may go by what it was told of the split.
        drain_timeout_s: how long the streams of a release that goes may take.
        is_keeping_old: the old release stays loaded after a promotion, for clients that name it.
        more_releases: further candidates of an A/B test, each in the form of `release`.
        arm_shares: parts of an A/B test's requests, for the stable release and each candidate.
        gpus_per_seat: for each arm of an A/B test, GPUs of its engine over the requests that it takes at a time.
        max_copies: shadow requests that run at a time, of all clients together.
        second_server: folder, or address of the control, of the server that serves the candidate, where one server has
            no room for both; "": none.
        second_server_ca_file, second_server_token_file: of the access to that control; "": the first's.
        second_url: address of the second server, ``host:port``.
        home_release: with a second server, the candidate as the first one serves it in the end.
        home_stable: with a second server, the stable release, which the first one then unloads.
        host, port: where clients ask for the split; 0: any port that was free.
        loaded_before: candidates that the server held before, and keeps when they are rolled back.
        held_out: prompts that both releases answer before the candidate's first request; None: none.
        split_by: the one that splits; of two servers it is clients or a router, for copies clients.
        weights: whose weights the rollout moves, ``envoy:FILE`` or ``gateway:NAMESPACE/ROUTE``; "": nobody's.
        envoy_admins: addresses of the admin interfaces of the Envoys that read the file.
        stable_service, candidate_service: names of both servers in the route of a Gateway.
        cert_file, key_file, token_file: of the API that clients ask (`clients.rollout.api_access`); "": none.
        server_url: address of the control of a server on another machine; "": the server is on this one.
        server_ca_file, server_token_file: of the access to that control; "": none.
        is_replicated, is_second_replicated: the address of the control is of several replicas.
    """

    mode: Mode = Mode.CANARY
    candidate: int
    stable: int
    release: dict[str, Any]
    shares: tuple[float, ...] = (0.01, 0.05, 0.25, 0.5, 1.0)
    salt: str
    step_requests: int = 100
    gate: dict[str, Any] = {}
    lease_s: float = 5.0
    drain_timeout_s: float = 600.0
    is_keeping_old: bool = False
    more_releases: tuple[dict[str, Any], ...] = ()
    arm_shares: tuple[float, ...] = ()
    gpus_per_seat: tuple[float, ...] = ()
    max_copies: int = 4
    second_server: str = ""
    second_server_ca_file: str = ""
    second_server_token_file: str = ""
    second_url: str = ""
    home_release: dict[str, Any] = {}
    home_stable: dict[str, Any] = {}
    host: str = "127.0.0.1"
    port: int = 8010
    loaded_before: tuple[int, ...] = ()
    held_out: HeldOut | None = None
    split_by: SplitBy = SplitBy.CLIENTS  # of rollouts that began before servers could
    cert_file: str = ""
    key_file: str = ""
    token_file: str = ""
    weights: str = ""
    envoy_admins: tuple[str, ...] = ()
    stable_service: str = ""
    candidate_service: str = ""
    server_url: str = ""
    server_ca_file: str = ""
    server_token_file: str = ""
    is_replicated: bool = False
    is_second_replicated: bool = False

    @property
    def arms(self) -> dict[str, float]:
        """Return the arms of an A/B test, each with its share."""
        return dict(zip(map(arm_of, (self.stable, *self.candidates)), self.arm_shares, strict=True))

    @property
    def releases(self) -> tuple[dict[str, Any], ...]:
        """Return the `ReleaseSpec` of each candidate as JSON data."""
        return (self.release, *self.more_releases)

    @property
    def candidates(self) -> tuple[int, ...]:
        """Return the release numbers of all candidates."""
        return (self.candidate, *(int(each["release"]) for each in self.more_releases))

    def text(self) -> str:
        """Return the plan as JSON."""
        return msgspec.json.encode(self).decode()


def read_plan(text: str) -> Plan:
    """Return the plan that a JSON text holds."""
    return msgspec.json.decode(text, type=known(Plan))


def arm_of(number: int) -> str:
    """Return the name of a release as an arm of an A/B test."""
    return f"release {number}"


def gate_spec_of(plan: Plan) -> GateSpec:
    """Return the gate's settings at each step and for each candidate.

    The chance of a false alarm is the whole rollout's, divided among steps and candidates.

    Raises:
        SpecError: the settings are not valid.
    """
    spec = validate(GateSpec, plan.gate, source=Path("gate"))
    # The last share of a canary is all: nothing is left to compare it with.
    num_judged = max(len(plan.shares) - (plan.mode is Mode.CANARY), 1) * len(plan.candidates)
    num_judged += len(plan.candidates) * (plan.held_out is not None)
    return spec.model_copy(update={"alpha": spec.alpha / num_judged})


def num_prompts_needed(plan: Plan) -> int:
    """Return the number of held-out prompts below which even a candidate without a right answer passes."""
    return least_pairs(alpha_of("quality", gate_spec_of(plan)))


def check_plan(plan: Plan) -> None:
    """Check what can be known before a rollout begins.

    Raises:
        SpecError: the gate's settings are not valid, or there are too few held-out prompts for a verdict.
    """
    num_needed = num_prompts_needed(plan)
    if plan.held_out is not None and plan.held_out.num_prompts < num_needed:
        raise SpecError(
            f"{plan.held_out.file} has {plan.held_out.num_prompts} prompts; it needs at least {num_needed}, or even a "
            "candidate that gets none of them right could not fail at the gate's alpha: add prompts, or raise alpha "
            "with --gate",
            field="prompts",
            value=plan.held_out.num_prompts,
        )


def read_shares(text: str, *, num_arms: int) -> tuple[float, ...]:
    """Return the arms' shares of percentages such as ``50,25,25``, the stable release's first.

    "" gives each arm an equal share.

    Raises:
        RequestError: there are more or fewer than arms, or they do not add up to 100.
    """
    if not text:
        return (1 / num_arms,) * num_arms
    try:
        shares = tuple(float(part) / 100 for part in text.split(","))
    except ValueError:
        shares = ()
    if len(shares) != num_arms or not all(share > 0 for share in shares) or abs(sum(shares) - 1) > 1e-9:
        raise RequestError(
            f"shares must be {num_arms} percentages that add up to 100, the stable release's first; got {text!r}",
            field="shares",
            value=text,
        )
    return shares


def read_steps(text: str, *, is_whole: bool = True) -> tuple[float, ...]:
    """Return the growing shares of percentages such as ``1,5,25,50,100``.

    They end with 100, or with less if not `is_whole`.

    Raises:
        RequestError: the percentages do not grow, or end elsewhere.
    """
    wrong = RequestError(
        f"steps must be growing percentages that end with 100{' and begin with less' if is_whole else ' or less'}, "
        f"such as 1,5,25,50,100; got {text!r}",
        field="steps",
        value=text,
    )
    try:
        shares = tuple(float(part) / 100 for part in text.split(","))
    except ValueError:
        raise wrong from None
    is_growing = all(before < after for before, after in pairwise(shares))
    is_enough = shares[-1] == 1.0 and len(shares) > 1 if is_whole else shares[-1] <= 1.0
    if not is_growing or not shares[0] > 0 or not is_enough:
        raise wrong
    return shares
