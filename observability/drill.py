# SPDX-License-Identifier: Apache-2.0
"""An alert on purpose: a metrics page of our own says that an engine is dead, until Alertmanager has heard of it."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from observability.local_prometheus import LocalPrometheus
from trireme.base.errors import Unavailable

ALERT = "TriremeEngineDead"
_PATIENCE_S = 60.0


@contextmanager
def metrics_page(text: Callable[[], str]) -> Iterator[str]:
    """Serve a page of metrics on a free port, and yield its `host:port`."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = text().encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            """Log nothing: the page is asked for four times a second."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def drill(prometheus: LocalPrometheus, targets: list[str], *, tell: Callable[[str], None]) -> None:
    """Make TriremeEngineDead fire and be resolved, for an engine `drill`; the real ones are scraped all the while.

    Args:
        prometheus: a Prometheus with shortened rules.
        targets: `host:port` of the servers that it scrapes besides.
        tell: gets a line for each thing that happens.

    Raises:
        Unavailable: nothing happened for a minute.
    """
    state = {"up": 1}

    def page() -> str:
        return f'trireme_engine_up{{model="drill",version="1"}} {state["up"]}\n'

    def of_drill() -> list[dict[str, Any]]:
        return [alert for alert in prometheus.alerts() if alert["labels"].get("model") == "drill"]

    with metrics_page(page) as address:
        prometheus.set_targets("trireme", [*targets, address])
        _wait(lambda: bool(prometheus.query('trireme_engine_up{model="drill"} == 1')), "the drill's page is scraped")
        began_s = time.monotonic()
        state["up"] = 0
        tell("an engine `drill` says that it is dead")
        _wait(lambda: bool(of_drill()), f"{ALERT} fires")
        annotations = of_drill()[0]["annotations"]
        tell(f"{time.monotonic() - began_s:.1f} s later Alertmanager has {ALERT}: {annotations['summary']}")
        tell(f"  {annotations['description']} ({annotations['runbook_url']})")
        state["up"] = 1
        tell("the engine is back")
        _wait(lambda: not of_drill(), f"{ALERT} is resolved")
        tell(f"{ALERT} is resolved")
    prometheus.set_targets("trireme", targets)


def _wait(is_so: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + _PATIENCE_S
    while not is_so():
        if time.monotonic() > deadline_s:
            raise Unavailable(f"waited {_PATIENCE_S:.0f} s in vain until {what}; the folder's logs say why")
        time.sleep(0.1)
