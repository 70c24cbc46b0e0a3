# SPDX-License-Identifier: Apache-2.0
"""The conformance table of `docs/contract.md`: every tensor of the contract on every provider, works or refused.

Generated from what makes the server refuse: the rows of `ensemble_configs.render.tensors` and each provider's
`CAPABILITIES`.
"""

from collections.abc import Iterable, Mapping

from documents.pages import DOCS, with_tables
from ensemble_configs.render.tensors import Tensor, inputs_of, outputs_of
from ensemble_configs.spec.model_names import PYTHON_MODELS
from serving.engines.openvino import openvino_capabilities
from serving.engines.seam.capabilities import Capabilities
from serving.engines.simulated import simulated_engine as simulated
from serving.engines.tensorrt_llm import trtllm_capabilities
from serving.engines.vllm import vllm_capabilities
from serving.requests.engine_request import CONDITIONS
from trireme.base.text_tables import markdown_table

PAGE = DOCS / "contract.md"

PROVIDERS: Mapping[str, Capabilities] = {
    "openvino": openvino_capabilities.CAPABILITIES,
    **trtllm_capabilities.CAPABILITIES,
    "vllm": vllm_capabilities.CAPABILITIES,
    "simulated": simulated.CAPABILITIES,
}


def input_rows() -> list[Tensor]:
    """Return every tensor that a client or a step may send, once."""
    return _once(row for model in PYTHON_MODELS for _, row in inputs_of(model))


def output_rows() -> list[Tensor]:
    """Return every tensor that a model may give and no model takes, and those of the last step."""
    taken = input_rows()
    return [row for row in _once(row for model in PYTHON_MODELS for _, row in outputs_of(model)) if row not in taken]


def why_refused(row: Tensor, capabilities: Capabilities) -> str | None:
    """Return the reason for which a tensor is refused; None: it works."""
    if row.why_not:
        return row.why_not
    for name in (row.engine, row.field):
        reason = capabilities.why_not.get(name)
        if reason is not None:
            return reason
    return None


def condition_of(row: Tensor, capabilities: Capabilities) -> str:
    """Return what a tensor that works asks of a deployment or a request; "" if it always works."""
    condition = capabilities.conditions.get(row.engine) or capabilities.conditions.get(row.field)
    words = [CONDITIONS.get(row.field), condition.words if condition else None]
    return "; ".join(word for word in words if word)


def page(document: str) -> str:
    """Return the document with both tables and the reasons written again."""
    reasons: dict[str, int] = {}
    parts = ["### Inputs", _table(input_rows(), reasons), "### Outputs", _table(output_rows(), reasons)]
    parts += ["### Why refused", "\n".join(f"{number}. {reason}" for reason, number in reasons.items())]
    return with_tables(document, {"tensors": "\n" + "\n\n".join(parts) + "\n"})


def names_of(row: Tensor) -> dict[str, list[str]]:
    """Return the models that see a tensor, by the name that they know it by; the client's own name first."""
    names: dict[str, list[str]] = {}
    for model in reversed(PYTHON_MODELS):
        own = [name for name, other in (*inputs_of(model), *outputs_of(model)) if other is row]
        for name in dict.fromkeys(own):
            names.setdefault(name, []).append(model)
    return names


def _table(rows: Iterable[Tensor], reasons: dict[str, int]) -> str:
    lines = []
    for row in rows:
        names = names_of(row)
        models = dict.fromkeys(f"`{model}`" for models in names.values() for model in models)
        cells = [_cell(row, capabilities, reasons) for capabilities in PROVIDERS.values()]
        lines.append([", ".join(f"`{name}`" for name in names), ", ".join(models), *cells])
    return markdown_table(["tensor", "models", *PROVIDERS], lines)


def _cell(row: Tensor, capabilities: Capabilities, reasons: dict[str, int]) -> str:
    reason = why_refused(row, capabilities)
    if reason is not None:
        return f"refused ({reasons.setdefault(reason, len(reasons) + 1)})"
    condition = condition_of(row, capabilities)
    return f"works, {condition}" if condition else "works"


def _once(rows: Iterable[Tensor]) -> list[Tensor]:
    found: list[Tensor] = []
    for row in rows:
        if row not in found:
            found.append(row)
    return found
