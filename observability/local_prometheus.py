# SPDX-License-Identifier: Apache-2.0
"""A Prometheus and an Alertmanager on this machine, with the project's rules, for as long as a program needs them."""

import contextlib
import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from observability.rules.shortened import INTERVAL_MS, shortened
from trireme.base.durable_files import write_atomically
from trireme.base.errors import SpecError, Unavailable
from trireme.base.project_files import CODE_ROOT, project_file

FILES = project_file("helm/trireme/files")
_UNPACKED = CODE_ROOT / ".tools" / "prometheus" / "usr"  # by scripts/unpacked_programs.py
_READY_S = 30.0
_END_S = 10.0


def program(name: str) -> str:
    """Return the path of one of Prometheus' programs.

    Raises:
        SpecError: the program is not installed.
    """
    found = _UNPACKED / "bin" / name
    if found.is_file():
        return str(found)
    if (installed := shutil.which(name)) is None:
        raise SpecError(
            f"{name} is not installed; run `python3 scripts/bootstrap.py --only prometheus`, or install the packages "
            "prometheus and prometheus-alertmanager",
            field=name,
        )
    return installed


class LocalPrometheus:
    """A Prometheus and an Alertmanager that run while the context is entered; what they wrote stays in the folder.

    Args:
        folder: for configuration, data and logs.
        targets: `host:port` of what is scraped, by the job's name in prometheus.yml; other jobs are left out.
        ports: of Prometheus and of Alertmanager.
        is_fast: minutes of the rules are seconds (`observability.rules.shortened`).
    """

    def __init__(
        self, folder: Path, targets: Mapping[str, Sequence[str]], *, ports: tuple[int, int], is_fast: bool = False
    ) -> None:
        self.folder = folder.resolve()
        self._targets = targets
        self._port, self._alertmanager_port = ports
        self._is_fast = is_fast
        self._processes: list[subprocess.Popen[bytes]] = []
        self.url = f"http://127.0.0.1:{self._port}"
        self.alertmanager_url = f"http://127.0.0.1:{self._alertmanager_port}"

    def __enter__(self) -> Self:
        """Start both programs and wait until they answer.

        Raises:
            SpecError: a program or a file is missing, or a port is in use.
            Unavailable: a program does not start.
        """
        if not FILES.is_dir():
            raise SpecError(f"{FILES} is not there; run this in a checkout of the project", file=FILES)
        programs = program("prometheus"), program("prometheus-alertmanager")
        for name, port in (("port", self._port), ("alertmanager_port", self._alertmanager_port)):
            _refuse_taken(name, port)
        self.folder.mkdir(parents=True, exist_ok=True)
        for job, targets in self._targets.items():
            self.set_targets(job, targets)
        self._write_rules()
        write_atomically(self.folder / "prometheus.yml", yaml.safe_dump(self._configuration(), sort_keys=False))
        shutil.copyfile(FILES / "alertmanager/alertmanager.yml", self.folder / "alertmanager.yml")
        templates = self.folder / "alertmanager_files_"  # where scripts/unpacked_programs.py lets an unpacked one look
        templates.unlink(missing_ok=True)
        templates.symlink_to(_UNPACKED / "share" / "prometheus" / "alertmanager")
        lookback = ("--query.lookback-delta=5s",) if self._is_fast else ()
        try:
            self._start(
                programs[0], "--config.file=prometheus.yml", "--storage.tsdb.path=data", *lookback,
                f"--web.listen-address=127.0.0.1:{self._port}", "--storage.tsdb.retention.time=7d",
            )  # fmt: skip
            self._start(
                programs[1], "--config.file=alertmanager.yml", "--storage.path=alertmanager-data",
                f"--web.listen-address=127.0.0.1:{self._alertmanager_port}", "--cluster.listen-address=",
            )  # fmt: skip
            for url in (self.url, self.alertmanager_url):
                self._wait_until_ready(url)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def set_targets(self, job: str, targets: Sequence[str]) -> None:
        """Scrape these targets of a job from now on; Prometheus sees the change of the file."""
        write_atomically(self.folder / f"{job}.json", json.dumps([{"targets": list(targets)}]))

    def query(self, expr: str) -> list[dict[str, Any]]:
        """Return the samples of an expression now: `metric` and `value`, [seconds, text]."""
        found = _get(f"{self.url}/api/v1/query?{urllib.parse.urlencode({'query': expr})}")
        return list(found["data"]["result"])

    def alerts(self) -> list[dict[str, Any]]:
        """Return the alerts that Alertmanager holds as firing."""
        return list(_get(f"{self.alertmanager_url}/api/v2/alerts?active=true&inhibited=true&silenced=true"))

    def firing(self) -> set[str]:
        """Return the names of the alerts that Alertmanager holds as firing."""
        return {alert["labels"]["alertname"] for alert in self.alerts()}

    def _configuration(self) -> dict[str, Any]:
        """Return the project's configuration, with the targets read from files beside it."""
        configuration: dict[str, Any] = yaml.safe_load((FILES / "prometheus/prometheus.yml").read_text("utf-8"))
        if self._is_fast:
            every = f"{INTERVAL_MS}ms"
            configuration["global"] = {"scrape_interval": every, "evaluation_interval": every, "scrape_timeout": every}
        configuration["alerting"]["alertmanagers"][0]["static_configs"] = [
            {"targets": [f"127.0.0.1:{self._alertmanager_port}"]}
        ]
        configuration["scrape_configs"] = [
            {name: value for name, value in job.items() if name != "static_configs"}
            | {"file_sd_configs": [{"files": [f"{job['job_name']}.json"]}]}
            for job in configuration["scrape_configs"]
            if job["job_name"] in self._targets
        ]
        return configuration

    def _write_rules(self) -> None:
        for name in ("recording_rules.yml", "alert_rules.yml"):
            text = (FILES / "prometheus" / name).read_text(encoding="utf-8")
            write_atomically(self.folder / name, shortened(text) if self._is_fast else text)

    def _start(self, *command: str) -> None:
        with (self.folder / f"{Path(command[0]).name}.log").open("wb") as log:
            process = subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log, start_new_session=True)
        self._processes.append(process)

    def _wait_until_ready(self, url: str) -> None:
        deadline_s = time.monotonic() + _READY_S
        while True:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/-/ready", timeout=5):
                return
            ended = [process for process in self._processes if process.poll() is not None]
            if ended or time.monotonic() > deadline_s:
                logs = {path.name: path.read_text(errors="replace")[-400:] for path in self.folder.glob("*.log")}
                raise Unavailable(f"{url} has not become ready: {logs}", url=url)
            time.sleep(0.1)

    def _end(self) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()


def _refuse_taken(name: str, port: int) -> None:
    """Refuse a port that another process has: its answers would be taken for ours.

    Raises:
        SpecError: the port is in use.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as exc:
            option = name.replace("_", "-")
            raise SpecError(
                f"--{option} {port} is in use: {exc.strerror}; name another one", field=name, value=port
            ) from exc


def _get(url: str) -> Any:
    try:
        with urllib.request.urlopen(url, timeout=10) as response:
            return json.loads(response.read())
    except urllib.error.HTTPError as exc:
        raise SpecError(f"{url}: {exc.read().decode(errors='replace')}", field="query") from exc
