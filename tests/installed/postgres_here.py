# SPDX-License-Identifier: Apache-2.0
"""A PostgreSQL of a test's own, which the test may stop, kill and start again."""

import contextlib
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import psutil
import psycopg

from scripts.unpacked_programs import POSTGRESQL

ROOT = Path(__file__).resolve().parents[2]
WHY_NOT = "PostgreSQL is not installed: python3 scripts/bootstrap.py --only postgresql"
PASSWORD = "p:w/%'1"  # as no URL can hold it unquoted
_USER = "nobody"


def is_postgres_here() -> bool:
    """Return whether PostgreSQL's programs are there."""
    return POSTGRESQL.is_there(ROOT)


class PostgresServer:
    """A server on a free port of the loopback interface, whose users bring a password.

    `postgres` refuses to run as root, who therefore starts it as nobody.

    Attributes:
        port: its port, also after it was started again.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._data = folder / "data"
        self._user: dict[str, object] = {}
        if os.geteuid() == 0:
            nobody = pwd.getpwnam(_USER)
            os.chown(folder, nobody.pw_uid, nobody.pw_gid)
            self._user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
        self._programs = self._readable_programs()
        self.port = _port()
        password = folder / "password"
        password.write_text(PASSWORD, encoding="utf-8")
        options = ["--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--username=postgres", "--no-sync"]
        self._run("initdb", *options, f"--pwfile={password}", f"--pgdata={self._data}")
        self._process: subprocess.Popen[bytes] | None = None
        self._num_databases = 0
        self.start()

    def _readable_programs(self) -> Path:
        """Return the folder of the programs; a copy, where they are unpacked and nobody may read this checkout."""
        found = POSTGRESQL.program(ROOT, "postgres")
        assert found is not None
        unpacked = ROOT / POSTGRESQL.directory
        if not self._user or not found.is_relative_to(unpacked):
            return found.parent
        copy = self._folder / "programs"
        shutil.copytree(unpacked, copy, symlinks=True)
        return copy / found.parent.relative_to(unpacked)

    def _environment(self) -> dict[str, str]:
        root = self._programs.parents[4]
        libraries = {str(path.parent) for path in root.glob("usr/lib/**/lib*.so*")} if root != Path("/") else set()
        return {"PATH": os.defpath, "LC_ALL": "C", "LD_LIBRARY_PATH": os.pathsep.join(sorted(libraries))}

    def _run(self, name: str, *arguments: str) -> None:
        result = subprocess.run(
            [self._programs / name, *arguments],
            env=self._environment(), cwd=self._folder, capture_output=True, text=True, check=False, **self._user,
        )  # type: ignore[call-overload]  # fmt: skip
        assert result.returncode == 0, result.stdout + result.stderr

    def start(self) -> None:
        """Start it, and wait until it answers."""
        command = [str(self._programs / "postgres"), "-D", str(self._data), "-p", str(self.port)]
        settings = {"listen_addresses": "127.0.0.1", "unix_socket_directories": "", "max_connections": "50"}
        settings |= {"shared_buffers": "16MB", "fsync": "off", "jit": "off"}
        command += [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, env=self._environment(), cwd=self._folder, stdout=log, stderr=log, **self._user
            )  # type: ignore[call-overload]
        deadline_s = time.monotonic() + 60
        while True:
            try:
                self.connect("postgres").close()
            except psycopg.OperationalError:
                said = (self._folder / "log").read_text(errors="replace")
                assert self._process is not None
                assert self._process.poll() is None, said
                assert time.monotonic() < deadline_s, said
                time.sleep(0.05)
            else:
                return

    def stop(self) -> None:
        """End all sessions, and the server, in good order."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """End the server and what serves its sessions as a power failure would."""
        assert self._process is not None
        process = psutil.Process(self._process.pid)
        process.suspend()  # it starts nobody meanwhile
        while process.status() != psutil.STATUS_STOPPED:
            time.sleep(0.001)
        children = process.children()
        for child in children:
            child.kill()
        self._end(signal.SIGKILL)
        while any(_runs(child) for child in children):  # with the shared memory, with which no other server starts
            time.sleep(0.001)
        (self._data / "postmaster.pid").unlink(missing_ok=True)

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(how)
            self._process.wait(60)

    def connect(self, database: str) -> psycopg.Connection[tuple[object, ...]]:
        """Return a connection of the superuser."""
        return psycopg.connect(self.url(database), autocommit=True, connect_timeout=5)

    def new_database(self, *options: str) -> str:
        """Make an empty database, and return its name."""
        self._num_databases += 1
        name = f"rollouts_{self._num_databases}"
        with self.connect("postgres") as db:
            db.execute(f"create database {name} {' '.join(options)}".encode())
        return name

    def url(self, database: str, *, user: str = "postgres", password: str = PASSWORD) -> str:
        """Return the URL of a database, with a password."""
        return f"postgresql://{user}:{quote(password, safe='')}@127.0.0.1:{self.port}/{database}"


def _runs(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _port() -> int:
    """Return a free port that no client gets by chance while the server is away."""
    while True:
        with socket.socket() as free, contextlib.suppress(OSError):
            free.bind(("127.0.0.1", random.randrange(20_000, 32_000)))
            return int(free.getsockname()[1])


@contextlib.contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """Run a server in a folder that another user may enter."""
    folder = Path(tempfile.mkdtemp(prefix="trireme-postgres-"))
    server = None
    try:
        server = PostgresServer(folder)
        yield server
    finally:
        if server is not None:
            server.stop()
        shutil.rmtree(folder, ignore_errors=True)
