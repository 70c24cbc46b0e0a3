# SPDX-License-Identifier: Apache-2.0
"""The work of an engine step (bytes, operations) and the peak rates of its device: the figures behind MBU and MFU.

The figures of a simulated engine are from its spec, those of an OpenVINO model from its files and from the bandwidth of
the cores, if that was ever measured, and those of an engine on GPUs from its release's manifest. Unknown figures are
left out.
"""

import msgspec

from ensemble_configs.releases.release_manifest import find_release, load_manifest
from ensemble_configs.spec.engine.openvino_spec import OpenVinoEngineSpec
from ensemble_configs.spec.engine.simulated_spec import SimulatedEngineSpec
from ensemble_configs.spec.release_spec import ReleaseSpec
from serving.engines.openvino.openvino_costs import openvino_costs
from serving.engines.seam.base import EngineCosts
from serving.telemetry.cpu_bandwidth import kept_bandwidth


def engine_costs(release: ReleaseSpec) -> EngineCosts:
    """Return the costs of the release's engine, without a draft engine beside it.

    Raises:
        SpecError: the release's manifest is not valid.
    """
    engine = release.engine
    if isinstance(engine, SimulatedEngineSpec):
        return EngineCosts(
            weight_bytes=engine.weight_bytes or None,
            kv_bytes_per_token=engine.kv_bytes_per_token or None,
            flops_per_token=engine.flops_per_token or None,
            peak_bandwidth_bytes_per_s=engine.peak_bandwidth_bytes_per_s or None,
            peak_flops=engine.peak_flops or None,
        )
    if isinstance(engine, OpenVinoEngineSpec):
        costs = openvino_costs(engine.dir, kv_precision=engine.kv_format)
        return msgspec.structs.replace(costs, peak_bandwidth_bytes_per_s=kept_bandwidth())
    folder = release.release_dir or find_release(engine.dir)
    built = None if folder is None else load_manifest(folder).step_costs
    return EngineCosts() if built is None else EngineCosts(**built.model_dump())
