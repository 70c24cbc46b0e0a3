# SPDX-License-Identifier: Apache-2.0
"""Seeded random requests to every model, many of them right, most of them wrong in one to three ways."""

import json
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from tritonclient.grpc import service_pb2

from ensemble_configs.render.tensors import inputs_of

MODELS = {  # weights
    "ensemble": 4, "ensemble_graph": 2, "tensorrt_llm_bls": 2,
    "tensorrt_llm": 3, "preprocessing": 1, "postprocessing": 1,
}  # fmt: skip
_NUMPY: dict[str, type[np.generic]] = {
    "BOOL": np.bool_, "UINT8": np.uint8, "UINT16": np.uint16, "UINT32": np.uint32, "UINT64": np.uint64,
    "INT8": np.int8, "INT16": np.int16, "INT32": np.int32, "INT64": np.int64,
    "FP16": np.float16, "FP32": np.float32, "FP64": np.float64,
}  # fmt: skip
_FIELDS = {"BOOL": "bool", "INT32": "int", "INT64": "int64", "UINT64": "uint64", "FP32": "fp32", "FP64": "fp64"}
_WORDS = ["fox", "Paris", "法国", "😀", "مرحبا", "23 + 45 =", "\n\n", "e\u0301", " ", "word"]


@dataclass(frozen=True)
class Given:
    """A tensor as it is sent; nothing says that its parts fit together."""

    data_type: str
    shape: tuple[int, ...]
    content: bytes

    def fill(self, contents: service_pb2.InferTensorContents) -> bool:
        """Put the values into the field of their type; False: there is none, or they are not whole."""
        if self.data_type == "BYTES":
            contents.bytes_contents.append(self.content[4:])
            return True
        if self.data_type not in _FIELDS or len(self.content) % np.dtype(_NUMPY[self.data_type]).itemsize:
            return False
        values = np.frombuffer(self.content, dtype=_NUMPY[self.data_type]).tolist()
        getattr(contents, f"{_FIELDS[self.data_type]}_contents").extend(values)
        return True


@dataclass(frozen=True)
class Sent:
    """A request; `is_valid`: it must be answered without an error."""

    model: str
    tensors: dict[str, Given]
    is_valid: bool = True
    num_prompts: int = 1
    request_id: str = ""
    is_streaming_call: bool = True  # gRPC: ModelStreamInfer, else ModelInfer
    is_typed: bool = False  # gRPC: values in fields of their type where there is one, else as raw bytes
    parameters: dict[str, int] = field(default_factory=dict)

    def message(self) -> service_pb2.ModelInferRequest:
        """Return the request for gRPC."""
        message = service_pb2.ModelInferRequest(model_name=self.model, id=self.request_id)
        for name, given in self.tensors.items():
            added = message.inputs.add(name=name, datatype=given.data_type, shape=given.shape)
            if not (self.is_typed and given.fill(added.contents)):
                message.raw_input_contents.append(given.content)
        for name, value in self.parameters.items():
            message.parameters[name].int64_param = value
        if self.is_streaming_call:
            message.parameters["triton_enable_empty_final_response"].bool_param = True
        return message

    def binary(self) -> tuple[bytes, int]:
        """Return the request in HTTP's binary form: the body, and the length of the JSON at its beginning."""
        inputs = [
            {
                "name": name,
                "datatype": given.data_type,
                "shape": given.shape,
                "parameters": {"binary_data_size": len(given.content)},
            }
            for name, given in self.tensors.items()
        ]
        header = json.dumps({"id": self.request_id, "inputs": inputs}).encode()
        return header + b"".join(given.content for given in self.tensors.values()), len(header)


def numbers(data_type: str, values: object, *, dims: tuple[int, ...] | None = None) -> Given:
    """Return numbers as ``[1, n]`` unless `dims` says otherwise."""
    array = np.array(values, dtype=_NUMPY[data_type])
    return Given(data_type, (1, array.size) if dims is None else dims, array.tobytes())


def strings(*values: bytes) -> Given:
    """Return texts as ``[1, n]``."""
    return Given("BYTES", (1, len(values)), b"".join(struct.pack("<I", len(value)) + value for value in values))


