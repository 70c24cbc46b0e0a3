# SPDX-License-Identifier: Apache-2.0
"""The engine's own process, started by `serving.engine_sources` with a socket to it.

One thread, one loop: take what has arrived, step, send what was made. It ends when the adapter that started it hangs
up.
"""

import argparse
import logging
import os
import signal
import socket
import traceback
from pathlib import Path

from ensemble_configs.errors import RequestError, ServerError, ServingError
from ensemble_configs.release import load_release
from serving.detokenization import TextDecoder
from serving.engine_messages import Broken, Channel, ChannelClosed, Command
from serving.engines.base import Engine, FinishReason, GenerationRequest, TokenChunk
from serving.engines.providers import create_engine
from serving.speculating_engine import SpeculatingEngine
from serving.stopping_engine import StoppingEngine
from serving.switchboard import Switchboard

_log = logging.getLogger("trireme.engine")


def serve_engine(engine: Engine, switchboard: Switchboard) -> None:
    """Run the engine until its owner hangs up (ChannelClosed is raised) or the engine breaks."""
    while True:
        commands = switchboard.receive(is_blocking=not engine.has_work)
        endings = [chunk for command in commands if (chunk := _obey(engine, command)) is not None]
        switchboard.send(endings + engine.step(), engine.stats())


def _obey(engine: Engine, command: GenerationRequest | int) -> TokenChunk | None:
    """Run a request, or stop the one of this key; the last chunk of a request that was refused or stopped."""
    if isinstance(command, int):
        perf = engine.perf_of(command)
        engine.cancel(command)
        return TokenChunk(command, [], FinishReason.CANCELLED, perf=perf)
    try:
        engine.add(command)
    except RequestError as exc:
        return TokenChunk(command.key, [], error=str(exc))
    return None


def _load(folder: Path) -> Engine:
    release = load_release(folder)
    engine = create_engine(release.engine)
    if release.draft_engine is not None:
        engine = SpeculatingEngine(engine, create_engine(release.draft_engine))
    return StoppingEngine(engine, TextDecoder.from_spec(release.tokenizer))


def main() -> None:
    """Load the engine of a release and serve it over an inherited socket."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--release", type=Path, required=True, help="version folder with release.json")
    parser.add_argument("--fd", type=int, required=True, help="inherited socket to the adapter")
    parser.add_argument("--guests-fd", type=int, help="inherited socket that listens for other adapters")
    args = parser.parse_args()
    logging.basicConfig(format="%(asctime)s %(name)s %(levelname)s %(message)s", level=logging.INFO)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle: it drains first
    channel = Channel(socket.socket(fileno=args.fd), Command)
    guests = None if args.guests_fd is None else socket.socket(fileno=args.guests_fd)
    try:
        engine = _load(args.release)
        serve_engine(engine, Switchboard(channel, guests, engine.info))
    except ChannelClosed:
        _log.info("the adapter hung up; the engine ends")
    except Exception as exc:
        traceback.print_exc()
        channel.send(Broken(str(exc if isinstance(exc, ServingError) else ServerError(f"the engine broke: {exc!r}"))))
    # Not sys.exit: an engine with running requests has nothing worth waiting for.
    os._exit(0)


if __name__ == "__main__":
    main()
