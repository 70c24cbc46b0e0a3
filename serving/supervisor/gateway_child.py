# SPDX-License-Identifier: Apache-2.0
"""The gateway beside a server: `trireme gateway serve` in a process of its own, started again when it ends.

The listening socket is held here, so that callers wait, and are not refused, while the gateway is started again. It
ends after the server: what runs through it ends with the server's streams.
"""

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from ensemble_configs.spec.triton_spec import TritonSpec
from trireme.base.errors import SpecError
from trireme.base.http_servers.http_thread import listen

HERE = "127.0.0.1"
_LOOK_S = 0.5
_MAX_BACKOFF_S = 10.0
_END_S = 5.0


class GatewayChild:
    """The gateway of a server on this machine's own address.

    Args:
        deployment: the deployment's file.
        triton: of the server.
        folder: of the deployment, for the keys and the ledger; they are made if they are not there.
        log_format: of its log: "text" or "json".
        tell: takes progress for a person.

    Raises:
        SpecError: the port cannot be had, or the server wants TLS.
    """

    def __init__(
        self,
        deployment: Path,
        triton: TritonSpec,
        *,
        port: int,
        folder: Path,
        log_format: str,
        tell: Callable[[str], None],
    ) -> None:
        if triton.grpc_tls is not None:
            raise SpecError(
                "--gateway knows no certificate of a server with triton.grpc_tls; start `trireme gateway serve --url "
                "grpcs://...` beside it",
                field="gateway",
            )
        self._listener = listen(HERE, port, option="--gateway-port")
        host = HERE if triton.host in {"0.0.0.0", "::"} else triton.host
        shown = f"[{host}]" if ":" in host else host
        self._command = [
            *[sys.executable, "-m", "trireme", "gateway", "serve", "--deployment", str(deployment)],
            *["--url", f"{shown}:{triton.grpc_port}", "--metrics-url", f"{shown}:{triton.metrics_port}"],
            *["--rollouts", str(folder / "rollouts.sqlite")],
            *["--keys", str(folder / "keys.sqlite"), "--session-key"],
            *["--ledger", str(folder / "ledger.sqlite"), "--ledger-journal", str(folder / "ledger_journal")],
            *["--log-format", log_format, "--listener", str(self._listener.fileno())],
        ]
        self._tell = tell
        self._is_closed = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._watch = threading.Thread(target=self._keep, name="gateway", daemon=True)

    def start(self) -> None:
        """Start the gateway; called once, when the server is ready."""
        self._process = self._started()
        self._watch.start()

    def close(self) -> None:
        """End the gateway."""
        self._is_closed.set()
        if self._watch.is_alive():
            self._watch.join()
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(_END_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._listener.close()

    def _keep(self) -> None:
        num_failed = 0
        while not self._is_closed.wait(_LOOK_S):
            assert self._process is not None
            if self._process.poll() is None:
                num_failed = 0
                continue
            delay_s = min(2.0**num_failed, _MAX_BACKOFF_S)
            num_failed += 1
            self._tell(f"the gateway ended ({self._process.returncode}); starting it again in {delay_s:g} s")
            if self._is_closed.wait(delay_s):
                return
            self._process = self._started()

    def _started(self) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            pass_fds=[self._listener.fileno()],
            process_group=0,  # Ctrl-C reaches the parent alone
        )
