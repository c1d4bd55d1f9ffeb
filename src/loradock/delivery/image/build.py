"""`loradock build`, from the check of the machine to the record: refuse early, build, leave nothing half-done."""

from __future__ import annotations

import contextlib
import errno
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from loradock import __version__
from loradock.delivery.image import labels
from loradock.delivery.image.client import stoppable
from loradock.delivery.image.engine import builder, connect
from loradock.delivery.image.inputs import BuildAsk, Checkout, checkout
from loradock.delivery.image.scratch import Scratch, can_compile, held, opened, probe, temporary
from loradock.delivery.image.space import Need, Places, Room, Sizes, places, refuse_where_too_little, rooms
from loradock.delivery.image.stages import NoSpaceLeft, View, Workshop
from loradock.delivery.image.wheels import kept_wheel, served
from loradock.errors import DiskFull, EnvironmentUnfit, StorageError, UsageError
from loradock.files import atomic_io
from loradock.text.amounts import free_text

if TYPE_CHECKING:
    from docker import DockerClient

BASE_NAME = "org.opencontainers.image.base.name"
REMEDY = (
    "loradock prune --apply; --scratch on a larger disk; or a larger disk for the engine (data-root in daemon.json)"
)


@dataclass(frozen=True, kw_only=True)
class Preflight:
    """What was found before anything was built."""

    checkout: Checkout
    scratch: Scratch
    where: Places
    needs: list[Need]
    rooms: list[Room]


def preflight(ask: BuildAsk, *, client: DockerClient, view: View) -> Preflight:
    """Look at the checkout, the engine, the scratch and the disks; refuse where the build could not end well."""
    source = checkout(ask.context, variant=ask.variant)
    where = places(client.info())
    scratch = opened(ask.scratch)
    findings = probe(scratch.tmp)
    view.storage(scratch.root, findings)
    against = can_compile(findings)
    if ask.compiles and against:
        raise EnvironmentUnfit(
            f"flash-attn cannot be compiled in {scratch.root}: " + "; ".join(f"{f.name}: {f.seen}" for f in against),
            hint="--scratch a directory on a local disk, or --flash-attn wheel:PATH",
        )
    if not source.sizes_file.exists():
        raise StorageError(f"{source.sizes_file} is missing", hint="scripts/sizes.py SCRATCH/wheels")
    needs = _needs(ask, source=source, client=client, where=where, scratch=scratch)
    room_list = rooms(needs)
    view.space(room_list)
    refuse_where_too_little(room_list, hint=REMEDY)
    return Preflight(checkout=source, scratch=scratch, where=where, needs=needs, rooms=room_list)


def _needs(ask: BuildAsk, *, source: Checkout, client: DockerClient, where: Places, scratch: Scratch) -> list[Need]:
    sizes = Sizes(source.sizes_file, lock=source.lock)
    base, devel = ask.base_image or source.pinned("base"), ask.devel_image or source.pinned("devel")
    has_layers = not ask.no_cache and _has_layers(
        client, packages=source.packages_sha256, base=base, at_least=sizes.total("wheel_bytes")
    )
    return sizes.needs(
        where,
        scratch=scratch.root,
        has_layers=has_layers,
        has_base=bool(client.images.list(base)),
        compiles=ask.compiles,
        has_devel=bool(client.images.list(devel)),
        variant=ask.variant,
    )


def _has_layers(client: DockerClient, *, packages: str, base: str, at_least: int) -> bool:
    """True where an image of these packages on this base exists, and the build cache holds a layer of that size."""
    from docker.errors import APIError

    images = client.images.list(filters={"label": [f"{labels.PACKAGES}={packages}", f"{BASE_NAME}={base}"]})
    if not images:
        return False
    try:
        cached = client.df().get("BuildCache") or []
    except APIError:
        # The engine answers one such question at a time; without an answer the layers count as not there.
        return False
    return any("install_venv" in record["Description"] and record["Size"] >= at_least for record in cached)


def build(ask: BuildAsk, *, view: View) -> dict[str, Any]:
    """Build the image; the record, which also lies in SCRATCH/records. Interrupted or failed it cleans up first."""
    with stoppable(), contextlib.closing(connect()) as client:
        began = time.monotonic()
        drives = builder()
        place = preflight(ask, client=client, view=view)
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        log_path = place.scratch.records / f"{stamp}.log"
        with (
            _full_disk_explained(place),
            held(place.scratch),
            temporary(place.scratch) as tmp,
            log_path.open("w", encoding="utf-8") as log,
        ):
            workshop = Workshop(
                ask=ask, checkout=place.checkout, client=client, builder=drives, scratch=place.scratch,
                tmp=tmp, log=log, log_path=log_path, view=view,
            )  # fmt: skip
            view.note(
                f"builder: {drives.name}; cache export: {'yes' if drives.can_export_cache else f'no ({drives.why})'}"
            )
            image, made_with = _built(workshop)
            record = _record(workshop, image=image, found=place, made_with=made_with)
            _after(workshop, record)
            record["seconds"] = round(time.monotonic() - began, 1)
        record["log"] = str(log_path)
        atomic_io.replace(log_path.with_suffix(".json"), json.dumps(record, indent=2) + "\n")
        return record


