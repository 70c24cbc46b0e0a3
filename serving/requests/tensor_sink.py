# SPDX-License-Identifier: Apache-2.0
"""The destination of the responses to one request, as named arrays: the interface that the library needs of Triton."""

from collections.abc import Collection, Mapping
from typing import Protocol

import numpy as np
import numpy.typing as npt

from trireme.base.errors import ServingError

Tensors = Mapping[str, npt.NDArray[np.generic]]


class TensorSink(Protocol):
    """The receiver of the responses to one request.

    Attributes:
        takes_one: the request gets one response, so it cannot stream (`decoupled: false`).
    """

    takes_one: bool

    def send(self, tensors: Tensors, *, is_final: bool) -> None:
        """Send one response, by the names of the model's outputs."""

    def fail(self, error: ServingError) -> None:
        """Send an error as the last response."""

    def is_cancelled(self) -> bool:
        """Return whether the client has gone."""

    def named_outputs(self) -> Collection[str]:
        """Return the outputs that the client asked for by name; empty if it named none and takes all outputs."""
