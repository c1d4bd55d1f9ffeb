"""The parts that a build runs one after the other: stages of the Dockerfile, containers for wheels and compiler."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from loradock.delivery.image import labels
from loradock.delivery.image.client import run_client, run_container
from loradock.delivery.image.engine import Builder
from loradock.delivery.image.inputs import BuildAsk, Checkout
from loradock.delivery.image.progress import NO_SPACE, BuildLog, Step
from loradock.delivery.image.scratch import Property, Scratch
from loradock.delivery.image.space import Room
from loradock.delivery.image.wheels import ABOUT, FETCH, WheelIndex, downloaded, kept_wheel
from loradock.errors import EnvironmentUnfit, HubError, LoradockError
from loradock.text.amounts import size_text

if TYPE_CHECKING:
    from docker import DockerClient

SHOWN_LINES = 30
MISMATCH = "DO NOT MATCH THE HASHES"


class View(Protocol):
    """What a person sees of a build."""

    def note(self, text: str) -> None:
        """One line: what begins, or what was found."""

    def changed(self, step: Step) -> None:
        """A step of the Dockerfile began, said something, or ended."""

    def storage(self, folder: Path, findings: list[Property]) -> None:
        """What the scratch's storage can be relied on for."""

    def space(self, rooms: list[Room]) -> None:
        """Need and have of each filesystem."""


class NoSpaceLeft(LoradockError):
    """A part ended because a disk was full; the build turns it into DiskFull, with what is free where."""

    exit_code = 73


