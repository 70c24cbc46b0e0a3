# SPDX-License-Identifier: Apache-2.0
"""The loading of a release's engine, inside the wrappers that the deployment asks for."""

import logging
import os
from pathlib import Path

from ensemble_configs.spec.release_spec import ReleaseSpec
from ensemble_configs.spec.shared_budget_spec import SharedBudgetSpec
from serving.admission.admitting_engine import AdmittingEngine
from serving.doctor.release_check import refuse_unfit_releases, unverified_places
from serving.engine_process.engine_sources import OwnedEngine
from serving.engine_process.engine_warm_up import warm_up
from serving.engine_process.on_demand_engine import OnDemandEngine
from serving.engine_process.residency import Residency
from serving.engine_process.stopping_engine import StoppingEngine
from serving.engines.providers import create_engine
from serving.engines.seam.base import Engine
from serving.engines.seam.clock import WallClock
from serving.kv_events.event_link import EventLink
from serving.kv_events.messages import publisher_path
from serving.kv_events.telling_engine import TellingEngine, source_of
from serving.process.run_dir import RUN_DIR_VARIABLE
from serving.shared_budget.ledger_file import MAX_NAME_BYTES
from serving.shared_budget.shared_ledger import LEDGER_FILE, SharedLedger
from serving.shared_budget.shared_room import SharedRoom
from serving.telemetry.engine_costs import engine_costs
from serving.telemetry.step_account import AccountedEngine
from serving.text.detokenization import TextDecoder

_log = logging.getLogger("trireme.engine")


def load_engine(release: ReleaseSpec, *, folder: Path, run_dir: Path, is_inner: bool) -> Engine:
    """Return the loaded engine of a release; a real engine takes seconds or minutes.

    Args:
        release: release to serve.
        folder: version folder of `tensorrt_llm` with the release; its last two names are the engine's name.
        run_dir: folder of the server's processes.
        is_inner: load only the part for the inner process of an engine that is loaded on demand.

    Raises:
        SpecError: the release cannot be served here.
        ServerError: the engine cannot be loaded.
    """
    member = f"{folder.parent.name}/{folder.name}"[-MAX_NAME_BYTES:]
    if release.on_demand is not None and not is_inner:
        engine = _on_demand(release, folder=folder, run_dir=run_dir, member=member)
    else:
        engine = _model(release, folder=folder, run_dir=run_dir)
    if release.admission is None or is_inner:
        return engine
    return AdmittingEngine(
        engine,
        release.admission,
        release.slo,
        WallClock(),
        tokens_per_step=release.engine.max_tokens_per_step,
        shared=_shared_room(release.admission.budget.shared, engine, member=member, run_dir=run_dir),
    )


def _model(release: ReleaseSpec, *, folder: Path, run_dir: Path) -> Engine:
    refuse_unfit_releases(release)
    for place in unverified_places(release):
        _log.warning("%s is unverified: no manifest lists its files, so altered bytes would not be noticed", place)
    tells = release.kv_events is not None
    engine = create_engine(release.engine, tells_kv_events=tells)
    if release.is_warmed_up:  # below the wrappers that count: no client asked for this
        warm_up(engine)
    if tells:
        engine = TellingEngine(engine, EventLink(source_of(release, folder), publisher_path(run_dir), engine.info))
    engine = StoppingEngine(engine, TextDecoder.from_spec(release.tokenizer))
    return AccountedEngine(engine, WallClock(), engine_costs(release))


def _on_demand(release: ReleaseSpec, *, folder: Path, run_dir: Path, member: str) -> Engine:
    assert release.on_demand is not None
    os.environ[RUN_DIR_VARIABLE] = str(run_dir)  # for the process below: asked itself, it would find another
    return OnDemandEngine(
        lambda: OwnedEngine.of_release(release, folder, is_inner=True),
        Residency(run_dir / LEDGER_FILE, release.on_demand, member=member),
        release.on_demand,
        WallClock(),
        watchdog_s=release.engine.watchdog_s,
    )


def _shared_room(spec: SharedBudgetSpec | None, engine: Engine, *, member: str, run_dir: Path) -> SharedRoom | None:
    if spec is None:
        return None
    counts = {resource.name: resource.count for resource in spec.resources}
    ledger = SharedLedger(run_dir / LEDGER_FILE, member=member, weight=spec.weight, counts=counts)
    return SharedRoom(ledger, spec, WallClock(), block_tokens=engine.info.kv_block_tokens)
