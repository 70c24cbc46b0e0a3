# SPDX-License-Identifier: Apache-2.0
"""A stand-in of tritonserver 2.71: the real server that is installed here, with the newer one's answers before it.

`write_newer_triton` makes a program `tritonserver` for PATH. It starts the real server on ports of its own and listens
on the HTTP and gRPC ports that it was given (with TLS on gRPC the real server listens there itself). What 2.71 answers
otherwise is answered here, over gRPC by `newer_triton_grpc`; the rest is the real server's. Nothing of the project is
imported. The answers over HTTP, each with its source upstream:

- `/v2/health/ready` and `/v2/models/NAME/ready` are 400 once a Python stub is dead: core #473
  (`InferenceServer::IsReady`), python_backend #423 (`TRITONBACKEND_ModelInstanceReady`). An ensemble has no stub of
  its own, and stays ready.
- JSON that is nested 100 deep or more is 400: server #8172 (`HTTP_MAX_JSON_NESTING_DEPTH`); a body of more than 64 MiB:
  server #8432 (`HTTP_DEFAULT_MAX_INPUT_SIZE`, `--http-max-input-size`).
- A body of more than 4 MB is 400, as observed on 2.71 for 5 MB of text; the real server would die of it (2.51).
- `max_inflight_requests` in an ensemble's config is known (core, `ensemble_scheduler.cc`): the field is taken out of
  the file before the real server, which does not know it, is told to load the model.
- Shared memory of clients is refused without `--allow-client-shm=true`: server #8721.
- `--help` names those two flags (`command_line_parser.cc`).

A stub looks on PYTHONPATH before it looks for the server's own modules, as observed on 2.71: it is the real one, below
an environment whose site does that. What else is the stub's own is said where the tests need it.
"""

import asyncio
import contextlib
import ctypes
import json
import os
import re
import resource
import signal
import site
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import aiohttp
import psutil
from aiohttp import web
from newer_triton_grpc import NO_SHM, GrpcAnswers

ABORTED = "aborted"  # beside the program: a line for each stub that did
BACKENDS = "backends"  # beside it, too: what /opt/tritonserver/backends is to a server in its image
_FLAGS = ("allow-client-shm", "http-max-input-size")
_MAX_DEPTH = 100
_MAX_BYTES = 1 << 26
_MOST_FOR_REAL = 4_000_000
_SHM_CALL = re.compile(r"/v2/(system|cuda)sharedmemory(/region/[^/]+)?/(un)?register")
_LOAD = re.compile(r"/v2/repository/models/([^/]+)/load")
_NEW_FIELD = re.compile(r"max_inflight_requests: *\d+")
_MODEL_READY = re.compile(r"/v2/models/([^/]+)(?:/versions/(\d+))?/ready")
_BRACKETS = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]')
_POLL_S = 0.05
_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
_FORWARDED = (
    "accept-encoding", "content-encoding", "content-length", "content-type", "inference-header-content-length",
    "traceparent", "trireme-control-key",
)  # fmt: skip


def write_newer_triton(folder: Path, record: Path, *, is_aborting: bool = False) -> Path:
    """Write the program into a folder; return the folder, which belongs first on PATH.

    Args:
        folder: for the program.
        record: where `make setup` wrote down what it installed, installation.json.
        is_aborting: each stub aborts once its model is finalized, as with Python 3.11 since python_backend #433.
    """
    folder.mkdir(parents=True)
    _write_stub(folder / BACKENDS, _Real(record).backends, is_aborting=is_aborting)
    program = folder / "tritonserver"
    program.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        f"from newer_triton import main\nmain({str(record)!r}, sys.argv[1:], {str(folder / BACKENDS)!r})\n"
    )
    program.chmod(0o755)
    return folder


def _write_stub(folder: Path, real: str, *, is_aborting: bool) -> None:
    """Write a folder of backends whose stub reads PYTHONPATH, or aborts at its end and notes its status before."""
    (folder / "python").mkdir(parents=True)
    for path in Path(real, "python").iterdir():
        (folder / "python" / path.name).symlink_to(path)
    stub = folder / "python" / "triton_python_backend_stub"
    target = stub.resolve()
    stub.unlink()
    run = f"PATH={_write_site(folder.parent / 'python')}:$PATH"
    end = f"; echo $? >> {folder.parent / ABORTED}; kill -ABRT $$" if is_aborting else ""
    stub.write_text(f'#!/bin/sh\n{run} {"" if is_aborting else "exec "}{target} "$@"{end}\n')
    stub.chmod(0o755)


