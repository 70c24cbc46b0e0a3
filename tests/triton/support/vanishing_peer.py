# SPDX-License-Identifier: Apache-2.0
"""A server and a client in network namespaces of their own, and the link between them cut while the client waits.

Run by itself, inside a new network namespace (`unshare --net`); prints what the server's KV cache did, as JSON. The
namespaces end with the processes in them, so nothing is left behind.
"""

import json
import subprocess
import sys
import time
from pathlib import Path

from running_server import PROJECT, RunningServer, deployment_text

SERVER, CLIENT = "10.111.0.1", "10.111.0.2"
SLOW = {"provider": "simulated", "step_ms": 20.0}
FOLDER = Path(__file__).parent

# It gets its end of the link first, and says so when its request is running or sent.
PEER = """
import json, subprocess, sys
from raw_calls import engine_request, stream
sys.stdin.readline()
for command in (f"addr add {sys.argv[1]}/30 dev peer", "link set peer up"):
    subprocess.run(["ip", *command.split()], check=True)
for response in stream(sys.argv[2], "tensorrt_llm", engine_request([7] * 400, 1500, **json.loads(sys.argv[3]))):
    pass
"""


def run(*command: str) -> None:
    subprocess.run(command, check=True)


def set_link(peer: int, state: str) -> None:
    """Set the peer's end of the link, so that ours looks to the server as it did."""
    run("nsenter", "--net", "--target", str(peer), "ip", "link", "set", "peer", state)


def cut_while_it_runs(server: RunningServer, tensors: dict[str, object], wait_s: float) -> float | None:
    """Return the seconds from the cut until no KV block is used; None: still some after `wait_s`."""
    command = ["unshare", "--net", sys.executable, "-c", PEER, CLIENT, f"{SERVER}:{server.grpc_port}"]
    peer = subprocess.Popen(
        [*command, json.dumps(tensors)], cwd=FOLDER, env={"PYTHONPATH": str(PROJECT)}, stdin=subprocess.PIPE
    )
    assert peer.stdin is not None
    try:
        time.sleep(1)  # until it is in its namespace
        run("ip", "link", "add", "ours", "type", "veth", "peer", "name", "peer", "netns", str(peer.pid))
        run("ip", "addr", "add", f"{SERVER}/30", "dev", "ours")
        run("ip", "link", "set", "ours", "up")
        peer.stdin.write(b"go\n")
        peer.stdin.flush()
        deadline_s = time.monotonic() + 20
        while server.used_kv_blocks() < 400 / 16:
            assert time.monotonic() < deadline_s, "the request does not run"
            time.sleep(0.02)
        set_link(peer.pid, "down")
        cut_s = time.monotonic()
        while time.monotonic() < cut_s + wait_s:
            if server.used_kv_blocks() == 0:
                return time.monotonic() - cut_s
            time.sleep(0.02)
        return None
    finally:
        set_link(peer.pid, "up")  # so that a server that has not noticed is told now, and can stop
        peer.kill()
        peer.communicate()


def main(folder: Path, triton: dict[str, object], tensors: dict[str, object], wait_s: float) -> None:
    """Run the program of the module."""
    run("ip", "link", "set", "lo", "up")
    text = deployment_text("keepalive", engine=SLOW, triton={"host": "0.0.0.0", **triton})
    server = RunningServer(text, folder, options=("--exit-timeout-s", "0"))
    with server:
        json.dump({"free_after_s": cut_while_it_runs(server, tensors, wait_s)}, sys.stdout)


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]), json.loads(sys.argv[3]), float(sys.argv[4]))
