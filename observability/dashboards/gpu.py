# SPDX-License-Identifier: Apache-2.0
"""The dashboard of the GPUs and their nodes, from dcgm-exporter's default counters and node-exporter."""

from observability.dashboards.panels import RATE, Dashboard, Panel, panel

_OF_GPU = "{{Hostname}} GPU {{gpu}}"


def gpu_dashboard() -> Dashboard:
    """Return the dashboard's title, rows and panels."""
    return Dashboard(
        uid="trireme-gpu",
        title="Trireme: GPUs and nodes",
        description="dcgm-exporter with its default counters, and node-exporter.",
        rows=(("Work", _work()), ("State", _state()), ("Nodes", _nodes())),
    )


def _work() -> tuple[Panel, ...]:
    active = "Share of the time in which {}; it says nothing of how much was done."
    return (
        panel(
            "GPU active",
            "percentunit",
            ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", _OF_GPU),
            description=active.format("any kernel ran"),
            most=1,
        ),
        panel(
            "Tensor cores active",
            "percentunit",
            ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", _OF_GPU),
            description=active.format("the tensor cores had work"),
            most=1,
        ),
        panel(
            "Memory interface active",
            "percentunit",
            ("DCGM_FI_PROF_DRAM_ACTIVE", _OF_GPU),
            description="Share of the time in which data moved to or from memory: what the device itself saw, beside "
            "MBU, which is worked out from what a step has to read.",
            most=1,
        ),
        panel("SM clock", "hertz", ("DCGM_FI_DEV_SM_CLOCK * 1e6", _OF_GPU)),
        panel("Memory clock", "hertz", ("DCGM_FI_DEV_MEM_CLOCK * 1e6", _OF_GPU)),
    )


def _state() -> tuple[Panel, ...]:
    used, free = "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE"
    return (
        panel("Memory in use", "percentunit", (f"{used} / ({used} + {free})", _OF_GPU), most=1),
        panel("Power", "watt", ("DCGM_FI_DEV_POWER_USAGE", _OF_GPU)),
        panel("Temperature", "celsius", ("DCGM_FI_DEV_GPU_TEMP", _OF_GPU)),
        panel(
            "Last XID error",
            "none",
            ("DCGM_FI_DEV_XID_ERRORS", _OF_GPU),
            description="0: none. Others are in NVIDIA's list of XID errors; 79 is a GPU that fell off the bus.",
            is_number=True,
        ),
        panel("Energy", "watt", (f"rate(DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{RATE}) / 1000", _OF_GPU)),
    )


def _nodes() -> tuple[Panel, ...]:
    disks = 'fstype!~"tmpfs|overlay|squashfs|ramfs"'
    return (
        panel(
            "CPU in use",
            "percentunit",
            (f'1 - avg by (instance) (rate(node_cpu_seconds_total{{mode="idle"}}{RATE}))', "{{instance}}"),
            most=1,
        ),
        panel(
            "Memory available",
            "percentunit",
            ("node_memory_MemAvailable_bytes / node_memory_MemTotal_bytes", "{{instance}}"),
            most=1,
        ),
        panel(
            "Disk free",
            "percentunit",
            (
                f"node_filesystem_avail_bytes{{{disks}}} / node_filesystem_size_bytes{{{disks}}}",
                "{{instance}} {{mountpoint}}",
            ),
            most=1,
        ),
    )
