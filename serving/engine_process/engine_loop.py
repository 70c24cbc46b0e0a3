# SPDX-License-Identifier: Apache-2.0
"""The engine's own process, started by `serving.engine_process.engine_sources` with a socket to it.

One thread runs one loop: take the messages that have arrived, step, send the chunks. An idle engine waits a moment for
more of them (`serving.engine_process.batch_wait`). With admission a second thread
takes messages (`serving.engine_process.ingress`), so a refused request need not wait for the end of a step. The process
ends when the adapter that started it closes its connection; an engine with processes of its own has some time to end
them. An engine that breaks, or has work and gets no further, reports the error to all its callers first.
"""

import argparse
import contextlib
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path

from ensemble_configs.render.release_file import load_release
from serving.admission.admitting_engine import AdmittingEngine
from serving.doctor.release_check import releases_in_use
from serving.engine_guard.descriptors import fetch_descriptors
from serving.engine_guard.process_tree import end_with_parent
from serving.engine_process.batch_wait import wait_for_company
from serving.engine_process.connections import HEARTBEAT_S, EngineConnections
from serving.engine_process.engine_loading import load_engine
from serving.engine_process.engine_messages import Broken, Channel, ChannelClosed, Command
from serving.engine_process.ingress import Ingress, begin, stop
from serving.engine_process.progress_watch import ProgressWatch
from serving.engines.seam.base import Engine, GenerationRequest, TokenChunk
from serving.engines.seam.clock import WallClock
from serving.process.placement import take_place
from serving.process.server_log import set_up_log
from trireme.base.errors import ServerError, ServingError

_log = logging.getLogger("trireme.engine")

CLOSE_TIMEOUT_S = 5.0


def serve_engine(
    engine: Engine, connections: EngineConnections, watch: ProgressWatch, *, batch_wait_s: float = 0.0
) -> None:
    """Run the engine until it breaks or hangs, or its owner is gone.

    Args:
        engine: engine to run.
        connections: connections to its callers.
        watch: watch over its progress.
        batch_wait_s: seconds that an idle engine waits, after a request, for another one.

    Raises:
        ChannelClosed: the owner is gone.
        ServerError: the engine hangs.
    """
    endings: list[TokenChunk] = []

    def take(timeout_s: float) -> bool:
        commands = connections.receive(timeout_s=timeout_s)
        endings.extend(chunk for command in commands if (chunk := _obey(engine, command)) is not None)
        return bool(commands)

    while True:
        was_idle = not engine.has_work
        take(_patience_s(engine))
        if was_idle and engine.has_work:
            wait_for_company(take, batch_wait_s)
        connections.send(endings + engine.step(), engine.stats())
        endings.clear()
        watch.look(engine)


def serve_admitting(
    engine: AdmittingEngine, connections: EngineConnections, watch: ProgressWatch, *, batch_wait_s: float = 0.0
) -> None:
    """Run the engine as `serve_engine` does, with a second thread that admits or refuses requests beside the steps."""
    with Ingress(engine, connections) as ingress:
        while True:
            was_idle = not engine.has_work
            ingress.hears(_patience_s(engine))
            if was_idle and engine.has_work:
                wait_for_company(ingress.hears, batch_wait_s)
            stopped = [stop(engine, key) for key in ingress.keys_to_stop()]
            connections.send(stopped + engine.step(), engine.stats())
            watch.look(engine)


def _patience_s(engine: Engine) -> float:
    """Return the seconds to wait for messages: fewer than those after which the owner takes the engine for dead."""
    return 0.0 if engine.has_work else min(HEARTBEAT_S, engine.max_idle_s)


def _obey(engine: Engine, command: GenerationRequest | int) -> TokenChunk | None:
    """Run a request, or stop the request with a key; return the last chunk of a refused or stopped request."""
    return stop(engine, command) if isinstance(command, int) else begin(engine, command)


def close_engine(engine: Engine, timeout_s: float) -> None:
    """Close the engine, and leave it to itself after `timeout_s` seconds."""
    closer = threading.Thread(target=engine.close, name="engine-closer", daemon=True)
    closer.start()
    closer.join(timeout_s)
    if closer.is_alive():
        _log.warning("the engine has not closed within %g s; its process ends without that", timeout_s)


def main() -> None:
    """Load the engine of a release and serve it over an inherited socket."""
    args = _arguments()
    set_up_log(args.log_format, model=args.release.parent.name, release=args.release.name)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle: it drains first
    owner, clients = _sockets(args)
    channel = Channel(owner, Command)
    tell: Callable[[Broken], None] = channel.send
    with contextlib.ExitStack() as ending:
        try:
            release = load_release(args.release)
            take_place(release.placement)
            ending.enter_context(releases_in_use(release))
            engine = load_engine(release, folder=args.release, run_dir=args.run_dir, is_inner=args.inner)
            ending.callback(close_engine, engine, args.close_timeout_s or CLOSE_TIMEOUT_S)
            connections = EngineConnections(channel, clients, engine.info)
            ending.callback(connections.close)  # first: callers need not wait for the engine's end
            tell = connections.tell_all
            watch = ProgressWatch(WallClock(), watchdog_s=release.engine.watchdog_s)
            # An inner engine gets what its outer one has gathered.
            batch_wait_s = 0.0 if args.inner else release.engine.batch_wait_s
            if isinstance(engine, AdmittingEngine):
                serve_admitting(engine, connections, watch, batch_wait_s=batch_wait_s)
            else:
                serve_engine(engine, connections, watch, batch_wait_s=batch_wait_s)
        except ChannelClosed:
            _log.info("the adapter hung up; the engine ends")
        except Exception as exc:
            _log.exception("the engine has failed")
            error = exc if isinstance(exc, ServingError) else ServerError(f"the engine broke: {exc!r}")
            with contextlib.suppress(ChannelClosed):
                tell(Broken(str(error), reason=str(error.facts.get("reason", "engine_died"))))
            if args.close_timeout_s is not None:  # a guard ends the processes that a broken engine would wait for
                os._exit(1)
    # Not sys.exit: threads that a library has left behind are not worth waiting for.
    os._exit(0)


def _sockets(args: argparse.Namespace) -> tuple[socket.socket, socket.socket | None]:
    owner, clients = args.fd, args.clients_fd
    if args.fetch_fds is not None:
        end_with_parent()  # the guard, or its launcher
        owner, clients = fetch_descriptors(args.fetch_fds)
    return socket.socket(fileno=owner), None if clients is None else socket.socket(fileno=clients)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--release", type=Path, required=True, help="version folder with release.json")
    parser.add_argument("--run-dir", type=Path, required=True, help="folder of the server's processes")
    parser.add_argument("--fd", type=int, help="inherited socket to the adapter")
    parser.add_argument("--inner", action="store_true", help="only the engine, for the process that loads it on demand")
    parser.add_argument("--clients-fd", type=int, help="inherited socket that listens for other adapters")
    parser.add_argument("--fetch-fds", type=Path, help="socket of the guard with both sockets, below a launcher")
    parser.add_argument("--close-timeout-s", type=float, help="seconds that the engine may take to free its resources")
    parser.add_argument("--log-format", choices=["text", "json"], default="text")
    return parser.parse_args()


if __name__ == "__main__":
    main()