def _write_site(folder: Path) -> Path:
    """Write an environment like this one whose interpreter has PYTHONPATH first; return the folder of its programs."""
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = folder / "lib" / python / "site-packages"
    packages.mkdir(parents=True)
    (folder / "bin").mkdir()
    for name in ("python", "python3", python):
        (folder / "bin" / name).symlink_to(sys._base_executable)  # type: ignore[attr-defined]
    (folder / "pyvenv.cfg").write_text(Path(sys.prefix, "pyvenv.cfg").read_text())
    (packages / "newer.pth").write_text(
        f"import os, site, sys; site.addsitedir({site.getsitepackages()[0]!r}); "
        "sys.path[:0] = filter(None, os.environ.get('PYTHONPATH', '').split(os.pathsep))\n"
    )
    return folder / "bin"


def main(record: str, arguments: list[str], backends: str) -> None:
    """Run as `tritonserver` would, and end as it ends."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, b"newer-triton")  # else there would be two processes called tritonserver
    real = _Real(Path(record))
    if Path(backends).is_dir():
        real.backends = backends
    if "--help" in arguments:
        sys.exit(real.print_help())
    status = asyncio.run(_serve(real, arguments))
    if status < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    sys.exit(status)


class _Real:
    """The installed server, and the ends of its stubs."""

    def __init__(self, record: Path) -> None:
        facts = json.loads(record.read_text())
        root = record.parent.parent.parent
        self.program = str(root / facts["tritonserver"])
        self.backends = str(root / facts["backend_directory"])
        libraries = [str(root / path) for path in facts["library_path"]]
        self.environment = os.environ | {"LD_LIBRARY_PATH": os.pathsep.join(libraries)}
        self._commands: dict[int, str] = {}  # of stubs that lived when they were last looked at

    def print_help(self) -> int:
        found = subprocess.run(
            [self.program, "--help"], env=self.environment, capture_output=True, text=True, check=False
        )
        print(found.stdout + found.stderr)  # noqa: T201
        print("".join(f"  --{flag} <value>\n\tOf the newer server.\n" for flag in _FLAGS))  # noqa: T201
        return found.returncode

    def dead_stubs(self, pid: int) -> list[str]:
        """Return the command lines of stubs that died and were not unloaded."""
        dead = []
        for child in psutil.Process(pid).children():
            try:
                if child.status() == psutil.STATUS_ZOMBIE:
                    dead.append(self._commands.get(child.pid, ""))
                elif "stub" in " ".join(command := child.cmdline()):
                    self._commands[child.pid] = " ".join(command)
            except psutil.NoSuchProcess:
                continue
        return dead


async def _serve(real: _Real, arguments: list[str]) -> int:
    given = dict(argument.removeprefix("--").partition("=")[::2] for argument in arguments)
    port, grpc_port = _free_ports(2)
    has_grpc = given.get("allow-grpc", "true") == "true" and not any(name.startswith("grpc-use-ssl") for name in given)
    ours = {f"--http-port={port}": "--http-port=", **({f"--grpc-port={grpc_port}": "--grpc-port="} if has_grpc else {})}
    kept = [one for one in arguments if not one.startswith((*(f"--{flag}" for flag in _FLAGS), *ours.values()))]
    process = await asyncio.create_subprocess_exec(
        real.program,
        *ours,
        *([] if "backend-directory" in given else [f"--backend-directory={real.backends}"]),
        *kept,
        env=real.environment,
        close_fds=False,
        preexec_fn=lambda: ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL),
    )
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, process.terminate)
    ending = asyncio.create_task(process.wait())
    if not await _listens(port, ending) or (has_grpc and not await _listens(grpc_port, ending)):
        return await ending
    timeout = aiohttp.ClientTimeout(total=None)
    session = aiohttp.ClientSession(
        f"http://127.0.0.1:{port}",
        timeout=timeout,
        auto_decompress=False,
        skip_auto_headers=("Accept-Encoding",),
        connector=aiohttp.TCPConnector(force_close=True),  # the real server would wait for a connection when it ends
    )
    async with session:
        answers = _Answers(session, lambda: real.dead_stubs(process.pid), given)
        application = web.Application(client_max_size=1 << 30)
        application.router.add_route("*", "/{path:.*}", answers.answer)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=1)
        await runner.setup()
        await web.TCPSite(runner, given.get("http-address", "127.0.0.1"), int(given["http-port"])).start()
        looking = asyncio.create_task(_look(answers.dead_stubs))
        if has_grpc:
            status = await _serve_grpc(f"127.0.0.1:{grpc_port}", given, answers, process, ending)
        else:
            status = await ending
        looking.cancel()
        await runner.cleanup()
    return status


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


async def _serve_grpc(
    real: str,
    given: dict[str, str],
    answers: "_Answers",
    process: asyncio.subprocess.Process,
    ending: "asyncio.Task[int]",
) -> int:
    """Answer gRPC until the real server ends; return the status to end with."""
    asked = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, asked.set)
    calls = GrpcAnswers(real, answers.is_unready, takes_shared_memory=answers.takes_shared_memory)
    await calls.start(f"{given.get('grpc-address', '127.0.0.1')}:{given['grpc-port']}")
    waiting = asyncio.create_task(asked.wait())
    await asyncio.wait({waiting, ending}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if ending.done():
        await calls.stop(0)
        return ending.result()
    if not await calls.stop(float(given.get("exit-timeout-secs", "30"))):
        process.kill()
        await ending
        return -signal.SIGSEGV
    process.terminate()
    return await ending


async def _listens(port: int, ending: "asyncio.Task[int]") -> bool:
    """Wait until the real server listens; False: it has ended."""
    while not ending.done():
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(_POLL_S)
        else:
            writer.close()
            return True
    return False


async def _look(dead_stubs: Callable[[], list[str]]) -> None:
    """Learn which stub is of which model while they live."""
    while True:
        dead_stubs()
        await asyncio.sleep(_POLL_S)


class _Answers:
    def __init__(
        self, session: aiohttp.ClientSession, dead_stubs: Callable[[], list[str]], given: dict[str, str]
    ) -> None:
        self.dead_stubs = dead_stubs
        self._session = session
        self._repository = Path(given["model-repository"])
        self.takes_shared_memory = given.get("allow-client-shm", "false") in ("true", "1")
        self._max_bytes = int(given.get("http-max-input-size", _MAX_BYTES))

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        if refusal := self._refusal(request, body):
            return web.json_response({"error": refusal}, status=400)
        if self._is_unready_path(request.path):
            return web.Response(status=400)
        if load := _LOAD.fullmatch(request.path):
            _take_out_new_field(self._repository / load[1] / "config.pbtxt")
        headers = {name: value for name, value in request.headers.items() if name.lower() in _FORWARDED}
        async with self._session.request(request.method, request.rel_url, data=body or None, headers=headers) as real:
            response = web.StreamResponse(status=real.status)
            response.content_type = real.content_type
            for name in ("Inference-Header-Content-Length", "Content-Length", "Content-Encoding"):
                if name in real.headers:
                    response.headers[name] = real.headers[name]
            await response.prepare(request)
            async for piece in real.content.iter_any():
                await response.write(piece)
            await response.write_eof()
            return response

    def _refusal(self, request: web.Request, body: bytes) -> str | None:
        if _SHM_CALL.fullmatch(request.path) and not self.takes_shared_memory:
            return NO_SHM
        length = int(request.headers.get("Inference-Header-Content-Length", len(body)))
        if length > self._max_bytes:
            return (
                f"request JSON size of {length} bytes exceeds the maximum allowed input size of {self._max_bytes} "
                "bytes. Use --http-max-input-size to increase the limit."
            )
        if length > _MOST_FOR_REAL:
            return "observed: status 400"
        if _depth(body[:length]) > _MAX_DEPTH:
            return f"JSON nesting depth exceeds maximum allowed limit ({_MAX_DEPTH})"
        return None

    def _is_unready_path(self, path: str) -> bool:
        if path == "/v2/health/ready":
            return self.is_unready("", "")
        asked = _MODEL_READY.fullmatch(path)
        return asked is not None and self.is_unready(asked[1], asked[2] or "")

    def is_unready(self, model: str, version: str) -> bool:
        """Return whether a stub of the model is dead; of any model for ""."""
        if not model:
            return bool(self.dead_stubs())
        mark = f"/{model}/{version}/model.py" if version else f"/{model}/"
        return any(mark in command for command in self.dead_stubs())


def _take_out_new_field(config: Path) -> None:
    if config.is_file() and _NEW_FIELD.search(text := config.read_text()):
        config.write_text(_NEW_FIELD.sub("", text))


def _depth(text: bytes) -> int:
    deepest = depth = 0
    for found in _BRACKETS.finditer(text):
        if found[0] in b"[{":
            depth += 1
            deepest = max(deepest, depth)
        elif found[0] in b"]}":
            depth -= 1
    return deepest