@dataclass(kw_only=True)
class Workshop:
    """What every part of one build shares. `steps` gathers each stage's steps for the record."""

    ask: BuildAsk
    checkout: Checkout
    client: DockerClient
    builder: Builder
    scratch: Scratch
    tmp: Path
    log: TextIO
    log_path: Path
    view: View
    steps: dict[str, list[Step]] = field(default_factory=dict)

    @property
    def base(self) -> str:
        """The base image, as it was named."""
        return self.ask.base_image or self.checkout.pinned("base")

    def stage(
        self,
        target: str,
        *,
        arguments: Mapping[str, str],
        files: Mapping[str, Path],
        options: tuple[str, ...] = (),
    ) -> str:
        """Build one stage; the id of its image. `files` are the secrets, by id."""
        iid = self.tmp / f"iid-{secrets.token_hex(4)}"
        devel = self.ask.devel_image or self.checkout.pinned("devel")
        build_arguments = {"BASE_IMAGE": self.base, "DEVEL_IMAGE": devel, **arguments}
        command = [*self.builder.command, "--progress", "plain", "--network", "host", "--target", target]
        command += ["--iidfile", str(iid), *options]
        command += [part for name, value in build_arguments.items() for part in ("--build-arg", f"{name}={value}")]
        command += [part for name, path in files.items() for part in ("--secret", f"id={name},src={path}")]
        command += ["--platform", self.ask.platform] if self.ask.platform else []
        command += ["--pull"] * self.ask.pull + ["--no-cache"] * self.ask.no_cache
        log = BuildLog(self.log, on_change=self.view.changed)
        self.log.write(f"== stage {target}\n")
        environment = {**self.builder.environment(), "TMPDIR": str(self.tmp)}
        status = run_client([*command, "."], environment=environment, cwd=str(self.checkout.root), on_line=log.feed)
        self.steps[target] = [step for step in log.steps.values() if step.is_work]
        if status != 0 or not iid.exists():
            raise self._failure(log)
        return iid.read_text(encoding="utf-8").strip()

    def _failure(self, log: BuildLog) -> LoradockError:
        lines = log.last_lines()
        name = log.failed.title if log.failed else "the build"
        if log.ran_out_of_space:
            return NoSpaceLeft(f"no space was left in {name}")
        if any(MISMATCH in line for line in lines):
            for index in self.scratch.wheels.glob("index-*.json"):
                index.unlink()
        return EnvironmentUnfit(
            f"{name} failed:\n" + "\n".join(f"  | {line}" for line in lines),
            hint=f"the whole log: less {self.log_path}",
        )

    def user_secrets(self) -> dict[str, Path]:
        """The user's bundle of certificates, as a secret of the build."""
        return {"ca": self.ask.ca.absolute()} if self.ask.ca else {}

    def untagged_stage(self, target: str) -> str:
        """A stage's image to run a container of; without a tag, with our label, to be removed by `drop`."""
        options = ("--label", f"{labels.IMAGE}={target}")
        return self.stage(target, arguments={}, files=self._pip_secrets(), options=options)

    def _pip_secrets(self) -> dict[str, Path]:
        pip = {"pip": self.ask.pip_conf.absolute()} if self.ask.pip_conf else {}
        return {**pip, **self.user_secrets()}

    def drop(self, image: str) -> None:
        """Remove an untagged image of ours; its layers stay in the build cache."""
        from docker.errors import APIError

        try:
            if not self.client.images.get(image).tags:
                self.client.images.remove(image)
        except APIError as error:
            self.log.write(f"{image} stays: {error}\n")

    def _container(
        self,
        image: str,
        command: list[str],
        *,
        purpose: str,
        volumes: list[str],
        environment: Mapping[str, str] | None = None,
        **more: object,
    ) -> list[str]:
        """Run a container as this user; the lines it printed, or an error that shows them."""
        from docker.errors import APIError

        mounted = {"pip": "/etc/pip.conf", "ca": "/run/secrets/ca"}
        secret_files = self._pip_secrets()
        volumes = volumes + [f"{path}:{mounted[name]}:ro" for name, path in secret_files.items()]
        variables = {
            "HOME": "/tmp",
            **({"PIP_CERT": mounted["ca"]} if "ca" in secret_files else {}),
            **(environment or {}),
        }
        user = f"{os.getuid()}:{os.getgid()}"
        try:
            status, lines = run_container(
                self.client,
                image,
                command,
                purpose=purpose,
                log=self.log,
                volumes=volumes,
                user=user,
                environment=variables,
                network_mode="host",
                platform=self.ask.platform,
                **more,
            )
        except APIError as error:
            if NO_SPACE.search(str(error)):
                raise NoSpaceLeft(f"no space was left for the container {purpose}") from error
            raise EnvironmentUnfit(f"the container {purpose} did not start: {error}", hint="docker info") from error
        if status:
            if any(NO_SPACE.search(line) for line in lines):
                raise NoSpaceLeft(f"no space was left in the container {purpose}")
            tail = "\n".join(f"  | {line}" for line in lines[-SHOWN_LINES:])
            what = f"the container {purpose} ended with {status}:\n{tail}"
            remedy = f"the whole log: less {self.log_path}"
            raise (HubError if _is_network(lines) else EnvironmentUnfit)(what, hint=remedy)
        return lines

    def wheels(self) -> tuple[str, dict[str, Path]]:
        """Every locked wheel for the image's own Python, verified and in the scratch; ("cp312", name -> path)."""
        image = self.untagged_stage("wheels")
        try:
            python, machine = self._about(image)
            index = WheelIndex(self.scratch, lock=self.checkout.lock, python=python, machine=machine)
            files = index.files()
            if files is None:
                self.view.note(f"fetching wheels for {python} on {machine} into {self.scratch.wheels}")
                volumes = [f"{self.checkout.lock_file}:/lock:ro", f"{self.scratch.wheels}:/wheels"]
                lines = self._container(image, ["sh", "-euc", FETCH], purpose="wheels", volumes=volumes)
                files = index.write(dict.fromkeys(downloaded(lines)))
        finally:
            self.drop(image)
        size = sum(path.stat().st_size for path in files.values())
        self.view.note(f"wheels: {len(files)} for {python}, {size_text(size)}, in {self.scratch.wheels}")
        return python, files

    def _about(self, image: str) -> tuple[str, str]:
        """Python and machine of the stage; EnvironmentUnfit where its containers do not see the scratch."""
        nonce = secrets.token_hex(8)
        (self.tmp / "nonce").write_text(nonce, encoding="utf-8")
        self.tmp.chmod(0o755)
        lines = self._container(
            image, ["python3", "-c", ABOUT], purpose="about", volumes=[f"{self.tmp}:/scratch-tmp:ro"]
        )
        python, machine, *fields = lines[-1].split()
        if fields != [nonce]:
            raise EnvironmentUnfit(
                f"a container of this engine does not see {self.scratch.root}: the engine runs on another machine, "
                "or in a virtual machine that does not share this directory",
                hint="run loradock build on the engine's machine, or share the directory and name it with --scratch",
            )
        return python, machine

    def compiled_flash_attn(self) -> tuple[str, Path, dict[str, Any]]:
        """flash-attn compiled in the toolchain's container; (sha256, wheel in the scratch, what the compile took)."""
        image = self.untagged_stage("flash-attn-toolchain")
        out = self.tmp / "flash-attn"
        out.mkdir()
        try:
            self.view.note(
                f"compiling flash-attn for {self.ask.flash_attn_archs}: hours on few cores; log: {self.log_path}"
            )
            self._container(
                image,
                ["/opt/loradock/flash-attn/flash_attn", "/scratch", f"/scratch/{out.relative_to(self.scratch.root)}"],
                purpose="flash-attn",
                volumes=[f"{self.scratch.root}:/scratch"],
                environment={
                    "FLASH_ATTN_ARCHS": self.ask.flash_attn_archs,
                    "MAX_JOBS": str(self.ask.max_jobs or ""),
                },
                entrypoint="",
            )
        finally:
            self.drop(image)
        figures = json.loads((out / "flash-attn.json").read_text(encoding="utf-8"))
        return (*kept_wheel(self.scratch, next(out.glob("*.whl"))), figures)


def _is_network(lines: list[str]) -> bool:
    phrases = ("NewConnectionError", "Could not find a version", "Temporary failure in name resolution", "SSLError")
    return any(word in line for line in lines for word in phrases)
