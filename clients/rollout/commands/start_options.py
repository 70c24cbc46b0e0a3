# SPDX-License-Identifier: Apache-2.0
"""The options of `trireme rollout start` that no other command has."""

from pathlib import Path
from typing import Annotated

import typer

from clients.rollout.records.rollout_plan import Mode, SplitBy

ModelOption = Annotated[str | None, typer.Option(help="The model, where the server has several.")]
ReleasesArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="RELEASE...",
        help="Folder of a built release, a YAML file of what differs, or a number; several for --mode ab.",
    ),
]
ModeOption = Annotated[
    Mode,
    typer.Option(
        help="canary: the release answers a growing share, and is promoted or rolled back. shadow: the release "
        "gets copies of requests, and nobody sees its answers. ab: each release answers a share until a person "
        "decides."
    ),
]
StepsOption = Annotated[
    str,
    typer.Option(
        help="Percentages of the requests that the release gets, one after the other.", show_default="1,5,25,50,100"
    ),
]
SharesOption = Annotated[
    str,
    typer.Option(help="With --mode ab: percentage of each arm, the stable release's first.", show_default="equal ones"),
]
StepRequestsOption = Annotated[
    int | None,
    typer.Option(min=1, help="Requests that each arm answers at a share before the next share.", show_default="100"),
]
MaxRequestsOption = Annotated[
    int | None,
    typer.Option(
        min=1, help="Requests of each arm after which a rollout without a verdict is held.", show_default="4000"
    ),
]
GateOption = Annotated[
    Path | None, typer.Option(help="YAML file with settings of the gate, such as 'effects: {ttft: 0.2}'.")
]
PromptsOption = Annotated[
    Path | None,
    typer.Option(help="JSONL file of held-out prompts; both releases answer them before any user asks."),
]
PromptsAtATimeOption = Annotated[
    int | None, typer.Option(min=1, max=32, help="Requests of held-out prompts in flight.", show_default="2")
]
MaxCopiesOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=4096,
        help="With --mode shadow: copies that run at a time, of all clients together.",
        show_default="4",
    ),
]
KeysOption = Annotated[
    Path | None,
    typer.Option(help="File of known keys, one a line; the split is chosen that meets the shares best for them."),
]
SecondServerOption = Annotated[
    str | None,
    typer.Option(
        metavar="FOLDER|URL",
        help="Another server, which serves the candidate where the first has no memory for both: its folder, or "
        "https://HOST:PORT of its control on another machine.",
    ),
]
ApartOption = Annotated[
    bool, typer.Option("--apart", help="Use the second server also where the first has memory for both.")
]
SecondUrlOption = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT", help="The second server's gRPC endpoint for clients.", show_default="as it listens"
    ),
]
SplitOption = Annotated[
    SplitBy | None,
    typer.Option(
        help="server: it splits the requests of every client, and tells how they end. clients: those that ask "
        "for the split do, and all others get the stable release. router: what --weights names does.",
        show_default="server; clients with a second server, and for shadow; router with --weights",
    ),
]
LeaseOption = Annotated[float, typer.Option(min=0.5, max=300, help="How long clients go by an answer about the split.")]
DrainTimeoutOption = Annotated[
    float, typer.Option(min=0, max=86_400, help="How long streams of a release that goes may take.")
]
KeepOldOption = Annotated[bool, typer.Option("--keep-old", help="Leave the old release loaded after a promotion.")]
LeaveOption = Annotated[
    bool,
    typer.Option(
        "--leave",
        envvar="TRIREME_ROLLOUT_LEAVE",
        help="Only check the rollout and write it down: the process of `trireme rollout run --wait` drives it.",
    ),
]
