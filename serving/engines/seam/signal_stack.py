# SPDX-License-Identifier: Apache-2.0
"""A repair: OpenVINO's CPU plugin leaves this thread with a stack for signal handlers that is no longer mapped.

It installs an alternate signal stack and unmaps it when the model is unloaded; the next Python signal handler that runs
then ends the process with a segmentation fault (seen with 2026.4 on Python 3.11 and 3.12). Can go when that is mended.
"""

import ctypes

_SS_DISABLE = 2


class _SignalStack(ctypes.Structure):
    """The struct `stack_t` of <signal.h>."""

    _fields_ = (("ss_sp", ctypes.c_void_p), ("ss_flags", ctypes.c_int), ("ss_size", ctypes.c_size_t))


def drop_signal_stack() -> None:
    """Let signal handlers of this thread run on its ordinary stack."""
    ctypes.CDLL(None).sigaltstack(ctypes.byref(_SignalStack(None, _SS_DISABLE, 0)), None)
