# SPDX-License-Identifier: Apache-2.0
"""The facts that a rule may look at beside its own setting."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from build_engines.migration.compiled_engine import CompiledEngine
from build_engines.migration.import_report import Verdict, carried, implied, lost
from build_engines.migration.values import Value


@dataclass(frozen=True, kw_only=True)
class Context:
    """The old repository as a whole."""

    settings: Mapping[str, Value]  # "tensorrt_llm.parameters.max_beam_width"
    engine: CompiledEngine | None
    engine_dir: Path | None  # of the command line
    tokenizer_dir: Path | None  # of the command line

    def get(self, setting: str) -> Value:
        """Return the value of another rule's setting; not set where the repository does not have it."""
        return self.settings.get(setting, Value())


UNREADABLE = "upstream cannot read it and takes its default: "
NO_PAUSE_BESIDE_GUIDED_DECODING = "not max_utilization: TensorRT-LLM begins the grammar of a paused request anew"

Rule = Callable[[Value, Context], Verdict]


def carry(where: str, convert: Callable[[str], object] = str, *, default: object = None, why: str = "") -> Rule:
    """Return a rule for a setting that is a field of the deployment.

    Where the setting is not set, the field gets upstream's default; a default of None is only said.
    """

    def rule(value: Value, _: Context) -> Verdict:
        read = value.read(convert)
        if read is not None:
            return carried(where, read, why)
        unreadable = UNREADABLE if value.is_set else ""
        if default is None:
            return implied(f"{unreadable}upstream's default is none, as that of {where}")
        return carried(where, default, f"{unreadable}upstream's default, {_shown(default)}")

    return rule


def always(why: str) -> Rule:
    """Return a rule that implies the setting, whatever its value."""
    return lambda _value, _context: implied(why)


def only(default: object, why_not: str, convert: Callable[[str], object] = str, *, why: str = "") -> Rule:
    """Return a rule for a setting that needs nothing at upstream's default, and cannot be carried otherwise."""

    def rule(value: Value, _: Context) -> Verdict:
        read = value.read(convert)
        if read is None and value.is_set:
            return implied(f"{UNREADABLE}nothing to carry")
        if read is None or read == default:
            return implied(why or (f"{_shown(default)}, as here" if default is not None else "not used, as here"))
        return lost(why_not)

    return rule


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