@contextlib.contextmanager
def _full_disk_explained(checks: Preflight) -> Iterator[None]:
    """Any sign of a full disk becomes DiskFull with what is free where, after everything was cleaned up."""
    try:
        yield
    except NoSpaceLeft as error:
        raise DiskFull(f"{error.what}; {_free(checks.needs)}", hint=REMEDY) from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(f"no space left for {error.filename}; {_free(checks.needs)}", hint=REMEDY) from error
        raise


def _free(needs: list[Need]) -> str:
    return "; ".join(f"now {free_text(room.free_bytes)} free on {room.mount}" for room in rooms(needs))


def _built(workshop: Workshop) -> tuple[str, dict[str, Any]]:
    """The image's id, and what the record says of how it was made."""
    ask = workshop.ask
    python, files = workshop.wheels()
    flash_sha256, figures = None, {}
    if ask.flash_attn != "off":
        if ask.wheel:
            flash_sha256, wheel = kept_wheel(workshop.scratch, ask.wheel)
        else:
            flash_sha256, wheel, figures = workshop.compiled_flash_attn()
        files = {**files, wheel.name: wheel}
    with served(files) as address:
        pip_conf = workshop.tmp / "pip.conf"
        pip_conf.write_text(f"[global]\nno-index = true\nfind-links = {address}\n", encoding="utf-8")
        image = workshop.stage(
            "runtime",
            arguments=_arguments(workshop, flash_sha256=flash_sha256),
            files={"pip": pip_conf, **workshop.user_secrets()},
            options=("--tag", tag_of(ask), *_cache_options(workshop)),
        )
    flash = {"sha256": flash_sha256, "archs": None, **figures} if flash_sha256 else None
    return image, {"python": python, "wheels": len(files), "flash_attn": flash}


def _arguments(workshop: Workshop, *, flash_sha256: str | None) -> dict[str, str]:
    """The build arguments of the image itself."""
    source = workshop.checkout
    flash = {"FLASH_ATTN": "wheel", "FLASH_ATTN_SHA256": flash_sha256} if flash_sha256 else {"FLASH_ATTN": "off"}
    return flash | {
        "VARIANT": workshop.ask.variant,
        "VERSION": __version__,
        "REVISION": source.revision,
        "LOCK_SHA256": source.lock_sha256,
        "BASE_NAME": workshop.base,
        "PACKAGES_SHA256": source.packages_sha256,
        "BASE_VERIFIED": str(source.is_verified(workshop.base)).lower(),
    }


def _cache_options(workshop: Workshop) -> tuple[str, ...]:
    if not workshop.builder.can_export_cache:
        return ()
    cache = workshop.scratch.cache
    read = ("--cache-from", f"type=local,src={cache}") if (cache / "index.json").exists() else ()
    return (*read, "--cache-to", f"type=local,dest={cache},mode=max")


def tag_of(ask: BuildAsk) -> str:
    """The tag that the image gets; a variant is named in it."""
    return ask.tag or f"loradock:{__version__}" + (f"-{ask.variant}" if ask.variant != "standard" else "")


def _record(workshop: Workshop, *, image: str, found: Preflight, made_with: dict[str, Any]) -> dict[str, Any]:
    """What was built, from what, how large it is and how long each step took."""
    built = workshop.client.images.get(image)
    layers = [{"bytes": layer["Size"], "made_by": " ".join(layer["CreatedBy"].split())} for layer in built.history()]
    steps = [
        {"stage": stage, "step": step.title, "state": step.state, "seconds": step.seconds}
        for stage, duration in workshop.steps.items()
        for step in duration
    ]
    source = workshop.checkout
    return {
        "image": built.id,
        "tag": tag_of(workshop.ask),
        "repo_digests": built.attrs.get("RepoDigests") or [],
        "base": {"name": workshop.base, "is_verified": source.is_verified(workshop.base)},
        "version": __version__,
        "variant": source.variant,
        "revision": source.revision,
        "lock_sha256": source.lock_sha256,
        **made_with,
        "bytes": built.attrs["Size"],
        "layers": list(reversed(layers)),
        "steps": steps,
        "cached_steps": sum(step["state"] == "cached" for step in steps),
        "engine": workshop.client.version()["Version"],
        "builder": workshop.builder.name,
        "cache_export": workshop.builder.why,
        "space_before": [room.as_json() for room in found.rooms],
        "free_after": {str(room.mount): room.free_bytes for room in rooms(found.needs)},
    }


def _after(workshop: Workshop, record: dict[str, Any]) -> None:
    """The bill of materials and the push, where they were asked for."""
    ask = workshop.ask
    if ask.sbom:
        output = workshop.client.containers.run(
            record["image"], ["image", "sbom"], labels={labels.CONTAINER: "sbom"}, network_mode="none", remove=True
        )
        atomic_io.replace(ask.sbom, output)
        record["sbom"] = str(ask.sbom.absolute())
    if ask.push:
        for event in workshop.client.images.push(record["tag"], stream=True, decode=True):
            if "error" in event:
                raise UsageError(
                    f"pushing {record['tag']} failed: {event['error']}", hint="docker login; then the same again"
                )
        record["repo_digests"] = workshop.client.images.get(record["image"]).attrs.get("RepoDigests") or []
