# SPDX-License-Identifier: Apache-2.0
"""An `inflight_batcher_llm` repository as an import reads it: its models, their settings, and one rule for each."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from build_engines.migration.context import Context, Rule
from build_engines.migration.engine_rules import TENSORRT_LLM
from build_engines.migration.filled_config import FilledConfig, load_config
from build_engines.migration.import_report import Entry, implied, lost
from build_engines.migration.pipeline_rules import BLS, EVERY_MODEL, POSTPROCESSING, PREPROCESSING
from build_engines.migration.tensor_contract import tensor_entries
from trireme.base.errors import SpecError

DECOUPLED = "model_transaction_policy.decoupled"
RULES: Mapping[str, Mapping[str, Rule]] = {
    "preprocessing": {**EVERY_MODEL, **PREPROCESSING},
    "tensorrt_llm": {**EVERY_MODEL, **TENSORRT_LLM},
    "postprocessing": {**EVERY_MODEL, **POSTPROCESSING},
    "ensemble": EVERY_MODEL,
    "tensorrt_llm_bls": {**EVERY_MODEL, **BLS},
}
_STEPS = ["preprocessing", "tensorrt_llm", "postprocessing"]


def load_models(repository: Path) -> dict[str, FilledConfig]:
    """Return the models of a repository, upstream's own first, in the order of a request.

    Raises:
        SpecError: the repository has no `tensorrt_llm`, or a config cannot be read.
    """
    configs = {path.parent.name: path for path in sorted(repository.glob("*/config.pbtxt"))}
    if "tensorrt_llm" not in configs:
        _refuse_unreadable(repository / "tensorrt_llm" / "config.pbtxt")
        raise SpecError(
            f"{repository} has no tensorrt_llm/config.pbtxt; name a model repository of inflight_batcher_llm or llmapi",
            file=repository,
        )
    order = [*RULES, *(name for name in configs if name not in RULES)]
    return {name: load_config(configs[name]) for name in order if name in configs}


def _refuse_unreadable(config: Path) -> None:
    """Refuse a config that may be there, but that this user cannot see.

    Raises:
        SpecError: the folder cannot be read.
    """
    try:
        config.lstat()
    except PermissionError as exc:
        raise SpecError(f"cannot read {config}: {exc.strerror}; let this user read it", file=config) from exc
    except OSError:
        return


def repository_entries(models: Mapping[str, FilledConfig], context: Context) -> Iterator[Entry]:
    """Yield an entry for every setting, model by model."""
    for model in models.values():
        if model.name not in RULES:
            why = "no model of inflight_batcher_llm's text pipeline; serve it with a Triton of its own"
            yield Entry(model.name, "", lost(why))
            continue
        yield from _setting_entries(model, context)
        yield from tensor_entries(model, context)


def _setting_entries(model: FilledConfig, context: Context) -> Iterator[Entry]:
    order = {setting: position for position, setting in enumerate(RULES[model.name])}
    for setting in sorted(model.settings, key=lambda name: (order.get(name, len(order)), name)):
        value = model.settings[setting]
        shown = setting.removeprefix("parameters.")
        name = f"{model.name}.{'decoupled' if setting == DECOUPLED else shown}"
        rule = RULES[model.name].get(setting)
        if rule is not None:
            verdict = rule(value, context)
        elif value.is_set:
            verdict = lost("no setting of upstream's templates; see whether you still need it")
        else:
            verdict = implied("not set")
        yield Entry(name, value.text, verdict, value.note)
    if model.config.HasField("ensemble_scheduling"):
        steps = [step.model_name for step in model.config.ensemble_scheduling.step]
        is_ours = model.name == "ensemble" and steps == _STEPS
        why = "the same three steps, in one model (and as ensemble_graph)"
        instead = f"only {', '.join(_STEPS)} are served; put your own step into the client, or before the server"
        verdict = implied(why) if is_ours else lost(instead)
        yield Entry(f"{model.name}.ensemble_scheduling", ", ".join(steps), verdict)
