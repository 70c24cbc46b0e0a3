# SPDX-License-Identifier: Apache-2.0
"""A page in a real headless Chromium: what it asked for, what it complained of, and what its scripts can measure."""

import asyncio
import contextlib
import itertools
import json
import os
import re
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp

from scripts.unpacked_programs import CHROMIUM
from trireme.base.project_files import CODE_ROOT

_START_S = 60.0


class Opened(NamedTuple):
    """The results of opening a page."""

    requests: list[str]  # every address that it asked for
    complaints: list[str]  # of its console, and errors of its scripts
    measured: Any  # what the script returned


def is_there() -> bool:
    return CHROMIUM.is_there(CODE_ROOT)


def open_page(url: str, *, script: str, width: int, profile: Path) -> Opened:
    """Open it in a window so wide, let it load, and run a script whose value is JSON."""
    return asyncio.run(_open(url, script=script, width=width, profile=profile))


async def _open(url: str, *, script: str, width: int, profile: Path) -> Opened:
    async with devtools(profile) as (ask, events):
        target = await ask("Target.createTarget", url="about:blank")
        attached = await ask("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            await ask(f"{domain}.enable", session)
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        await ask("Emulation.setDeviceMetricsOverride", session, **size)
        await ask("Page.navigate", session, url=url)
        async with asyncio.timeout(_START_S):
            while not any(event["method"] == "Page.loadEventFired" for event in events):
                await asyncio.sleep(0.02)
        found = await ask("Runtime.evaluate", session, expression=script, returnByValue=True)
        if "exceptionDetails" in found:
            raise AssertionError(found["exceptionDetails"])
    asked = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
    wrong = {"Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled"}
    complaints = [json.dumps(event["params"]) for event in events if event["method"] in wrong]
    return Opened(asked, complaints, found["result"]["value"])


def _environment() -> dict[str, str]:
    """Return the environment of an unpacked Chromium: its libraries and fonts are in no usual place."""
    unpacked = CODE_ROOT / CHROMIUM.directory
    if not unpacked.is_dir():
        return dict(os.environ)
    fonts = {"FONTCONFIG_SYSROOT": str(unpacked)} if (unpacked / "etc/fonts").is_dir() else {}
    libraries = os.pathsep.join(map(str, CHROMIUM.library_folders(CODE_ROOT)))
    return os.environ | {"LD_LIBRARY_PATH": libraries} | fonts


@contextlib.asynccontextmanager
async def devtools(profile: Path) -> AsyncIterator[tuple[Any, list[dict[str, Any]]]]:
    """Start a browser, and yield how to ask it (Chrome DevTools Protocol)."""
    command = [
        str(CHROMIUM.program(CODE_ROOT)), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
        "--no-first-run", "--remote-debugging-port=0", f"--user-data-dir={profile}", "about:blank",
    ]  # fmt: skip
    process = subprocess.Popen(command, env=_environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        address = await asyncio.wait_for(asyncio.to_thread(_address, process), _START_S)
        async with aiohttp.ClientSession() as http, http.ws_connect(address, max_msg_size=0) as socket:
            events: list[dict[str, Any]] = []
            answers: dict[int, asyncio.Future[Any]] = {}
            numbers = itertools.count(1)

            async def listen() -> None:
                async for message in socket:
                    said = json.loads(message.data)
                    if "id" in said:
                        answers[said["id"]].set_result(said)
                    else:
                        events.append(said)

            async def ask(method: str, session: str | None = None, **params: Any) -> Any:
                number = next(numbers)
                answers[number] = asyncio.get_running_loop().create_future()
                asked = {"id": number, "method": method, "params": params}
                await socket.send_json(asked | ({"sessionId": session} if session else {}))
                said = await asyncio.wait_for(answers[number], _START_S)
                assert "error" not in said, said
                return said["result"]

            listening = asyncio.create_task(listen())
            yield ask, events
            listening.cancel()
    finally:
        process.kill()
        process.communicate()


def _address(process: "subprocess.Popen[bytes]") -> str:
    assert process.stderr is not None
    for line in process.stderr:
        if match := re.search(rb"DevTools listening on (ws://\S+)", line):
            return match[1].decode()
    raise AssertionError("the browser ended before it listened")
