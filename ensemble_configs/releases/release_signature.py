# SPDX-License-Identifier: Apache-2.0
"""The detached signature of a release: Ed25519 over its address (64 hexadecimal digits, ASCII), in `release.sig`.

`openssl pkeyutl -sign -rawin -inkey private.pem -in address -out release.sig` makes one.
"""

from collections.abc import Callable
from pathlib import Path

from ensemble_configs.releases.release_manifest import SIGNATURE_FILE
from ensemble_configs.spec.finding import Finding
from trireme.base.errors import SpecError
from trireme.base.extras import how_to_install


def check_signature(folder: Path, address: str, public_key: Path) -> list[Finding]:
    """Return a finding if the owner of a key has not signed a release's address.

    Raises:
        SpecError: `public_key` is not a PEM file with an Ed25519 key.
    """
    verify = _load_key(public_key)
    path = folder / SIGNATURE_FILE
    if not path.is_file():
        found = "no release.sig"
    elif not verify(path.read_bytes(), address.encode()):
        found = "release.sig, which is not of this key and this content"
    else:
        return []
    next_step = "pull the release from where it was signed, or have it signed again if it was sealed again"
    return [Finding(check="signature", found=found, wanted=f"{address} signed for {public_key}", next_step=next_step)]


def _load_key(path: Path) -> Callable[[bytes, bytes], bool]:
    """Return a function that tells whether a signature is of some data, by the key in a PEM file."""
    try:  # only deployments that name a key need the package
        from cryptography.exceptions import InvalidSignature  # noqa: PLC0415
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey  # noqa: PLC0415
        from cryptography.hazmat.primitives.serialization import load_pem_public_key  # noqa: PLC0415
    except ModuleNotFoundError as exc:
        raise SpecError(
            f"release_public_key needs {exc.name}, which is not installed; {how_to_install('')}",
            field="release_public_key",
        ) from exc
    try:
        key = load_pem_public_key(path.read_bytes())
    except (OSError, ValueError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "it is no PEM file with a public key"
        raise SpecError(
            f"release_public_key: cannot read {path}: {reason}; `openssl pkey -pubout` writes one",
            field="release_public_key",
        ) from exc
    if not isinstance(key, Ed25519PublicKey):
        raise SpecError(
            f"release_public_key: {path} holds no Ed25519 key; name one that does", field="release_public_key"
        )

    def verify(signature: bytes, data: bytes) -> bool:
        try:
            key.verify(signature, data)
        except InvalidSignature:
            return False
        return True

    return verify
