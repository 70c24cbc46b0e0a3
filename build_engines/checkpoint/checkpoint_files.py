# SPDX-License-Identifier: Apache-2.0
"""The files of a checkpoint's folder that hold its tensors, and checks that none leads out of the folder or runs code.

Nothing is imported, unpickled or downloaded: names, links and headers are looked at.
"""

import json
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from ensemble_configs.releases.safetensors_file import StoredTensor, read_header
from trireme.base.errors import SpecError

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_PICKLES = (".bin", ".ckpt", ".pickle", ".pkl", ".pt", ".pth")
_CODE_HOLDERS = ("config.json", "tokenizer_config.json", "generation_config.json")


def check_links(folder: Path) -> None:
    """Refuse a checkpoint that is spread over other folders: hashed and copied, it would not be what was checked.

    Raises:
        SpecError: a link leads out of the folder.
    """
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() and not path.resolve().is_relative_to(folder.resolve()):
            raise SpecError(
                f"{path} is a link out of the checkpoint, to {path.resolve()}; copy what the links lead to: "
                f"cp -rL {folder} NEW_FOLDER",
                file=path,
            )


def check_no_code(folder: Path) -> None:
    """Refuse a checkpoint that brings programs with it.

    Raises:
        SpecError: a `.py` file, or an `auto_map` that would load one.
    """
    programs = sorted(path.name for path in folder.rglob("*.py"))
    if programs:
        raise SpecError(
            f"{folder} brings code with it ({shortened(programs)}), which is never run here; where config.json names "
            f"an architecture that is known here the code is not needed: delete it",
            file=folder / programs[0],
        )
    for name in _CODE_HOLDERS:
        path = folder / name
        if path.is_file() and "auto_map" in read_json(path):
            raise SpecError(
                f"{path} wants remote code (auto_map), which is never run here; where architectures names one that is "
                f"known here the key is not needed: delete it",
                file=path,
                field="auto_map",
            )


def stored_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Return the tensors of a checkpoint by name, from a single file or from the files that its index names.

    Raises:
        SpecError: pickled weights only, no weights, unclear which, an index that names missing files or files
            elsewhere or disagrees with them, a link out of the folder, or a file that is no safetensors.
    """
    index = folder / _INDEX
    if index.is_file():
        if (folder / _SINGLE).exists():
            raise SpecError(
                f"{folder} has both {_SINGLE} and {_INDEX}, so it is unclear which weights count; delete one",
                file=index,
            )
        return _indexed_tensors(folder, index)
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        pickles = sorted(path.name for path in folder.iterdir() if path.suffix in _PICKLES)
        if pickles:
            raise SpecError(
                f"{folder} has pickled weights only ({shortened(pickles)}), and unpickling runs what is in them; save "
                f"the model as safetensors: save_pretrained(folder, safe_serialization=True)",
                file=folder / pickles[0],
            )
        raise SpecError(f"{folder} has no *.safetensors; name the folder of a checkpoint", file=folder)
    if len(files) > 1:
        raise SpecError(
            f"{folder} has {len(files)} files of weights ({shortened([file.name for file in files])}) and no {_INDEX} "
            f"that says which tensor is where; download the index too",
            file=index,
        )
    return read_header(files[0])


def read_json(path: Path) -> dict[str, object]:
    """Return the JSON object that a file holds.

    Raises:
        SpecError: the file cannot be read or does not hold an object.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as exc:
        raise SpecError(f"cannot read {path}: {exc.strerror}", file=path) from exc
    except (ValueError, RecursionError) as exc:
        raise SpecError(f"{path} is not JSON: {exc}", file=path) from exc
    if not isinstance(values, dict):
        raise SpecError(f"{path} holds no object of keys and values", file=path)
    return values


def _indexed_tensors(folder: Path, index: Path) -> dict[str, StoredTensor]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(file, str) for file in weight_map.values()):
        raise SpecError(f"{index} has no weight_map of tensors and files; download it again", file=index)
    names = sorted(set(weight_map.values()))
    for name in names:
        is_plain = PurePosixPath(name).name == name and "\\" not in name and len(name) < 200 and name.isprintable()
        if not is_plain or not name.endswith(".safetensors"):
            raise SpecError(
                f"{index} names {name[:120]!a}, which is no *.safetensors file of this folder; correct the index",
                file=index,
            )
        if not (folder / name).is_file():
            raise SpecError(f"{index} names {name}, which is not there; download it too", file=folder / name)
    tensors: dict[str, StoredTensor] = {}
    for name in names:
        tensors |= _checked_part(index, weight_map, name, read_header(folder / name))
    lost = sorted(weight_map.keys() - tensors.keys())
    if lost:
        raise SpecError(
            f"{index} says that {weight_map[lost[0]]} holds {shortened(lost)}, but it does not; download both again",
            file=folder / weight_map[lost[0]],
            field=shortened(lost[:1]),
        )
    return tensors


def _checked_part(
    index: Path, weight_map: dict[str, str], file: str, tensors: dict[str, StoredTensor]
) -> dict[str, StoredTensor]:
    strangers = [name for name in tensors if weight_map.get(name) != file]
    if strangers:
        raise SpecError(
            f"{file} holds {shortened(strangers)}, of which {index} knows nothing or says that another file has it; "
            f"download both again",
            file=index.with_name(file),
            field=shortened(strangers[:1]),
        )
    return tensors


def shortened(names: Iterable[str]) -> str:
    """Return the first three names and the number of the rest, for a message.

    Names come from the checkpoint, so unprintable characters are escaped.
    """
    names = list(names)
    shown = ", ".join(name[:120] if name.isprintable() else ascii(name[:120]) for name in names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3:,} more"
