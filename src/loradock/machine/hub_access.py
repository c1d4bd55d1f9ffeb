"""Asking a hub for files: the variables that its libraries read are looked at first, then whether it answers at all.

The libraries tell a variable that cannot be right by any exception, or as a hub that is away, and wait for minutes for
a server that says nothing.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from loradock.errors import EnvironmentUnfit, HubError, LoradockError, Problem
from loradock.files.foreign import of_system, said
from loradock.files.system_errors import machine_error, storage_error
from loradock.text import redact

ENDPOINT = "HF_ENDPOINT"
PUBLIC = "https://huggingface.co"
CERTIFICATES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
CERTIFICATE_FOLDER = "SSL_CERT_DIR"
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
TIMEOUTS = ("HF_HUB_ETAG_TIMEOUT", "HF_HUB_DOWNLOAD_TIMEOUT")
OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE")
TRUE_WORDS = {"1", "ON", "YES", "TRUE"}
SOCKS = ("socks5", "socks5h")
ANSWER_SECONDS = 10.0
"""For the first byte; HF_HUB_ETAG_TIMEOUT gives a slow hub more time."""


@contextmanager
def asking(what: str, *, hint: str) -> Iterator[None]:
    """Inside, a library of the hub fetches `what`; what it raises is told by its cause.

    Raises StorageError, DiskFull or NotWritable where the cache cannot be written, EnvironmentUnfit for a missing
    package, HubError with `hint` for all else.
    """
    try:
        yield
    except LoradockError:
        raise
    except ImportError as error:
        raise EnvironmentUnfit(f"{what}: {said(error)}", hint="install the package that it names") from error
    except Exception as error:
        system = of_system(error)
        if failed := machine_error(error):
            raise failed from error
        if system and system.filename:
            raise storage_error(system, Path(str(system.filename))) from error
        raise HubError(f"the hub did not give {what}: {said(error)}", hint=hint) from error


def away(environ: Mapping[str, str] = os.environ) -> str | None:
    """Why the hub does not answer, in words; None where it does, whatever it says. EnvironmentUnfit as `check`.

    One request without a token, so that a hub that is away costs seconds.
    """
    check(environ)
    import httpx

    address = environ.get(ENDPOINT) or PUBLIC
    place = redact.without(address, {})
    seconds = float(environ.get(TIMEOUTS[0]) or ANSWER_SECONDS)
    try:
        httpx.head(address, timeout=seconds)
    except httpx.TimeoutException:
        return f"{place} has not answered for {seconds:g} s"
    except httpx.HTTPError as error:
        by = next((f", by {name}" for name in PROXIES if value(environ, name)), "")
        return f"{place} cannot be reached{by}: {said(error)}"
    return None


def remedy(why: str, *, has_copy: bool = True) -> str:
    """What to do about a hub that is away; `has_copy`: what is asked for may be in the local cache."""
    if "CERTIFICATE_VERIFY_FAILED" in why:
        return "export SSL_CERT_FILE=FILE, with the certificates of your company's proxy in it"
    network = f"check the network, its proxy and {ENDPOINT}"
    return f"{network}; HF_HUB_OFFLINE=1 takes what is in the local cache" if has_copy else network


def check(environ: Mapping[str, str]) -> None:
    """EnvironmentUnfit with every variable of the hub and of TLS that cannot be right."""
    problems = list(wrong(environ))
    if len(problems) == 1:
        raise EnvironmentUnfit(problems[0].what, hint=problems[0].hint)
    if problems:
        raise EnvironmentUnfit("the hub cannot be asked", hint="correct or unset these variables", problems=problems)


def wrong(environ: Mapping[str, str]) -> Iterator[Problem]:
    """What is wrong with each variable; values are shown unless they may hold a secret."""
    if (address := environ.get(ENDPOINT)) and not is_address(address, schemes=("http", "https")):
        place = redact.without(address, {})
        hint = f"export {ENDPOINT}=https://{place.rpartition('://')[2]}, or unset {ENDPOINT}"
        yield Problem(what=f"{ENDPOINT}={place} is not an address that begins with http:// or https://", hint=hint)
    yield from wrong_certificates(environ)
    yield from wrong_proxies(environ)
    for name in TIMEOUTS:
        if (text := environ.get(name)) and not text.isdecimal():
            what = f"{name}={text} is not a whole number of seconds"
            yield Problem(what=what, hint=f"export {name}={ANSWER_SECONDS:.0f}, or unset {name}")
    for name in TOKENS:
        token = environ.get(name, "").strip()
        if token and not (token.isascii() and token.isprintable() and " " not in token):
            yield Problem(what=f"{name} holds characters that no token has", hint=f"export {name}=TOKEN")


def wrong_certificates(environ: Mapping[str, str]) -> Iterator[Problem]:
    """Files and directories of certificates that are not there, or hold none."""
    for name in CERTIFICATES:
        if (file := environ.get(name)) and (why := unusable(Path(file))):
            yield Problem(what=f"{name}={file}: {why}", hint=f"unset {name}, or name a file of PEM certificates")
    folder = environ.get(CERTIFICATE_FOLDER)
    if folder and not any(Path(name).is_dir() for name in folder.split(os.pathsep)):
        what = f"{CERTIFICATE_FOLDER}={folder}: there is no such directory"
        yield Problem(what=what, hint=f"unset {CERTIFICATE_FOLDER}")


def wrong_proxies(environ: Mapping[str, str]) -> Iterator[Problem]:
    """Proxies that no address names, or that a package is missing for."""
    for name in PROXIES:
        setting = value(environ, name)
        if setting and not is_address(
            setting if "://" in setting else f"http://{setting}", schemes=("http", "https", *SOCKS)
        ):
            what = f"{name} is not the address of a proxy"
            yield Problem(what=what, hint=f"export {name}=http://HOST:PORT, or unset {name}")
        elif setting and setting.startswith(SOCKS) and importlib.util.find_spec("socksio") is None:
            what = f"{name} names a SOCKS proxy, and the package socksio is not installed"
            yield Problem(what=what, hint=f"pip install socksio, or export {name}=http://HOST:PORT")


def switches(environ: Mapping[str, str]) -> list[str]:
    """The variables that switch the hub off for models or for data sets."""
    return [name for name in OFFLINE if is_true(environ.get(name))]


def is_true(text: str | None) -> bool:
    """True for the words that the hub's libraries take for a yes; every other word is a no."""
    return (text or "").upper() in TRUE_WORDS


def value(environ: Mapping[str, str], name: str) -> str | None:
    """A variable's value in capitals or not, as proxies are named."""
    return environ.get(name.lower()) or environ.get(name)


def is_address(text: str, *, schemes: tuple[str, ...]) -> bool:
    """True for a URL with a host, and a port that is a number where one is named."""
    try:
        parts = urlsplit(text)
        return parts.scheme in schemes and bool(parts.hostname) and (parts.port or 1) > 0 and text.isprintable()
    except ValueError:
        return False


def unusable(file: Path) -> str | None:
    """Why certificates cannot be read from a file, or a directory of them; None where they can."""
    if file.is_dir():
        return None
    import ssl  # a foreign library before its own keeps it from loading, which `env-check` is to name

    try:
        ssl.create_default_context(cafile=str(file))
    except ssl.SSLError:
        return "it holds no certificate"
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return None
