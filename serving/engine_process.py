# SPDX-License-Identifier: Apache-2.0
"""The engine's own process, started by `serving.engine_client` with a socket to it.

One thread, one loop: take what has arrived, step, send what was made. It ends when the other side hangs up.
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
from serving.engine_messages import Broken, Cancel, Channel, ChannelClosed, Command, Ready, Step, Submit
from serving.engines.base import Engine, FinishReason, TokenChunk
from serving.engines.providers import create_engine
from serving.stopping_engine import StoppingEngine

_log = logging.getLogger("trireme.engine")


def serve_engine(engine: Engine, channel: Channel) -> None:
    """Run the engine until the other side hangs up (ChannelClosed is raised) or the engine breaks."""
    channel.send(Ready(engine.info))
    while True:
        commands = channel.receive(is_blocking=not engine.has_work)
        endings = [chunk for command in commands if (chunk := _obey(engine, command)) is not None]
        chunks = endings + engine.step()
        channel.send(Step(chunks, engine.stats()))


def _obey(engine: Engine, command: object) -> TokenChunk | None:
    """Do as told; the last chunk of a request that was refused or cancelled."""
    match command:
        case Submit(request):
            try:
                engine.add(request)
            except RequestError as exc:
                return TokenChunk(request.key, [], error=str(exc))
        case Cancel(key):
            perf = engine.perf_of(key)
            engine.cancel(key)
            return TokenChunk(key, [], FinishReason.CANCELLED, perf=perf)
        case _:
            raise AssertionError(f"not a command: {command!r}")
    return None


def _load(folder: Path) -> Engine:
    release = load_release(folder)
    return StoppingEngine(create_engine(release.engine), TextDecoder.from_spec(release.tokenizer))


def main() -> None:
    """Load the engine of a release and serve it over an inherited socket."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--release", type=Path, required=True, help="version folder with release.json")
    parser.add_argument("--fd", type=int, required=True, help="inherited socket to the adapter")
    args = parser.parse_args()
    logging.basicConfig(format="%(asctime)s %(name)s %(levelname)s %(message)s", level=logging.INFO)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle: it drains first
    channel = Channel(socket.socket(fileno=args.fd), Command)
    try:
        serve_engine(_load(args.release), channel)
    except ChannelClosed:
        _log.info("the adapter hung up; the engine ends")
    except Exception as exc:
        traceback.print_exc()
        channel.send(Broken(str(exc if isinstance(exc, ServingError) else ServerError(f"the engine broke: {exc!r}"))))
    # Not sys.exit: an engine with running requests has nothing worth waiting for.
    os._exit(0)


if __name__ == "__main__":
    main()
