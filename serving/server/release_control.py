# SPDX-License-Identifier: Apache-2.0
"""What a caller of the control socket can do with the releases of a running server.

Each operation says where to, not what to do: said twice, the second time changes nothing. So a caller that died in
the middle asks again.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from ensemble_configs.deployment import DeploymentSpec
from ensemble_configs.errors import RequestError
from ensemble_configs.release_changes import (
    model_named,
    promoted,
    release_of,
    settled,
    with_candidate,
    without_release,
)
from ensemble_configs.release_spec import ReleaseSpec
from ensemble_configs.validation import validate
from serving.server.control import Handler, Say
from serving.server.live_deployment import LiveDeployment

_DRAIN_S = 600.0


def release_handlers(live: LiveDeployment) -> dict[str, Handler]:
    """By operation.

    ``status``: the models with their releases. ``add``: ``release``, the fields of a `ReleaseSpec` with absolute paths,
    becomes the candidate of ``model``. ``promote`` and ``remove``: the ``number`` of a release; a removed one may take
    ``drain_timeout_s``. ``settle``: no candidate any more. Each answers as ``status`` does.
    """

    def status(question: Mapping[str, object], say: Say) -> Mapping[str, object]:
        del question, say
        return live.status()

    def add(question: Mapping[str, object], say: Say) -> Mapping[str, object]:
        release = validate(ReleaseSpec, question.get("release"), source=Path("release"))

        def change(spec: DeploymentSpec) -> DeploymentSpec:
            return with_candidate(spec, model_named(spec, _model(question)), release)

        return _become(live, change, question, say)

    def promote(question: Mapping[str, object], say: Say) -> Mapping[str, object]:
        def change(spec: DeploymentSpec) -> DeploymentSpec:
            model = model_named(spec, _model(question))
            return promoted(spec, model, release_of(model, _number(question)).release)

        return _become(live, change, question, say)

    def settle(question: Mapping[str, object], say: Say) -> Mapping[str, object]:
        def change(spec: DeploymentSpec) -> DeploymentSpec:
            return settled(spec, model_named(spec, _model(question)))

        return _become(live, change, question, say)

    def remove(question: Mapping[str, object], say: Say) -> Mapping[str, object]:
        def change(spec: DeploymentSpec) -> DeploymentSpec:
            return without_release(spec, model_named(spec, _model(question)), _number(question))

        return _become(live, change, question, say)

    return {"status": status, "add": add, "promote": promote, "settle": settle, "remove": remove}


def _become(
    live: LiveDeployment,
    change: Callable[[DeploymentSpec], DeploymentSpec],
    question: Mapping[str, object],
    say: Say,
) -> Mapping[str, object]:
    live.become(change, drain_timeout_s=_seconds(question), say=say)
    return live.status()


def _model(question: Mapping[str, object]) -> str | None:
    name = question.get("model")
    if name is not None and not isinstance(name, str):
        raise RequestError(f"model must be a name, got {name!r}", field="model", value=name)
    return name


def _number(question: Mapping[str, object]) -> int:
    number = question.get("number")
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        raise RequestError(f"number must be a release's, 1 or more, got {number!r}", field="number", value=number)
    return number


def _seconds(question: Mapping[str, object]) -> float:
    value = question.get("drain_timeout_s", _DRAIN_S)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= 86_400:
        raise RequestError(
            f"drain_timeout_s must be seconds, 0 to 86400, got {value!r}", field="drain_timeout_s", value=value
        )
    return float(value)
