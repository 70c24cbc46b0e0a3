# SPDX-License-Identifier: Apache-2.0
"""A tab of a real headless Chromium, which a test reads, types into and looks at."""

import asyncio
import base64
import contextlib
import json
import threading
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Self

from headless_browser import devtools

WAIT_S = 60.0
_KEYS = {"Enter": (13, "\r"), "Escape": (27, ""), "Tab": (9, ""), " ": (32, " "), "ArrowDown": (40, "")}
_WRONG = {"Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled"}


class BrowserTab:
    """A tab that has loaded a page when entered.

    Args:
        profile: folder of the browser's own files.
        width: of the window in CSS pixels.
        is_dark: the person prefers dark colours.
    """

    def __init__(self, url: str, profile: Path, *, width: int = 1280, height: int = 900, is_dark: bool = False) -> None:
        self._url, self._profile, self._size, self._is_dark = url, profile, (width, height), is_dark
        self._stack = contextlib.AsyncExitStack()

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tab", daemon=True)
        self._thread.start()
        try:
            self._wait_for(self._open())
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._wait_for(self._stack.aclose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def requests(self) -> list[str]:
        """Return every address that the page asked for."""
        return [
            each["params"]["request"]["url"] for each in self._events if each["method"] == "Network.requestWillBeSent"
        ]

    @property
    def complaints(self) -> list[str]:
        """Return what the console said, errors of scripts and what the page's policy forbade.

        Left out is that a request was answered with an error, which a page cannot keep from being said.
        """
        found = [each["params"] for each in self._events if each["method"] in _WRONG]
        return [json.dumps(each) for each in found if each.get("entry", {}).get("source") != "network"]

    def run(self, script: str) -> Any:
        """Return the value of an expression, or what its promise is fulfilled with."""
        found = self._ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def text(self, selector: str) -> str:
        """Return the text of the first element that a selector finds, as it is seen."""
        return str(self.run(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    def wait(self, script: str) -> None:
        """Wait until an expression is true."""
        deadline_s = time.monotonic() + WAIT_S
        while not self.run(f"Boolean({script})"):
            assert time.monotonic() < deadline_s, (script, self.run("document.body.innerText"), self.complaints)
            time.sleep(0.02)

    def type(self, text: str) -> None:
        """Type a text where the focus is."""
        self._ask("Input.insertText", text=text)

    def press(self, key: str, *, shift: bool = False) -> None:
        """Press and release a key."""
        code, text = _KEYS[key]
        fields: dict[str, Any] = {"key": key, "code": key, "windowsVirtualKeyCode": code, "modifiers": 8 * shift}
        down = {"type": "keyDown", "text": text} if text else {"type": "rawKeyDown"}
        self._ask("Input.dispatchKeyEvent", **down, **fields)
        self._ask("Input.dispatchKeyEvent", type="keyUp", **fields)

    def load_again(self) -> None:
        """Load the page once more."""
        self.run("window.isOld = true")
        self._ask("Page.reload")
        deadline_s = time.monotonic() + WAIT_S
        while time.monotonic() < deadline_s:
            with contextlib.suppress(AssertionError):  # between two pages there is none
                if self.run("!window.isOld && document.readyState === 'complete'"):
                    return
            time.sleep(0.02)
        raise AssertionError("the page was not loaded again")

    def accessible(self) -> list[tuple[str, str]]:
        """Return the role and the name of everything that a screen reader is told of."""
        nodes = self._ask("Accessibility.getFullAXTree")["nodes"]
        return [
            (node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes if not node.get("ignored")
        ]

    def screenshot(self, file: Path) -> None:
        """Write a picture of what is seen."""
        file.write_bytes(base64.b64decode(self._ask("Page.captureScreenshot", format="png")["data"]))

    async def _open(self) -> None:
        self._ask_browser, self._events = await self._stack.enter_async_context(devtools(self._profile))
        target = await self._ask_browser("Target.createTarget", url="about:blank")
        attached = await self._ask_browser("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "Accessibility"):
            await self._ask_browser(f"{domain}.enable", self._session)
        width, height = self._size
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        await self._ask_browser("Emulation.setDeviceMetricsOverride", self._session, **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if self._is_dark else "light"}
        await self._ask_browser("Emulation.setEmulatedMedia", self._session, features=[scheme])
        await self._ask_browser("Page.navigate", self._session, url=self._url)
        async with asyncio.timeout(WAIT_S):
            while not any(event["method"] == "Page.loadEventFired" for event in self._events):
                await asyncio.sleep(0.02)

    def _ask(self, method: str, **params: Any) -> Any:
        return self._wait_for(self._ask_browser(method, self._session, **params))

    def _wait_for(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(2 * WAIT_S)
