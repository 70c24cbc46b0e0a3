# SPDX-License-Identifier: Apache-2.0
"""The files of a Hugging Face checkpoint, by purpose, with their hashes; what the weights hold is not looked at."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from build_engines.checkpoint.checkpoint_config import read_whole_model_shape
from build_engines.checkpoint.config_values import load_config
from build_engines.checkpoint.model_shape import ModelShape
from ensemble_configs.releases.file_hashes import HashMemory, hash_files, hash_listing
from trireme.base.errors import SpecError

TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "tokenizer.model", "added_tokens.json",
    "vocab.json", "merges.txt", "chat_template.jinja", "chat_template.json",
)  # fmt: skip
_SUFFIXES = {".safetensors", ".json", ".model", ".txt", ".jinja"}


@dataclass(frozen=True)
class CheckpointFiles:
    """A folder with config.json, safetensors and a tokenizer."""

    dir: Path

    @cached_property
    def config(self) -> dict[str, object]:
        """Return the contents of `config.json`, unchanged."""
        if not self.dir.is_dir():
            raise SpecError(f"--checkpoint {self.dir} is not a folder; name one with config.json", file=self.dir)
        return load_config(self.dir)

    @cached_property
    def shape(self) -> ModelShape:
        """Return the shape of the model that the config describes."""
        source = str(self.dir / "config.json")
        config = _as_hugging_face(self.config) if self.is_converted else self.config
        return read_whole_model_shape(config, source=source)

    @property
    def is_converted(self) -> bool:
        """Return True if one of TensorRT-LLM's scripts has written the folder: config.json and rank0.safetensors."""
        return "architectures" not in self.config and isinstance(self.config.get("mapping"), dict)

    @property
    def num_ranks(self) -> int:
        """Return the number of weight files of a converted checkpoint, one for each rank."""
        return sum(1 for path in self.weight_files if path.name.startswith("rank"))

    @property
    def files(self) -> list[Path]:
        """Return every file that a tool may read, sorted: weights, configs and tokenizer.

        Code, pickles and subfolders are left out.
        """
        return sorted(path for path in self.dir.iterdir() if path.suffix in _SUFFIXES and path.is_file())

    @property
    def weight_files(self) -> list[Path]:
        """Return the paths of the safetensors files."""
        return [path for path in self.files if path.suffix == ".safetensors"]

    @property
    def tokenizer_files(self) -> list[Path]:
        """Return the paths of the tokenizer files that are there."""
        return [self.dir / name for name in TOKENIZER_FILES if (self.dir / name).is_file()]

    @property
    def weight_bytes(self) -> int:
        """Return the total size of the weight files, in bytes."""
        return sum(path.stat().st_size for path in self.weight_files)

    @cached_property
    def hashes(self) -> dict[str, str]:
        """Return the SHA-256 of each file by name.

        A file that was hashed before and has not changed is not read again.
        """
        hashes = hash_files(self.files, memory=HashMemory.of_folder(self.dir))
        return dict(zip((path.name for path in self.files), hashes, strict=True))

    def check_readable(self) -> None:
        """Refuse a checkpoint with an unreadable file, before gigabytes are read.

        Raises:
            SpecError: this user may not read one of the files.
        """
        for path in self.files:
            _check_readable(path)

    @property
    def sha256(self) -> str:
        """Return one SHA-256 for all files."""
        return hash_listing(self.hashes)

    @property
    def weights_sha256(self) -> str:
        """Return one SHA-256 for the weight files."""
        return hash_listing({path.name: self.hashes[path.name] for path in self.weight_files})


def _check_readable(path: Path) -> None:
    try:
        with path.open("rb"):
            pass
    except OSError as exc:
        raise SpecError(
            f"cannot read {path} of --checkpoint: {exc.strerror}; let this user read all files in it, or copy it",
            file=path,
        ) from exc


def _as_hugging_face(config: dict[str, object]) -> dict[str, object]:
    """Return TensorRT-LLM's config in Hugging Face's names; a base with a drafter is taken for its base, a Llama."""
    architecture = config.get("architecture")
    is_drafting = architecture in ("EagleForCausalLM", "MedusaForCausalLM", "ReDrafterForLLaMALM")
    names = {"head_dim": config.get("head_size"), "torch_dtype": config.get("dtype")}
    return config | names | {"architectures": ["LlamaForCausalLM" if is_drafting else architecture]}


def folder_sha256(folder: Path) -> str:
    """Return one SHA-256 for a folder's files, subfolders included, or for a single file by its name."""
    paths = [folder] if folder.is_file() else sorted(path for path in folder.rglob("*") if path.is_file())
    names = [path.relative_to(folder.parent if folder.is_file() else folder).as_posix() for path in paths]
    return hash_listing(dict(zip(names, hash_files(paths), strict=True)))
