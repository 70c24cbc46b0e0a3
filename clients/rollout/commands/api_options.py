# SPDX-License-Identifier: Apache-2.0
"""The options of the API that a rollout's clients ask, in every command that drives a rollout."""

from pathlib import Path
from typing import Annotated

import typer

HostOption = Annotated[str, typer.Option(help="Host on which clients ask for the split.")]
PortOption = Annotated[
    int, typer.Option(min=0, max=65535, help="Port on which clients ask for the split; 0: any free port.")
]

CertOption = Annotated[
    Path | None,
    typer.Option(help="PEM file of the certificate, with its chain, for clients that ask for the split over https."),
]
KeyOption = Annotated[Path | None, typer.Option(help="PEM file of that certificate's private key.")]
TokenOption = Annotated[
    Path | None,
    typer.Option(
        help="File of keys, one a line: who asks for the split or reports outcomes brings one as a bearer token. Read "
        "again when it changes."
    ),
]
