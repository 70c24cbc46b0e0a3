# SPDX-License-Identifier: Apache-2.0
"""The LoRA adapters of a deployment: folders in `engine.lora.dir` that may come, change and go while an engine runs.

A request finds its adapter by the folder's name. Adding an adapter is a folder more, taking one out a folder less; what
runs goes on. `trireme adapters` does both so that no half-copied folder is ever seen; its folders are links, and what
they name stays a while (`serving.supervisor.adapters_command`), for upstream reads the files of a request after we have
looked.
"""

import hashlib
import logging
import os
from pathlib import Path
from typing import NamedTuple

import msgspec

from ensemble_configs.spec.engine.lora_spec import LoraSpec
from serving.engines.seam.adapter_check import ANY_SIZES, CONFIG, NAME, WEIGHTS, ModelSizes, check_adapter
from trireme.base.errors import RequestError, SpecError
from trireme.base.known_types import known

_log = logging.getLogger("trireme.adapters")

_MAX_SHOWN = 8
_QKV = frozenset({"attn_q", "attn_k", "attn_v"})


class Adapter(NamedTuple):
    """An adapter by the name, number and folder that the engine is given."""

    name: str
    number: int  # upstream's lora_int_id: another one whenever the files are others
    folder: Path


_Stamp = tuple[tuple[int, int, int], ...]  # for each file: inode, bytes, time of its last change


class AdapterFolder:
    """The adapters by name; finding one costs a look at two files.

    Upstream loads an adapter by its number once and never again, so new weights under an old number would not be
    looked at. The number follows from the files, and KV blocks that the old weights made are not reused for the new.
    TensorRT-LLM frees no adapter that it has loaded (its own caches, `max_device_adapters` and `max_host_adapters`,
    copy from what it keeps), so their number in an engine's life is bounded here, unless `is_freed`.
    """

    def __init__(
        self,
        lora: LoraSpec,
        modules: frozenset[str] | None,
        sizes: ModelSizes = ANY_SIZES,
        *,
        upstream: str = "TensorRT-LLM",
        is_freed: bool = False,
    ) -> None:
        """Remember the settings; no file is read yet.

        Args:
            lora: the deployment's LoRA settings.
            modules: that the engine was started for, by TensorRT-LLM's names; None: any.
            sizes: of the engine's model.
            upstream: name of the engine, for messages.
            is_freed: the engine frees adapters that are not used.
        """
        self._upstream = upstream
        self._is_freed = is_freed
        self._lora = lora
        self._sizes = sizes
        self._modules = modules
        self._checked: dict[str, tuple[_Stamp, Adapter]] = {}
        self._loaded: set[int] = set()  # numbers that upstream was given
        self._taken: set[int] = set()  # numbers of requests that upstream took
        self._failed: dict[int, str] = {}  # by number: why upstream could not load the adapter

    def find(self, name: str, *, field: str) -> Adapter:
        """Return the adapter of a name, as it is now.

        Args:
            name: of a folder in `engine.lora.dir`.
            field: the request's field, for messages.

        Raises:
            RequestError: there is none, it cannot be served, or the engine has had as many as it may.
        """
        files = files_of(self._lora.dir / name) if NAME.fullmatch(name) else None
        stamp = None if files is None else _stamp(files)
        if files is None or stamp is None:
            raise self._unknown(name, field)
        known = self._checked.get(name)
        if known is None or known[0] != stamp:
            self._check(files, name, field)
            known = self._checked[name] = stamp, Adapter(name, _number(name, stamp), files)
        adapter = known[1]
        if (reason := self._failed.get(adapter.number)) is not None:
            raise self._unloadable(adapter.name, reason, field)
        if not self._is_freed:
            self._note_loaded(adapter, field)
        return adapter

    def is_current(self, adapter: Adapter) -> bool:
        """Return whether the folder of an adapter still has the files that it had; what was known of others is lost."""
        files = files_of(self._lora.dir / adapter.name)
        stamp = _stamp(files)
        is_there = stamp is not None and _number(adapter.name, stamp) == adapter.number
        if not is_there and (known := self._checked.get(adapter.name)) is not None and known[1] == adapter:
            del self._checked[adapter.name]
        return is_there

    def note_taken(self, number: int) -> None:
        """Note that upstream has taken a request with an adapter, so its files are in order."""
        self._taken.add(number)

    def is_taken(self, number: int) -> bool:
        """Return whether upstream has taken a request with this adapter before."""
        return number in self._taken

    def note_failed(self, name: str, number: int, reason: str, *, field: str) -> RequestError:
        """Note that upstream could not load an adapter, and return the error of its request.

        Upstream keeps what it has read of the files until then and takes it for the adapter the next time, so it must
        not be asked for that number again.
        """
        self._failed[number] = reason
        return self._unloadable(name, reason, field)

    def _unloadable(self, name: str, reason: str, field: str) -> RequestError:
        return RequestError(
            f"{field} ({name}): {self._upstream} could not load this adapter: {reason}; mend it and load it again",
            field=field,
            value=name,
        )

    def _check(self, files: Path, name: str, field: str) -> None:
        try:
            check_adapter(files, self._lora, self._modules, self._sizes)
        except SpecError as exc:
            raise RequestError(f"{field}: {exc.message}", field=field, value=name) from exc

    def _note_loaded(self, adapter: Adapter, field: str) -> None:
        limit = self._lora.max_adapters
        if adapter.number not in self._loaded and len(self._loaded) >= limit:
            raise RequestError(
                f"{field} ({adapter.name}) would be adapter {limit + 1} of this engine's life, and TensorRT-LLM frees "
                f"none; raise engine.lora.max_adapters ({limit}), or start the engine anew",
                field=field,
                value=adapter.name,
                max_adapters=limit,
            )
        self._loaded.add(adapter.number)

    def _unknown(self, name: str, field: str) -> RequestError:
        names = [folder.name for folder in adapter_folders(self._lora)]
        shown = ", ".join(names[:_MAX_SHOWN]) + (", ..." if len(names) > _MAX_SHOWN else "")
        there = f"there are {shown}" if names else "there are none yet"
        return RequestError(
            f"{field} ({name[:128]}) is no adapter in engine.lora.dir; {there}", field=field, value=name[:128]
        )


