# SPDX-License-Identifier: Apache-2.0
"""A rendered pod on this machine, as the kubelet and a runtime would run it. Needs root.

Its init containers run, then its first one, with namespaces and an address of its own, a read-only root, its user, no
capabilities, and its volumes.

The root is this machine's with the project over it, as the Dockerfile puts it: what `.dockerignore` lets through is in
/opt/trireme, and `trireme` on PATH. Not here: images, the limits of CPU and memory, seccomp.
"""

import atexit
import contextlib
import functools
import itertools
import os
import shlex
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import psutil
import pytest
from chart_here import ROOT, Documents, of_kind
from process_words import words_of
from pyroute2 import IPRoute, NetNS

IMAGE_PATH = "/opt/trireme-environment/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_ENVIRONMENT = "/opt/environment"
_NAMESPACES = ("--mount", "--pid", "--net", "--ipc", "--uts", "--fork", "--kill-child")
_subnets = itertools.count(os.getpid() % 200)
_START_S = 30.0


class Pod:
    """A pod that runs while entered.

    Args:
        folder: of this pod alone.
        template: of a pod, as the chart makes it.
        documents: hold the ConfigMaps that it mounts, if any.
        secrets: files of each Secret that it mounts, by name.
        folders: what lies behind each claim and each path of the node that it mounts.

    Attributes:
        host: its address, as others in the cluster reach it.
    """

    def __init__(
        self,
        folder: Path,
        template: Mapping[str, Any],
        documents: Documents,
        *,
        secrets: Mapping[str, Mapping[str, str]] | None = None,
        folders: Mapping[str, Path] | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self.spec = template["spec"]
        self._annotations = template["metadata"]["annotations"]
        self.container = self.spec["containers"][0]
        self._config_maps = {
            found["metadata"]["name"]: found.get("data", {}) for found in of_kind(documents, "ConfigMap")
        }
        self._secrets = secrets or {}
        self._folders = folders or {}
        self._root = folder / "root"
        self.log_path = folder / "container.log"

    def __enter__(self) -> Self:
        self._write_volumes()
        for container in self.spec.get("initContainers", []):
            status = self._start(container, is_connected=False).wait(60)
            assert status == 0, self.log()
        self.process = self._start(self.container, is_connected=True)
        try:
            self._connect()
            self.process_1 = self._find_process_1()
        except BaseException:
            self.process.kill()
            raise
        return self

    def _start(self, container: Mapping[str, Any], *, is_connected: bool) -> "subprocess.Popen[bytes]":
        script = self._folder / f"{container['name']}.sh"
        script.write_text(self._runtime(container, is_connected=is_connected))
        with self.log_path.open("ab") as log:
            return subprocess.Popen(
                ["unshare", *_NAMESPACES, "bash", script], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            self.process_1.kill()
        self.process.wait(30)

    def log(self) -> str:
        """Return what the container has written."""
        return self.log_path.read_text(errors="replace")

    def probe(self, kind: str) -> bool:
        """Return whether a probe succeeds, asked from the node as the kubelet asks."""
        get = self.container[f"{kind}Probe"]["httpGet"]
        return self.get(get["port"], get["path"]) == 200

    def get(self, port_name: str, path: str, *, headers: Mapping[str, str] | None = None) -> int | None:
        """Return the status of an answer; None: none. A POST where there are headers."""
        request = urllib.request.Request(
            f"http://{self.host}:{self.port(port_name)}{path}", headers=dict(headers or {})
        )
        if headers is not None:
            request.data = b"{}"
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as exc:
            exc.close()
            return exc.code
        except OSError:
            return None

    def metric(self, name: str) -> float:
        """Return the sum of a metric's samples on the pod's metrics page."""
        with urllib.request.urlopen(f"http://{self.host}:{self.port('metrics')}/metrics", timeout=5) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name}{{"))

    def port(self, name: str) -> int:
        """Return a port of the container."""
        [found] = [port["containerPort"] for port in self.container["ports"] if port["name"] == name]
        return int(found)

    def exec(self, command: Sequence[str]) -> "subprocess.Popen[str]":
        """Run a command in the container, as a hook is run."""
        inside = [
            "nsenter",
            "--target",
            str(self.process_1.pid),
            "--mount",
            "--pid",
            "--net",
            "--ipc",
            "--uts",
            "--root",
        ]
        return subprocess.Popen(
            [*inside, *self._as_user(command, self.container)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def status_of(self, command: Sequence[str]) -> int:
        """Return the exit status of a command in the container."""
        with self.exec(command) as process:
            process.communicate(timeout=30)
        return process.returncode

    def processes(self) -> list[psutil.Process]:
        """Return the processes of the container."""
        return [self.process_1, *self.process_1.children(recursive=True)]

    def _write_volumes(self) -> None:
        """Write the pod's volumes that are files."""
        owner = self.spec["securityContext"]["runAsUser"], self.spec["securityContext"]["fsGroup"]
        for volume in self.spec["volumes"]:
            if self._folder_of(volume) is not None:
                continue
            folder = self._folder / "volumes" / volume["name"]
            folder.mkdir(parents=True)
            if "downwardAPI" in volume:
                paths = {item["path"]: item["fieldRef"]["fieldPath"] for item in volume["downwardAPI"]["items"]}
                files = {name: self._annotations[field.split("'")[1]] for name, field in paths.items()}
            elif "configMap" in volume:
                files = self._config_maps[volume["configMap"]["name"]]
            elif "secret" in volume:
                content = self._secrets[volume["secret"]["secretName"]]
                items = volume["secret"].get("items") or [{"key": key, "path": key} for key in content]
                files = {item["path"]: content[item["key"]] for item in items}
            else:
                assert "emptyDir" in volume, volume
                files = {}
            for name, text in files.items():
                (folder / name).write_text(text)
            if "secret" in volume:
                for path in folder.iterdir():
                    path.chmod(volume["secret"]["defaultMode"])
                    os.chown(path, 0, owner[1])
            if "emptyDir" in volume:
                os.chown(folder, 0, owner[1])
                folder.chmod(0o2777)
        containers = [self.container, *self.spec.get("initContainers", [])]
        for mount in (mount for container in containers for mount in container["volumeMounts"]):
            path = self._folder / "volumes" / mount["name"] / mount.get("subPath", "")
            if not path.exists() and path.parent.exists():  # a part of an emptyDir
                path.mkdir()
                path.chmod(0o2777)
                os.chown(path, 0, owner[1])

    def _folder_of(self, volume: Mapping[str, Any]) -> Path | None:
        """Return the folder of a volume that is not the pod's alone."""
        if "hostPath" in volume:
            return self._folders[volume["hostPath"]["path"]]
        if "persistentVolumeClaim" in volume:
            return self._folders[volume["persistentVolumeClaim"]["claimName"]]
        return None

    def _runtime(self, container: Mapping[str, Any], *, is_connected: bool) -> str:
        """Return the script of a container runtime, process 1 of the namespaces until it becomes the command."""
        layer, root = self._folder / "layer", self._root
        lines = [
            "set -eu",
            "mount --make-rprivate /",
            f"mkdir -p {layer} {root}",
            f"mount -t tmpfs -o mode=755 layer {layer}",
            f"mkdir -p {layer}/upper/root {layer}/work",
            f"chmod 755 {layer}/upper/root",  # where a Python of this machine may lie
            f"cp -a {image()}/. {layer}/upper/",
            f"mount -t overlay -o lowerdir=/,upperdir={layer}/upper,workdir={layer}/work overlay {root}",
            f"mkdir -p {root}/proc {root}/dev {root}/sys {root}/opt/trireme/.tools/triton {root}{_ENVIRONMENT}",
            f"mount --bind {ROOT}/.tools/triton {root}/opt/trireme/.tools/triton",  # in the image it is Triton's own
            f"mount --bind {ROOT}/.venv {root}{_ENVIRONMENT}",  # the checkout may lie in /tmp, and the pod has its own
            *(f"mount --bind {image()}/installed.pth {root}{_ENVIRONMENT}/{path}" for path in _installed_paths()),
            f"mount -t tmpfs -o mode=755 dev {root}/dev",
            *(
                f"touch {root}/dev/{name}; mount --bind /dev/{name} {root}/dev/{name}"
                for name in ("null", "zero", "urandom", "random")
            ),
            *(
                f"ln -s /proc/self/fd/{number} {root}/dev/{name}"
                for number, name in enumerate(("stdin", "stdout", "stderr"))
            ),
            f"ln -s /proc/self/fd {root}/dev/fd",
        ]
        for mount in container["volumeMounts"]:
            lines += self._mounted(mount)
        lines += [
            f"mount -o remount,ro,bind {root}" if container["securityContext"]["readOnlyRootFilesystem"] else "",
            f"mount -t proc proc {root}/proc",
            "until grep -q eth0: /proc/self/net/dev; do sleep 0.02; done" if is_connected else "",
            f"exec chroot {root} {shlex.join(self._as_user(container['command'], container))}",
        ]
        return "\n".join(lines) + "\n"

    def _mounted(self, mount: Mapping[str, Any]) -> list[str]:
        [volume] = [volume for volume in self.spec["volumes"] if volume["name"] == mount["name"]]
        target = f"{self._root}{mount['mountPath']}"
        source = self._folder_of(volume) or self._folder / "volumes" / volume["name"]
        source /= mount.get("subPath", "")
        if volume.get("emptyDir", {}).get("medium") == "Memory":
            size = volume["emptyDir"]["sizeLimit"].removesuffix("i").lower()
            return [f"mkdir -p {target}", f"mount -t tmpfs -o size={size},mode=1777 shm {target}"]
        make = f"mkdir -p {target}" if source.is_dir() else f"mkdir -p $(dirname {target}); touch {target}"
        read_only = [f"mount -o remount,ro,bind {target}"] if mount.get("readOnly") else []
        return [make, f"mount --bind {source} {target}", *read_only]

    def _as_user(self, command: Sequence[str], container: Mapping[str, Any]) -> list[str]:
        """Return a command with the container's user, capabilities, environment and folder, and nothing else."""
        security = self.spec["securityContext"] | container["securityContext"]
        assert security["capabilities"] == {"drop": ["ALL"]}
        user, group = security["runAsUser"], security["runAsGroup"]
        privileges = [] if security["allowPrivilegeEscalation"] else ["--no-new-privs"]
        environment = {"PATH": IMAGE_PATH} | {one["name"]: one["value"] for one in container.get("env", [])}
        return [
            *["setpriv", f"--reuid={user}", f"--regid={group}", f"--groups={security['fsGroup']}"],
            *["--bounding-set=-all", "--inh-caps=-all", *privileges],
            *["env", "-i", f"--chdir={container['workingDir']}", *(f"{k}={v}" for k, v in environment.items())],
            *command,
        ]

    def _connect(self) -> None:
        """Connect the node and the pod's network by a cable."""
        number = next(_subnets)
        node, self.host = f"10.213.{number % 256}.1", f"10.213.{number % 256}.2"
        name = f"pod{os.getpid() % 100_000}-{number % 1000}"
        ours = Path("/proc/self/ns/net").readlink()
        place = Path(f"/proc/{self.process.pid}/ns/net")
        self._wait(lambda: place.readlink() != ours)
        with IPRoute() as here, NetNS(str(place)) as there:
            here.link("add", ifname=name, kind="veth", peer={"ifname": "eth0", "net_ns_fd": str(place)})
            for side, interface, address in ((here, name, node), (there, "eth0", self.host)):
                index = side.link_lookup(ifname=interface)[0]
                side.addr("add", index=index, address=address, prefixlen=30)
                side.link("set", index=index, state="up")
            there.link("set", index=there.link_lookup(ifname="lo")[0], state="up")

    def _find_process_1(self) -> psutil.Process:
        """Return process 1 when it has become the container's command."""

        def is_there() -> bool:
            assert self.process.poll() is None, self.log()
            children = psutil.Process(self.process.pid).children()
            return bool(children) and "trireme" in " ".join(words_of(children[0])[:4])

        self._wait(is_there)
        return psutil.Process(self.process.pid).children()[0]

    def _wait(self, is_so: Any) -> None:
        deadline_s = time.monotonic() + _START_S
        while not is_so():
            assert time.monotonic() < deadline_s, self.log()
            time.sleep(0.02)


@functools.cache
def image() -> Path:
    """Return what the image adds to its base, made once: the build's context, and `trireme`."""
    folder = ROOT / "build" / f"image-{os.getpid()}"
    shutil.rmtree(folder, ignore_errors=True)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    code = folder / "opt/trireme"
    code.mkdir(parents=True)
    for path in build_context():
        (code / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / path, code / path)
    (folder / "installed.pth").write_text("/opt/trireme\n")
    program = folder / "opt/trireme-environment/bin/trireme"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\nexec {_ENVIRONMENT}/bin/python -m trireme "$@"\n')
    program.chmod(0o755)
    return folder


def _installed_paths() -> list[Path]:
    """Return the files in this environment that say where the project lies, by their paths in it.

    In the pod they say the image's place.
    """
    found = [path.relative_to(ROOT / ".venv") for path in (ROOT / ".venv").rglob("__editable__*trireme*.pth")]
    assert found, "the project is not installed in .venv"
    return found


def build_context() -> list[Path]:
    """Return the files that `.dockerignore` lets through; of its language what we use: `*`, `!path` and `**/name`."""
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert lines[0] == "*"
    kept = [line[1:] for line in lines if line.startswith("!")]
    never = {line.removeprefix("**/") for line in lines[1:] if not line.startswith("!")}
    files = [path for each in kept for path in ((ROOT / each).rglob("*") if (ROOT / each).is_dir() else [ROOT / each])]
    return [path.relative_to(ROOT) for path in files if path.is_file() and not never & set(path.parts)]


@functools.cache
def _why_no_pods() -> str:
    if os.geteuid() != 0:
        return "a pod's user and mounts need root"
    overlay = "lowerdir=/,upperdir=/mnt/u,workdir=/mnt/w"
    steps = ["mount --make-rprivate /", "mount -t tmpfs t /mnt", "mkdir /mnt/u /mnt/w /mnt/r"]
    script = " && ".join([*steps, f"mount -t overlay -o {overlay} o /mnt/r"])
    with contextlib.suppress(OSError):
        tried = subprocess.run(
            ["unshare", *_NAMESPACES, "sh", "-c", script], capture_output=True, text=True, check=False, timeout=30
        )
        return "" if tried.returncode == 0 else f"no namespaces or no overlay: {tried.stderr.strip()}"
    return "there is no unshare"


def skip_without_pods() -> None:
    """Skip the test where pods cannot be run, and say why."""
    if why := _why_no_pods():
        pytest.skip(why)


def pod_template(documents: Documents, server: str) -> dict[str, Any]:
    """Return the pod template of a server's Deployment."""
    [found] = [
        one for one in of_kind(documents, "Deployment") if one["metadata"]["labels"].get("trireme/server") == server
    ]
    template: dict[str, Any] = found["spec"]["template"]
    return template
