# SPDX-License-Identifier: Apache-2.0
"""The imports that the generated fake `tensorrt_llm` makes when it is imported: those of the real one.

The imports are real: what is wrong with transformers, huggingface-hub or openai ends them with the library's own error.
What needs a driver asks for the driver's library. Sources, NVIDIA/TensorRT-LLM 1.2:
- `tensorrt_llm/llmapi/llm_args.py`: torch, yaml, pydantic, strenum, `transformers.PreTrainedTokenizerBase`
- `tensorrt_llm/_utils.py`, `runtime/`, `profiler.py`: numpy, packaging; `pynvml.nvmlInit()` where pynvml is there,
  which loads libnvidia-ml.so.1 (triton-inference-server/server#7574 shows the import failing of it)
- `tensorrt_llm/_torch/pyexecutor/py_executor.py`: `tensorrt_llm.serve.responses_utils`; loaded when an LLM of the
  PyTorch backend is made
- `tensorrt_llm/serve/responses_utils.py`: openai's and openai_harmony's names
- `tensorrt_llm/__init__.py`: prints its version
Not stood in: Open MPI, libpython, TensorRT's and torch's libraries.
"""

from pathlib import Path

_MARK = "# Added by tests/fakes/trtllm_imports.py\n"

_PACKAGE = """
import numpy, packaging, pydantic, torch, yaml
from strenum import StrEnum
from transformers import PreTrainedTokenizerBase
import tensorrt_llm.profiler
"""

# As pynvml: its error has no module of its own here.
_PROFILER = """
import ctypes

class NVMLError_LibraryNotFound(Exception):
    pass

def nvmlInit():
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        raise NVMLError_LibraryNotFound("NVML Shared Library Not Found")

nvmlInit()
"""

_PY_EXECUTOR = "from tensorrt_llm.serve.responses_utils import get_steady_clock_now_in_seconds\n"

_RESPONSES = """
from openai.types.responses import ResponseOutputText, ResponseReasoningItem, ResponseReasoningTextDeltaEvent
from openai.types.responses.response_content_part_added_event import PartReasoningText
from openai.types.responses.response_content_part_done_event import Part as ResponseContentPart
from openai.types.responses.response_function_web_search import ActionFind, ActionOpenPage, ActionSearch
from openai.types.responses.response_reasoning_item import Content
from openai.types.responses.tool import FunctionTool, Tool
from openai_harmony import Author, Conversation, Message, Role
from transformers import AutoProcessor, PretrainedConfig
import time

def get_steady_clock_now_in_seconds():
    return time.monotonic()
"""

_LLM = """
import functools as _functools

_make = LLM.__init__

@_functools.wraps(_make)
def _make_with_executor(self, *args, **kwargs):
    import tensorrt_llm._torch.pyexecutor.py_executor
    _make(self, *args, **kwargs)

LLM.__init__ = _make_with_executor
"""


def add_imports(packages: Path) -> None:
    """Add the imports to the fake that `trtllm_generator.write_fake` has written into a folder."""
    package = packages / "tensorrt_llm"
    modules = {
        "profiler.py": _PROFILER,
        "serve/__init__.py": "",
        "serve/responses_utils.py": _RESPONSES,
        "_torch/__init__.py": "",
        "_torch/pyexecutor/__init__.py": "",
        "_torch/pyexecutor/py_executor.py": _PY_EXECUTOR,
    }
    for name, source in modules.items():
        path = package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_MARK + source, encoding="utf-8")
    _append(package / "__init__.py", _PACKAGE + 'print(f"[TensorRT-LLM] TensorRT LLM version: {__version__}")\n')
    _append(package / "llmapi" / "__init__.py", _LLM)


def _append(path: Path, source: str) -> None:
    path.write_text(path.read_text(encoding="utf-8") + _MARK + source, encoding="utf-8")
