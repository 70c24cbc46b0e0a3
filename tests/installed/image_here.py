# SPDX-License-Identifier: Apache-2.0
"""Images from a Dockerfile over the stand-in of its base, and containers of them. Needs root.

The instructions are carried out in order, RUN by `sh -c` as root in a root of its own, on a machine without a GPU and
without a network. Substitutes: `apt-get` does nothing (openssh is not installed), and pip takes the wheels that
`.tools/gpu-image-wheels` holds; their hashes are compared as ever. A container has the image's user, environment and
folder; where it is read-only, as the chart runs it, /tmp, /dev/shm and /var/lib/trireme can be written to.
"""

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from base_image import DRIVER, PATH, bind_mounts, write_base_image, write_driver
from chart_here import ROOT
from dockerfile import assignments, read_dockerfile
from pod_here import build_context

_START_S = 30.0
_SUBSTITUTES = "/opt/substitutes"
# What the machine that builds is told, and no container: pip without an index, whatever this machine's configuration.
WITHOUT_INDEX = {
    "PIP_NO_INDEX": "1",
    "PIP_FIND_LINKS": "/opt/wheels-of-tests",
    "PIP_CONFIG_FILE": "/dev/null",
    "PIP_ROOT_USER_ACTION": "ignore",
}

_OWN = ("/opt/venv-tritonserver", "/opt/tritonserver", "/opt/fakes", "/app")  # of the base image


class FailedStep(Exception):
    """An instruction that did not end well; `output` is what it said."""

    def __init__(self, instruction: str, output: str) -> None:
        super().__init__(f"{instruction}\n{output}")
        self.output = output


