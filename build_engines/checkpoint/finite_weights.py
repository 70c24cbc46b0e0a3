# SPDX-License-Identifier: Apache-2.0
"""The search of all weights of a checkpoint for NaN and infinity, in parts, so that memory stays small."""

from collections.abc import Callable, Iterable

import numpy as np

from ensemble_configs.releases.safetensors_file import StoredTensor
from trireme.base.errors import SpecError

CHUNK_BYTES = 16 * 2**20

# By type: how a number is read, and the bits that are all set in what is not finite, beside its sign. Where a type has
# no infinity (E4M3, E8M0) that is NaN alone. Types that are not here cannot hold either.
_NOT_FINITE = {
    "F64": ("<u8", 0x7FF0_0000_0000_0000),
    "F32": ("<u4", 0x7F80_0000),
    "F16": ("<u2", 0x7C00),
    "BF16": ("<u2", 0x7F80),
    "F8_E5M2": ("u1", 0x7C),
    "F8_E4M3": ("u1", 0x7F),
    "F8_E8M0": ("u1", 0xFF),
}

Progress = Callable[[int, int], None]  # bytes looked at, bytes in all


def check_finite(tensors: Iterable[StoredTensor], on_progress: Progress | None = None) -> int:
    """Refuse weights that are not finite.

    Returns:
        Bytes looked at; integers and packed types are passed over.

    Raises:
        SpecError: a weight is not finite; the message names file, tensor, how many there are and where the first is.
    """
    scanned = [tensor for tensor in tensors if tensor.dtype in _NOT_FINITE]
    total = sum(tensor.num_bytes for tensor in scanned)
    done = 0
    buffer = memoryview(bytearray(CHUNK_BYTES))
    for tensor in scanned:
        dtype, mask = _NOT_FINITE[tensor.dtype]
        width = np.dtype(dtype).itemsize
        bad, first = 0, -1
        with tensor.file.open("rb") as file:
            file.seek(tensor.start)
            for position in range(0, tensor.num_bytes, CHUNK_BYTES):
                part = buffer[: min(CHUNK_BYTES, tensor.num_bytes - position)]
                if file.readinto(part) != len(part):
                    raise SpecError(f"{tensor.file} became shorter while it was read; try again", file=tensor.file)
                numbers = np.frombuffer(part, dtype)
                hits = np.flatnonzero((numbers & mask) == mask)
                if hits.size and first < 0:
                    first = position // width + int(hits[0])
                bad += hits.size
                done += len(part)
                if on_progress is not None:
                    on_progress(done, total)
        if bad:
            raise SpecError(
                f"{tensor.file}: {tensor.name} has {bad:,} weights that are NaN or infinite, the first at "
                f"{[int(at) for at in np.unravel_index(first, tensor.shape or (1,))]}; no release is made of it: "
                f"download it again, or ask who trained it",
                file=tensor.file,
                field=tensor.name,
            )
    return total