def files_of(folder: Path) -> Path:
    """Return where the files of an adapter are: what its link names, which never changes, or the folder itself.

    A link is read once, before anything in it: a caller that looked through it twice could see two adapters.
    """
    try:
        return folder.parent / os.readlink(folder)  # noqa: PTH115  a string is enough
    except OSError:
        return folder


def adapter_folders(lora: LoraSpec) -> list[Path]:
    """Return the adapters' folders by name; none if `engine.lora.dir` does not exist."""
    if not lora.dir.is_dir():
        return []
    return sorted(folder for folder in lora.dir.iterdir() if folder.is_dir() and NAME.fullmatch(folder.name))


class _Sizes(msgspec.Struct):
    """The sizes as checkpoints and engines write them."""

    num_hidden_layers: int | None = None
    hidden_size: int | None = None


class _ModelConfig(_Sizes):
    """The `config.json` of a checkpoint, of one with several parts, or of a compiled engine."""

    text_config: _Sizes | None = None
    pretrained_config: _Sizes | None = None


def model_sizes(folder: Path) -> ModelSizes:
    """Return the sizes of the model in an engine's folder; no sizes where its files are missing or do not tell them."""
    try:
        config = msgspec.json.decode((folder / "config.json").read_bytes(), type=known(_ModelConfig))
    except (OSError, msgspec.DecodeError):  # loading the engine says what is wrong with the file
        return ANY_SIZES
    sizes = config.pretrained_config or config.text_config or config
    return ModelSizes(sizes.num_hidden_layers, sizes.hidden_size)


def engine_modules(lora: LoraSpec) -> frozenset[str]:
    """Return the modules that an engine must be started for, by upstream's names.

    Raises:
        SpecError: the deployment names none, and there is no adapter to take them from.
    """
    modules = frozenset(lora.target_modules) or _modules_there(lora)
    if modules & _QKV:
        modules |= _QKV  # upstream adds what is missing of the three (LoraManager.get_missing_qkv_modules)
    if not modules:
        raise SpecError(
            f"engine.lora.target_modules is empty, and {lora.dir} has no adapter to take them from; name the modules "
            "that adapters may change, such as [attn_q, attn_k, attn_v]",
            field="engine.lora.target_modules",
        )
    return modules


def named_modules(lora: LoraSpec) -> frozenset[str] | None:
    """Return the modules that the deployment names for its adapters, completed; None: it names none."""
    return engine_modules(lora) if lora.target_modules else None


def _modules_there(lora: LoraSpec) -> frozenset[str]:
    modules: frozenset[str] = frozenset()
    for folder in adapter_folders(lora):
        try:
            modules |= check_adapter(folder, lora).modules
        except SpecError as exc:  # an error of the adapter's requests, not of the engine
            _log.warning("the adapter %s cannot be served: %s", folder.name, exc.message)
    return modules


def _stamp(folder: Path) -> _Stamp | None:
    try:
        stats = [os.stat(folder / name) for name in (CONFIG, WEIGHTS)]  # noqa: PTH116  two system calls a request
    except FileNotFoundError:
        return () if folder.is_dir() else None
    except OSError:
        return None
    return tuple((stat.st_ino, stat.st_size, stat.st_mtime_ns) for stat in stats)


def _number(name: str, stamp: _Stamp) -> int:
    """Return a number from 1 to 2^31 - 1 that is equal for equal files."""
    digest = hashlib.sha256(repr((name, stamp)).encode()).digest()
    return int.from_bytes(digest[:4], "big") % (2**31 - 1) + 1