class Image:
    """An image while entered; its processes end with it.

    Args:
        folder: of this image alone.
        has_tensorrt_llm: of its base.
        mounts: what else lies at a place of the root, for the build and for containers.
    """

    def __init__(
        self, folder: Path, *, has_tensorrt_llm: bool = True, mounts: Mapping[str, Path] | None = None
    ) -> None:
        self._folder = folder
        self._has_tensorrt_llm = has_tensorrt_llm
        self._own_mounts = dict(mounts or {})
        self._layer = folder / "layer"
        self.root = folder / "root"
        self.environment: dict[str, str] = {"PATH": PATH, "NVIDIA_TRITON_SERVER_VERSION": "26.07"}
        self.user = "0:0"
        self.workdir = "/"
        self.entrypoint: list[str] = []
        self.said = ""  # by the steps of the build

    def __enter__(self) -> Self:
        base = self._folder / "base"
        write_base_image(base, has_tensorrt_llm=self._has_tensorrt_llm)
        write_driver(self._folder / "driver")
        script = self._folder / "mounts.sh"
        script.write_text("\n".join([*self._mounts(base), "touch ready", "exec sleep infinity"]) + "\n")
        with (self._folder / "mounts.log").open("wb") as log:
            self._process = subprocess.Popen(
                ["unshare", "--mount", "--pid", "--fork", "--kill-child", "bash", script],
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
            )
        deadline_s = time.monotonic() + _START_S
        while not (self._folder / "ready").exists():
            assert self._process.poll() is None, (self._folder / "mounts.log").read_text()
            assert time.monotonic() < deadline_s
            time.sleep(0.02)
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _mounts(self, base: Path) -> list[str]:
        layer, root = self._layer, self.root
        lines = [
            "set -eu",
            "mount --make-rprivate /",
            f"mkdir -p {layer} {root}",
            f"mount -t tmpfs -o mode=755 layer {layer}",
            f"mkdir -p {layer}/upper/root {layer}/work {layer}/upper/tmp {layer}/upper{_SUBSTITUTES}",
            f"chmod 755 {layer}/upper/root",  # where a Python of this machine may lie
            f"chmod 1777 {layer}/upper/tmp",
            f"mount -t overlay -o lowerdir=/,upperdir={layer}/upper,workdir={layer}/work overlay {root}",
            f"printf '#!/bin/sh\\necho substitute: apt-get $*\\n' > {root}{_SUBSTITUTES}/apt-get",
            f"chmod 755 {root}{_SUBSTITUTES}/apt-get",
            f"mount --rbind /dev {root}/dev",
            f"mount --rbind -o ro /sys {root}/sys",  # lscpu reads there, by which vLLM finds the cores
            f"mount -t tmpfs -o mode=1777 tmp {root}/tmp",
        ]
        own = {place: base / place.removeprefix("/") for place in _OWN}
        for place, source in {**own, **bind_mounts(), **self._own_mounts}.items():
            lines += [f"mkdir -p {root}{place}", f"mount --bind {source.resolve()} {root}{place}"]
        return lines

    def build(
        self,
        dockerfile: str,
        arguments: Mapping[str, str] | None = None,
        *,
        instead: Mapping[str, str] | None = None,
        files: Mapping[str, str] | None = None,
    ) -> None:
        """Carry out the instructions; what they say is in `said`.

        Args:
            instead: shell commands by a part of the RUN in the place of which they run.
            files: other texts of files that are copied, by their paths in the repository.

        Raises:
            FailedStep: one has failed.
        """
        variables = dict(arguments or {})
        for word, text in read_dockerfile(dockerfile):
            match word:
                case "ARG":
                    for name, value in assignments(text, self.environment).items():
                        variables.setdefault(name, value)
                case "ENV":
                    self.environment |= assignments(text, self.environment)
                case "RUN":
                    others = [command for part, command in (instead or {}).items() if part in text]
                    self.said += self._run(others[0] if others else text, variables)
                case "COPY":
                    source, target = text.split()
                    self._copy(source, target, files or {})
                case "USER":
                    self.user = text
                case "WORKDIR":
                    self.workdir = text
                    self._inside(["mkdir", "-p", text], {}, user="0:0", workdir="/")
                case "ENTRYPOINT":
                    self.entrypoint = [part.strip(' "') for part in text.strip("[]").split(",")]
                case "FROM" | "CMD" | "HEALTHCHECK":
                    pass
                case _:
                    raise AssertionError(f"no such instruction is known here: {word}")

    def _run(self, text: str, variables: Mapping[str, str]) -> str:
        environment = {**WITHOUT_INDEX, **variables, **self.environment}
        environment["PATH"] = f"{_SUBSTITUTES}:{environment['PATH']}"
        done = self._inside(["sh", "-ec", text], environment, user="0:0", workdir="/")
        if done.returncode:
            raise FailedStep(f"RUN {text}", done.stdout + done.stderr)
        return done.stdout + done.stderr

    def _copy(self, source: str, target: str, files: Mapping[str, str]) -> None:
        """Copy what `.dockerignore` lets through of the repository."""
        place = self._folder / "context"
        shutil.rmtree(place, ignore_errors=True)
        for path in build_context():
            if source == "." or path.match(source) or path.is_relative_to(source):
                relative = path.relative_to(source) if path.is_relative_to(source) and path != Path(source) else path
                relative = Path(path.name) if "*" in source or path == Path(source) else relative
                (place / relative).parent.mkdir(parents=True, exist_ok=True)
                if str(path) in files:
                    (place / relative).write_text(files[str(path)])
                else:
                    shutil.copyfile(ROOT / path, place / relative)
        assert place.is_dir(), f"COPY {source}: nothing of it is in the context"
        copying = f"mkdir -p {self.root}{target} && cp -a {place}/. {self.root}{target}/"
        subprocess.run([*self._entering(), "sh", "-ec", copying], check=True, timeout=60)

    def run(
        self,
        command: Sequence[str],
        *,
        has_gpu: bool = True,
        is_read_only: bool = True,
        volumes: Mapping[str, Path | None] | None = None,
        environment: Mapping[str, str] | None = None,
        timeout_s: float = 120.0,
    ) -> "subprocess.CompletedProcess[str]":
        """Run a container to its end, as `docker run --gpus all --read-only --volume ...` with the image's user.

        Args:
            volumes: what lies at a place in it; None: an empty folder.
        """
        prelude = self._container_mounts(volumes or {}, has_gpu=has_gpu, is_read_only=is_read_only)
        return self._inside(
            command,
            self.environment | ({"LD_LIBRARY_PATH": str(DRIVER)} if has_gpu else {}) | dict(environment or {}),
            user=self.user,
            workdir=self.workdir,
            timeout_s=timeout_s,
            prelude=prelude,
        )

    def _container_mounts(self, volumes: Mapping[str, Path | None], *, has_gpu: bool, is_read_only: bool) -> str:
        """Return the mounts in namespaces of the container's own.

        They are its volumes, what can be written to, and the driver, and nothing else.
        """
        user = self.user.replace(":", ",gid=")
        root = self.root
        lines = [
            "set -eu",
            *(f"mount -t tmpfs -o mode=1777 run {root}{place}" for place in ("/tmp", "/dev/shm")),
            f"test ! -d {root}/var/lib/trireme || mount -t tmpfs -o uid={user} run {root}/var/lib/trireme",
        ]
        for place, source in volumes.items():
            mount = "-t tmpfs none" if source is None else f"--bind {source.resolve()}"
            lines += [f"mkdir -p {root}{place}", f"mount {mount} {root}{place}"]
        if has_gpu:
            driver, smi = self._folder / "driver", "/usr/local/bin/nvidia-smi"
            lines += [f"mkdir -p {root}{DRIVER}", f"mount --bind {driver}{DRIVER} {root}{DRIVER}"]
            lines += [f"touch {root}{smi}", f"mount --bind {driver}{smi} {root}{smi}"]
        if is_read_only:
            lines += [f"mount -o remount,ro,bind {root}{place}" for place in ("", *_OWN, *self._own_mounts)]
        return "\n".join(lines)

    def _inside(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        user: str,
        workdir: str,
        timeout_s: float = 300.0,
        prelude: str = "",
    ) -> "subprocess.CompletedProcess[str]":
        full = self._command(command, environment, user=user, workdir=workdir, prelude=prelude)
        return subprocess.run(
            full,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=timeout_s,
            stdin=subprocess.DEVNULL,
        )

    def _command(
        self, command: Sequence[str], environment: Mapping[str, str], *, user: str, workdir: str, prelude: str
    ) -> list[str]:
        uid, _, gid = user.partition(":")
        as_user = (
            ["setpriv", f"--reuid={uid}", f"--regid={gid}", "--clear-groups", "--no-new-privs"] if uid != "0" else []
        )
        inside = shlex.join(
            [
                *as_user,
                *["env", "-i", f"--chdir={workdir}", *(f"{name}={value}" for name, value in environment.items())],
                *command,
            ]
        )
        script = f"{prelude}\nmount -t proc proc {self.root}/proc\nexec chroot {self.root} {inside}"
        return [*self._entering(), "unshare", "--mount", "--pid", "--fork", "--kill-child", "bash", "-c", script]

    def _entering(self) -> list[str]:
        """Return the command that enters the mounts, which the process below `unshare --fork` holds."""
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        return ["nsenter", "--target", children[0], "--mount"]
