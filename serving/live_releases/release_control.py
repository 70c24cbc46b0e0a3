# SPDX-License-Identifier: Apache-2.0
"""The operations on the releases of a running server, for callers of the control socket.

Each operation names the state to reach, not the change: said twice, the second time changes nothing. So a caller that
died in the middle asks again.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from ensemble_configs.changes.release_changes import (
    model_named,
    promoted,
    release_of,
    replaced,
    with_candidate,
    with_trial,
    without_release,
    without_trials,
)
from ensemble_configs.spec.deployment import DeploymentSpec
from ensemble_configs.spec.model_spec import ModelSpec
from ensemble_configs.spec.release_spec import ReleaseSpec
from ensemble_configs.spec.validation import validate
from serving.doctor.preflight import NO_ROOM_FIELDS, check_room
from serving.live_releases.live_deployment import LiveDeployment
from trireme.base.errors import RequestError, SpecError
from trireme.base.unix_rpc import Handler, Say

_DRAIN_S = 600.0

Question = Mapping[str, object]
Change = Callable[[DeploymentSpec], DeploymentSpec]


def release_handlers(live: LiveDeployment) -> dict[str, Handler]:
    """Return the handlers by operation.

    ``status``: the models with their releases. ``add``: ``release``, the fields of a `ReleaseSpec` with absolute paths,
    becomes the candidate of ``model``, or with ``is_canary`` false is loaded for requests that name it. ``promote`` and
    ``remove``: the ``number`` of a release; a removed one may take ``drain_timeout_s``. ``settle``: nothing is on trial
    any more. ``replace``: ``release`` takes the place of the stable one, which is unloaded first. Each answers as
    ``status`` does. ``room``: ``why_not`` there is memory for a ``release`` beside what runs; "" where there is.
    """

    def changing(change_of: Callable[[Question], Change], *, is_making_room: bool = False) -> Handler:
        def handle(question: Question, say: Say) -> Mapping[str, object]:
            change, timeout_s = change_of(question), _seconds(question)
            live.become(change, drain_timeout_s=timeout_s, say=say, is_making_room=is_making_room)
            return live.status()

        return handle

    return {
        "status": lambda _, __: live.status(),
        "add": changing(_add),
        "replace": changing(_replace, is_making_room=True),
        "room": lambda question, _: {"why_not": _why_no_room(question)},
        "promote": changing(_promote),
        "settle": changing(lambda question: lambda spec: without_trials(spec, _model(spec, question))),
        "remove": changing(_remove),
    }


def _add(question: Question) -> Change:
    release = _release(question)
    add_to = with_candidate if question.get("is_canary", True) else with_trial
    return lambda spec: add_to(spec, _model(spec, question), release)


def _replace(question: Question) -> Change:
    release = _release(question)
    return lambda spec: replaced(spec, _model(spec, question), release)


def _promote(question: Question) -> Change:
    def change(spec: DeploymentSpec) -> DeploymentSpec:
        model = _model(spec, question)
        return promoted(spec, model, release_of(model, _number(question)).release)

    return change


def _remove(question: Question) -> Change:
    return lambda spec: without_release(spec, _model(spec, question), _number(question))


def _why_no_room(question: Question) -> str:
    try:
        check_room([_release(question)])
    except SpecError as exc:  # `add` tells what else is wrong with it
        return exc.message if exc.facts.get("field") in NO_ROOM_FIELDS else ""
    return ""


def _release(question: Question) -> ReleaseSpec:
    return validate(ReleaseSpec, question.get("release"), source=Path("release"))


def _model(spec: DeploymentSpec, question: Question) -> ModelSpec:
    name = question.get("model")
    if name is not None and not isinstance(name, str):
        raise RequestError(f"model must be a name, got {name!r}", field="model", value=name)
    return model_named(spec, name)


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
