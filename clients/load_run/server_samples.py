# SPDX-License-Identifier: Apache-2.0
"""The samples of the server's Prometheus metrics, read again and again while a load runs."""

import threading
import time
import urllib.error
import urllib.request
from http.client import HTTPException, InvalidURL
from urllib.parse import urlsplit

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from clients.access import NO_ACCESS, Access
from clients.access_errors import refused_connection, refused_status
from clients.tls_context import http_call
from trireme.base.errors import ServingError

_PREFIXES = ("trireme_", "nv_trt_llm_", "nv_gpu_", "nv_inference_pending", "nv_llm_")
_LEFT_OUT = ("_bucket", "_created")  # a report has every request itself
_TIMEOUT_S = 2.0


class ServerSample(msgspec.Struct, frozen=True):
    """The metrics at one moment.

    Attributes:
        at_ns: nanoseconds from the start of the run.
        values: values by ``name{label="value",...}``, labels in order.
    """

    at_ns: int
    values: dict[str, float]


def read_metrics(url: str, access: Access = NO_ACCESS) -> dict[str, float]:
    """Return the metrics of a Triton with our models.

    Args:
        access: certificates and the key for a page over https.

    Raises:
        AccessDenied: the place is not trusted, or wants another key.
        SpecError: a file of `access` cannot be read.
        OSError: nobody answers, or not in HTTP.
        ValueError: it is no address, or what is there is not Prometheus's text.
    """
    call = http_call(url, access)
    try:
        with urllib.request.urlopen(call.request, timeout=_TIMEOUT_S, context=call.context) as response:
            text = response.read().decode()
    except urllib.error.HTTPError as exc:
        with exc:
            if denied := refused_status(exc.code, f"HTTP {exc.code} of {url}", access):
                raise denied from exc
            raise
    except urllib.error.URLError as exc:
        if call.context is not None and (denied := refused_connection(str(exc.reason), urlsplit(url).netloc, access)):
            raise denied from exc
        raise
    except InvalidURL as exc:
        raise ValueError(f"is no address: {exc}") from exc
    except HTTPException as exc:  # is no OSError; its text may be bytes of gRPC
        raise OSError(f"what answers does not speak HTTP ({exc!r})") from exc
    found = {}
    # Most lines of a page are buckets, and reading a line costs more than looking at it.
    lines = "\n".join(line for line in text.split("\n") if not line.partition("{")[0].endswith("_bucket"))
    for family in text_string_to_metric_families(lines):
        if not family.name.startswith(_PREFIXES):
            continue
        for sample in family.samples:
            if not sample.name.endswith(_LEFT_OUT):
                labels = ",".join(f'{key}="{value}"' for key, value in sorted(sample.labels.items()))
                found[f"{sample.name}{{{labels}}}"] = float(sample.value)
    return found


class ServerWatch:
    """A reader of a server's metrics in a thread of its own, inside a `with`.

    Attributes:
        samples: samples so far.
        failure: why there are none, or no more; None: they are whole.
    """

    def __init__(self, url: str, *, start_ns: int, period_s: float = 0.5, access: Access = NO_ACCESS) -> None:
        self.samples: list[ServerSample] = []
        self.failure: str | None = None
        self._url = url
        self._access = access
        self._start_ns = start_ns
        self._period_s = period_s
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="server-watch", daemon=True)

    def __enter__(self) -> "ServerWatch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_over.is_set():
            begun_s = time.monotonic()
            try:
                self.samples.append(
                    ServerSample(time.monotonic_ns() - self._start_ns, read_metrics(self._url, self._access))
                )
            except (OSError, ValueError) as exc:
                self.failure = f"{self._url}: {exc}"
            except ServingError as exc:
                self.failure = exc.message
            self._is_over.wait(max(0.0, self._period_s - (time.monotonic() - begun_s)))
