"""Signs what an image holds, and verifies it, with `ssh-keygen -Y`: no server, no key but the one you have.

What is signed is a statement, a small JSON file beside the signature, so that plain ssh-keygen can verify it too:
`ssh-keygen -Y verify -f SIGNERS -I IDENTITY -n loradock-image -s FILE.sig < FILE`.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from loradock.delivery.image import labels
from loradock.errors import EnvironmentUnfit, InputMissing, UsageError
from loradock.files import atomic_io
from loradock.files.system_errors import storage_error

NAMESPACE = "loradock-image"
SUFFIX = ".sig"
FORMAT = "loradock statement 1"


def statement(digest: str, *, image_labels: dict[str, str]) -> dict[str, str]:
    """What is signed: the content digest, and what the image says it was made from."""
    return {
        "format": FORMAT,
        "content": digest,
        "lock": image_labels.get(labels.LOCK, ""),
        "version": image_labels.get(labels.VERSION, ""),
        "revision": image_labels.get(labels.REVISION, ""),
    }


def canonical(content: dict[str, Any]) -> bytes:
    """One text for one statement."""
    return (json.dumps(content, sort_keys=True, separators=(",", ":")) + "\n").encode()


def statement_file(signature: Path) -> Path:
    """Where the statement of a signature lies: the same name without `.sig`."""
    if signature.suffix != SUFFIX:
        raise UsageError(f"a signature's name ends with {SUFFIX}, not: {signature}", hint=f"-o {signature}{SUFFIX}")
    return signature.with_suffix("")


def sign(content: dict[str, str], *, key: Path, signature: Path) -> Path:
    """Write the statement and its signature; returns the statement's path. ssh-keygen asks for the passphrase."""
    place = statement_file(signature)
    if not key.is_file():
        raise InputMissing(f"{key}: no such key", hint=f"ssh-keygen -t ed25519 -f {key}")
    armoured = _ssh_keygen("sign", "-f", str(key), standard_input=canonical(content), wanted="sign with")
    try:
        atomic_io.replace(place, canonical(content))
        atomic_io.replace(signature, armoured)
    except OSError as error:
        raise storage_error(error, signature) from error
    return place


def verify(signature: Path, *, signers: Path, identity: str) -> dict[str, str]:
    """The statement that `identity` has signed; EnvironmentUnfit where the signature does not hold."""
    place = statement_file(signature)
    for path, what in ((signature, "signature"), (place, "statement of the signature"), (signers, "list of signers")):
        if not path.is_file():
            raise InputMissing(f"there is no {what}: {path}", hint="see man ssh-keygen, ALLOWED SIGNERS")
    signed = place.read_bytes()
    _ssh_keygen(
        "verify", "-f", str(signers), "-I", identity, "-s", str(signature), standard_input=signed, wanted="verify"
    )
    content = json.loads(signed)
    if content.get("format") != FORMAT:
        raise EnvironmentUnfit(f"{place} is signed, but no statement of loradock", hint="sign the image: --sign KEY")
    return content


def mismatches(signed: dict[str, str], found_digests: dict[str, str]) -> list[str]:
    """What the signed statement says and the image does not."""
    return [
        f"{key}: signed {signed.get(key)!r}, the image has {found_digests.get(key)!r}"
        for key in sorted(signed.keys() | found_digests.keys())
        if signed.get(key) != found_digests.get(key)
    ]


def _ssh_keygen(action: str, *arguments: str, standard_input: bytes, wanted: str) -> bytes:
    command = ["ssh-keygen", "-Y", action, "-n", NAMESPACE, *arguments]
    try:
        result = subprocess.run(command, input=standard_input, capture_output=True, check=False)
    except FileNotFoundError:
        raise EnvironmentUnfit("ssh-keygen is not installed", hint="apt-get install openssh-client") from None
    if result.returncode != 0:
        message = " ".join((result.stderr + result.stdout).decode(errors="replace").split())
        raise EnvironmentUnfit(
            f"ssh-keygen could not {wanted} {arguments[-1] if action == 'verify' else arguments[1]}: {message}",
            hint="check the file, the identity and the list of signers"
            if action == "verify"
            else "name a private key, or a public one whose private half ssh-agent holds",
        )
    return result.stdout