class RequestFuzzer:
    """A maker of random requests, equal for equal seeds."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)

    def request(self) -> Sent:
        """Return the next request."""
        rng = self._rng
        model = rng.choices(list(MODELS), list(MODELS.values()))[0]
        num_prompts = rng.randrange(2, 5) if model != "postprocessing" and rng.random() < 0.2 else 1
        is_chat = rng.random() < 0.2
        tensors = (
            self._valid(model, is_chat=is_chat) if num_prompts == 1 else self._valid_batch(model, num_prompts, is_chat)
        )
        sent = Sent(
            model, tensors, num_prompts=num_prompts, request_id=rng.choice(["", "a", str(rng.randrange(10**9))])
        )
        if model in ("preprocessing", "postprocessing"):
            sent = replace(sent, is_streaming_call=rng.random() < 0.5)
        if rng.random() < 0.4:
            return sent
        for _ in range(rng.randrange(1, 4)):
            sent = rng.choice(self._mutations())(sent)
        return replace(sent, is_valid=False)

    def json_body(self) -> tuple[str, bytes]:
        """Return a model and a body for HTTP's `generate` and `generate_stream`."""
        rng = self._rng
        model = rng.choices(list(MODELS), list(MODELS.values()))[0]
        body: dict[str, object] = {"text_input": self._text().decode(), "max_tokens": rng.randrange(1, 20)}
        for _ in range(rng.randrange(3)):
            body[rng.choice([*self._names("ensemble"), "", "id", "colour"])] = self._json_value(depth=0)
        encoded = json.dumps(body).encode()
        match rng.randrange(8):
            case 0:
                return model, rng.randbytes(rng.randrange(200))
            case 1:
                return model, encoded[: rng.randrange(len(encoded))]
        return model, encoded

    # What is right

    def _valid(self, model: str, *, is_chat: bool = False) -> dict[str, Given]:
        rng = self._rng
        length, ids = rng.randrange(1, 20), [rng.randrange(3, 2000) for _ in range(rng.randrange(1, 60))]
        options = {
            "temperature": numbers("FP32", [rng.uniform(0.1, 2)]),
            "seed": numbers("UINT64", [rng.randrange(2**64)]),
            "return_num_output_tokens": numbers("BOOL", [rng.random() < 0.5]),
            "return_finish_reason": numbers("BOOL", [rng.random() < 0.5]),
            "exclude_input_in_output": numbers("BOOL", [rng.random() < 0.5]),
        }
        chosen = {name: given for name, given in options.items() if rng.random() < 0.3}
        is_streaming = numbers("BOOL", [rng.random() < 0.5])
        stop_words = strings(*(self._text()[:9].decode(errors="ignore").encode() or b"x" for _ in range(2)))
        match model:
            case "ensemble" | "ensemble_graph" | "tensorrt_llm_bls":
                prompt = {"messages": self._messages()} if is_chat else {"text_input": strings(self._text())}
                required = prompt | {"max_tokens": numbers("INT32", [length])}
                more = {"stream": is_streaming} | ({"stop_words": stop_words} if rng.random() < 0.3 else {})
                return required | chosen | more
            case "tensorrt_llm":
                return {
                    "input_ids": numbers("INT32", ids),
                    "input_lengths": numbers("INT32", [len(ids)]),
                    "request_output_len": numbers("INT32", [length]),
                    "streaming": is_streaming,
                } | chosen
            case "preprocessing":
                return {"QUERY": strings(self._text()), "REQUEST_OUTPUT_LEN": numbers("INT32", [length])}
        return {"TOKENS_BATCH": numbers("INT32", ids, dims=(1, 1, len(ids)))}

    def _valid_batch(self, model: str, num_prompts: int, is_chat: bool) -> dict[str, Given]:
        """Return several valid requests as one, with the tensors that all of them have; ids are padded."""
        rows = [self._valid(model, is_chat=is_chat) for _ in range(num_prompts)]
        names = [name for name in rows[0] if all(name in row for row in rows)]
        width = max(row["input_ids"].shape[1] for row in rows) if "input_ids" in names else 0
        together = {}
        for name in names:
            parts = [row[name].content.ljust(4 * width if name == "input_ids" else 0, b"\xff") for row in rows]
            dims = (width,) if name == "input_ids" else rows[0][name].shape[1:]
            together[name] = Given(rows[0][name].data_type, (num_prompts, *dims), b"".join(parts))
        return together

    def _text(self) -> bytes:
        words = [self._rng.choice(_WORDS) for _ in range(self._rng.randrange(1, 20))]
        return f"x{' '.join(words)}".encode()

    def _messages(self) -> Given:
        message = {"role": self._rng.choice(["system", "user", "assistant"]), "content": self._text().decode()}
        return strings(json.dumps([message] * self._rng.randrange(1, 5)).encode())

    def _names(self, model: str) -> list[str]:
        return [name for name, _ in inputs_of(model.removesuffix("_graph"))]

    # What is wrong

    def _mutations(self) -> list[Callable[[Sent], Sent]]:
        of_the_contract: list[Callable[[Sent], Sent]] = [self._with_another_of_the_contract] * 2
        in_one_tensor = [self._with_another_shape, self._with_another_type, self._with_random_content]
        in_its_values = [self._with_extreme_values, self._with_something_huge]
        around_it = [
            self._without_one,
            self._with_a_stranger,
            self._with_parameters,
            self._by_another_call,
            self._typed,
        ]
        return of_the_contract + in_one_tensor + in_its_values + around_it

    def _changed(self, sent: Sent, name: str, given: Given) -> Sent:
        return replace(sent, tensors=sent.tensors | {name: given})

    def _pick(self, sent: Sent) -> tuple[str, Given]:
        if not sent.tensors:
            return "text_input", strings(b"x")
        name = self._rng.choice(list(sent.tensors))
        return name, sent.tensors[name]

    def _without_one(self, sent: Sent) -> Sent:
        dropped, _ = self._pick(sent)
        return replace(sent, tensors={name: given for name, given in sent.tensors.items() if name != dropped})

    def _with_a_stranger(self, sent: Sent) -> Sent:
        name = self._rng.choice(["colour", "", "TEXT_INPUT", "\N{SNOWMAN}", "a" * 1000, "../../x"])
        return self._changed(sent, name, self._anything())

    def _with_another_of_the_contract(self, sent: Sent) -> Sent:
        name, row = self._rng.choice(inputs_of(sent.model.removesuffix("_graph")))
        data_type = row.data_type.removeprefix("TYPE_")
        if data_type == "STRING":
            return self._changed(sent, name, strings(*(self._bytes() for _ in range(self._rng.randrange(3)))))
        dims = tuple(self._rng.randrange(1, 4) if dim < 0 else dim for dim in row.dims)
        count = int(np.prod(dims))
        values = [self._extreme(data_type) for _ in range(count)]
        return self._changed(sent, name, numbers(data_type, values, dims=(1, *dims)))

    def _with_another_shape(self, sent: Sent) -> Sent:
        name, given = self._pick(sent)
        if self._rng.random() < 0.2:
            shape = (2**62,) * self._rng.randrange(1, 4)  # with no 0: that crashes Triton (test_known_crashes)
        else:
            shape = tuple(self._rng.choice([0, 1, 1, 2, 3, 257, 10**6, -1]) for _ in range(self._rng.randrange(5)))
        return self._changed(sent, name, replace(given, shape=shape))

    def _with_another_type(self, sent: Sent) -> Sent:
        name, given = self._pick(sent)
        data_type = self._rng.choice([*_NUMPY, "BYTES", "BF16", "STRING", "", "FP8", "x"])
        return self._changed(sent, name, replace(given, data_type=data_type))

    def _with_random_content(self, sent: Sent) -> Sent:
        name, given = self._pick(sent)
        size = self._rng.choice([len(given.content), 0, 1, 4, self._rng.randrange(300)])
        return self._changed(sent, name, replace(given, content=self._rng.randbytes(size)))

    def _with_extreme_values(self, sent: Sent) -> Sent:
        name, given = self._pick(sent)
        if given.data_type not in _NUMPY:
            return self._changed(sent, name, strings(self._bytes()))
        count = max(1, len(given.content) // np.dtype(_NUMPY[given.data_type]).itemsize)
        values = [self._extreme(given.data_type) for _ in range(count)]
        return self._changed(sent, name, replace(given, content=numbers(given.data_type, values).content))

    def _with_something_huge(self, sent: Sent) -> Sent:
        name, given = self._pick(sent)
        count = self._rng.choice([10_000, 100_000])
        if given.data_type not in _NUMPY:
            return self._changed(sent, name, strings(self._text() * (count // 100)))
        dims = (1, 1, count) if len(given.shape) == 3 else (1, count)
        return self._changed(sent, name, numbers(given.data_type, [1] * count, dims=dims))

    def _with_parameters(self, sent: Sent) -> Sent:
        names = ["priority", "timeout", "colour", "release"]
        values = [0, 1, 2, 10**6, 2**62]
        return replace(sent, parameters={self._rng.choice(names): self._rng.choice(values)})

    def _by_another_call(self, sent: Sent) -> Sent:
        return replace(sent, is_streaming_call=not sent.is_streaming_call)

    def _typed(self, sent: Sent) -> Sent:
        return replace(sent, is_typed=True)

    def _anything(self) -> Given:
        data_type = self._rng.choice(list(_NUMPY))
        return numbers(data_type, [self._extreme(data_type)])

    def _bytes(self) -> bytes:
        rng = self._rng
        choices = [b"", b"\x00", b"\xff\xfe", b" ", "\u0301".encode(), rng.randbytes(rng.randrange(50)), self._text()]
        return rng.choice(choices)

    def _extreme(self, data_type: str) -> object:
        rng, numpy_type = self._rng, _NUMPY[data_type]
        if issubclass(numpy_type, np.floating):
            limits = np.finfo(numpy_type)
            values = [float("nan"), float("inf"), float("-inf"), float(limits.max), float(limits.min), -0.0, 0.0, 0.5]
            return rng.choice(values)
        if not issubclass(numpy_type, np.integer):
            return rng.random() < 0.5
        whole = np.iinfo(numpy_type)
        return rng.choice([int(whole.min), int(whole.max), 0, 1, 2, rng.randint(int(whole.min), int(whole.max))])

    def _json_value(self, *, depth: int) -> object:
        rng = self._rng
        leaves: list[object] = [
            None, True, -1, 0, 1, 2**40, 2**70, 0.5, 1e300, float("nan"), float("inf"), "", "x" * 1000, "\x00",
            "\ud800",
        ]  # fmt: skip
        match rng.randrange(5) if depth < 3 else 4:
            case 0:
                return [self._json_value(depth=depth + 1) for _ in range(rng.randrange(4))]
            case 1:
                return {str(index): self._json_value(depth=depth + 1) for index in range(rng.randrange(3))}
        return rng.choice(leaves)
