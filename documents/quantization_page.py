# SPDX-License-Identifier: Apache-2.0
"""The writer of `docs/quantization.md` from the latest results of `benchmarks.quantization`, and of
`benchmarks.vllm_quantization`: `make docs`."""

from collections.abc import Iterable, Iterator

from documents.pages import DOCS, paragraph
from documents.results import Document, has_result, latest, newest, no_clean_commit
from trireme.base.text_tables import markdown_table

PAGE = DOCS / "quantization.md"
_VLLM = "quantization_demo_vllm"
_NAMES = {
    "perplexity_ratio": "perplexity over the base's",
    "kl": "KL divergence, nats a token",
    "agreement": "greedy tokens until the first difference",
    "accuracy_drop": "right answers lost",
}


def page(_: str) -> str:
    """Return the text of the whole page."""
    result = latest("quantization_demo_cpu")
    rows, base = result["releases"], result["releases"][0]["name"]
    kv_cache = {"name": f"{base}, u8 against f16", "quality": result["kv_cache"]}
    sections = [
        ["# Quantization", *_origin(result, newest("quantization_demo_cpu").name)],
        ["## Size", *_sizes(rows)],
        [f"## Worst group, against `{base}`", *_worst(rows[1:]), *_STORIES],
        ["## Perplexity by language", *_perplexities(rows)],
        ["## Right answers by task and language", *_accuracy(rows)],
        [f"## KV cache in int8 against fp16, `{base}`", *_worst([kv_cache]), *_KV_CACHE],
        ["## Speed", *_speeds(result)],
        ["## Releases for vLLM", *_for_vllm()],
    ]
    return "\n\n".join(part for section in sections for part in section) + "\n"


_STORIES = [
    paragraph(
        """In brackets the 95 % interval. Stories have 128 tokens: after a first difference everything counts as
        different."""
    )
]
_KV_CACHE = [
    paragraph(
        """Answers come from the engine with its paged cache. Perplexity and KL divergence are of plain inference, 16
        tokens at a time, whose cache is quantized in a similar way; shorter texts say nothing about it."""
    )
]


def _origin(result: Document, source: str) -> Iterator[str]:
    where = result["environment"]
    versions = ", ".join(f"{name} {version}" for name, version in result["releases"][0]["versions"].items())
    yield paragraph(
        f"""Written by `make docs` from `benchmarks/results/{source}`{no_clean_commit(result)}. What the figures mean:
        [evaluation.md](evaluation.md); which to choose: [decisions/quantization.md](decisions/quantization.md). To
        measure again, build the recipes and give the releases to `python -m benchmarks.quantization`, base first."""
    )
    yield paragraph(
        f"""{where["date"][:10]}, {where["cpu"]}, {where["num_cpus"]} cores without a GPU, Python
        {where["python"]}; computed in {result["computed_in"]}; built with {versions}. All but size holds for the
        demo model alone: it knows little, so quantization costs it less than a large model."""
    )


def _sizes(rows: list[Document]) -> Iterator[str]:
    yield markdown_table(
        ["recipe", "layers; embedding and head", "file", "predicted", "off by", "fp16's, of it", "linear weights"],
        (
            [
                f"`{row['name']}`",
                _formats(row["recipe"]),
                f"{row['bytes'] / 1e6:.2f} MB",
                f"{row['predicted_bytes'] / 1e6:.2f} MB",
                f"{100 * (row['bytes'] / row['predicted_bytes'] - 1):.2f} %",
                f"{rows[0]['bytes'] / row['bytes']:.2f}",
                f"{rows[0]['linear_bytes'] / row['linear_bytes']:.2f}",
            ]
            for row in rows
        ),
    )
    yield paragraph(
        """The file is `openvino_model.bin`, predicted by `build_engines.openvino.openvino_formats`; the last two
        columns say how many times smaller it and its matrices are than the first row's. The embedding, a fifth of the
        parameters, stays in int8 where the layers are int4."""
    )


def _perplexities(rows: list[Document]) -> Iterator[str]:
    columns = [_figures(row, "perplexity_ratio") for row in rows]
    yield markdown_table(
        ["task", "language", "items", *(f"`{row['name']}`" for row in rows)],
        (
            [*where, str(figure["num_items"]), *(f"{column[where]['candidate']:.3f}" for column in columns)]
            for where, figure in columns[0].items()
        ),
    )


