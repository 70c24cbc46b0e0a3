# SPDX-License-Identifier: Apache-2.0
"""The streams that named a version of a model, which no split may move to another release.

Triton does not tell a model whether a request named its version. The server's frontends see that, and mark the stream
with a file of its name before the request's last byte has reached Triton.
"""

from pathlib import Path

from serving.process.run_dir import run_dir

_FOLDER = "pinned"


def is_pinned(stream_name: str) -> bool:
    """Return whether a stream has named a version; a stream without a name came through no frontend."""
    return bool(stream_name) and (run_dir() / _FOLDER / stream_name).exists()


def pin(folder: Path, stream_name: str) -> None:
    """Mark a stream of the server with a run dir, until `unpin`."""
    pinned = folder / _FOLDER
    pinned.mkdir(mode=0o700, exist_ok=True)
    (pinned / stream_name).touch()


def unpin(folder: Path, stream_name: str) -> None:
    """Forget the mark of a stream that has ended."""
    (folder / _FOLDER / stream_name).unlink(missing_ok=True)