def _accuracy(rows: list[Document]) -> Iterator[str]:
    columns = [_figures(row, "accuracy_drop") for row in rows]
    yield markdown_table(
        ["task", "group", "items", *(f"`{row['name']}`" for row in rows)],
        (
            [*where, str(figure["num_items"]), *(f"{column[where]['candidate']:.1%}" for column in columns)]
            for where, figure in columns[0].items()
        ),
    )


def _speeds(result: Document) -> Iterator[str]:
    names, speed = [row["name"] for row in result["releases"]], result["speed"]
    yield markdown_table(
        ["recipe", "1 request", "16 requests"],
        (
            [f"`{name}`", *(_speed(found[count]["ratio"]) for count in ("1", "16"))]
            for name, found in zip(names, speed["releases"], strict=True)
        ),
    )
    plain = [speed["releases"][0][count]["tokens_per_s"]["median"] for count in ("1", "16")]
    where = speed["environment"]
    yield paragraph(
        f"""Output tokens/s over those of `{names[0]}` ({plain[0]:,.0f} and {plain[1]:,.0f}), in the engine's own
        process, {speed["output_tokens"]} tokens a request, {speed["rounds"]} rounds, medians with the 90 % interval;
        a shared machine, load {where["load_1min"]:.1f} on {where["num_cpus"]} cores."""
    )


def _for_vllm() -> Iterator[str]:
    if not has_result(_VLLM):
        yield "Not measured yet."
        return
    result = latest(_VLLM)
    rows, base, where = result["releases"], result["base"], result["environment"]
    yield markdown_table(
        ["recipe", "format", "safetensors", "predicted", "off by", "16 bits', of it"],
        (
            [
                f"`{row['name']}`",
                row["recipe"]["format"],
                f"{row['bytes'] / 1e6:.2f} MB",
                f"{row['predicted_bytes'] / 1e6:.2f} MB",
                f"{100 * (row['bytes'] / row['predicted_bytes'] - 1):.2f} %",
                f"{base['bytes'] / row['bytes']:.2f}",
            ]
            for row in [base, *rows]
        ),
    )
    yield from _worst(rows)
    versions = ", ".join(f"{name} {version}" for name, version in rows[0]["versions"].items())
    yield paragraph(
        f"""From `benchmarks/results/{newest(_VLLM).name}`{no_clean_commit(result)}: {where["date"][:10]},
        {where["cpu"]}, {result["num_items"]:,} items, each release against `{base["name"]}`; built with {versions};
        asked of vLLM's CPU build, which computes in bf16 and in the formats' own types, by one thread. To measure
        again: `python -m benchmarks.vllm_quantization RELEASE ...`, base first."""
    )


def _formats(recipe: Document) -> str:
    linear = recipe["format"]
    if linear == "fp16":
        return "16 bits"
    parts = [linear, "symmetric" if recipe["is_symmetric"] else "with zero points"]
    parts += [f"groups of {recipe['group_size']}"] if recipe["group_size"] else []
    parts += ["AWQ"] if recipe["is_awq"] else []
    parts += ["scales from activations"] if recipe["is_data_aware"] else []
    rest = "int8" if recipe["embedding_format"] == "auto" else recipe["embedding_format"]
    return f"{', '.join(parts)}; {rest}"


def _worst(rows: Iterable[Document]) -> Iterator[str]:
    cells = []
    for row in rows:
        for metric, title in _NAMES.items():
            figure = row["quality"]["worst"][metric]
            limit = "" if figure["limit"] is None else f"{figure['limit']:g}"
            verdict = {True: "passed", False: "failed", None: ""}[figure["passed"]]
            group = f"{figure['task']}, {figure['group']}"
            cells.append([f"`{row['name']}`", title, group, _value(figure), limit, verdict])
    yield markdown_table(["recipe", "figure", "worst group", "value", "limit", ""], cells)


def _value(figure: Document) -> str:
    number = {"perplexity_ratio": "{:.4f}", "kl": "{:.1e}"}.get(figure["metric"], "{:.1%}")
    ends = figure["interval"]
    shown = number.format(figure["value"])
    return shown if ends is None else f"{shown} ({number.format(ends[0])} to {number.format(ends[1])})"


def _figures(row: Document, metric: str) -> dict[tuple[str, str], Document]:
    figures = row["quality"]["figures"]
    return {(each["task"], each["group"]): each for each in figures if each["metric"] == metric}


def _speed(ratio: Document) -> str:
    return f"{ratio['median']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})"
