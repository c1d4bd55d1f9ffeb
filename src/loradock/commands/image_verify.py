"""`loradock image verify`: an image's content digest, against a digest, an image, a manifest or a signature."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from loradock.commands.page import say
from loradock.commands.paths import LocalPath
from loradock.delivery.image.client import stoppable
from loradock.delivery.image.content import Content, content_of, differences, read_manifest
from loradock.delivery.image.engine import connect, image_named
from loradock.delivery.image.signature import mismatches, sign, statement, statement_file
from loradock.delivery.image.signature import verify as verify_signature
from loradock.errors import SHOWN_PROBLEMS, EnvironmentUnfit, Interrupted, Problem, UsageError
from loradock.files.system_errors import storage_error

if TYPE_CHECKING:
    from docker.models.images import Image

FILE = LocalPath(dir_okay=False)


@dataclass(kw_only=True)
class Verdict:
    """What was compared and what does not match."""

    content: Content
    against: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def compare(self, what: str, other: Content) -> None:
        """Compare with another image or a manifest, path by path."""
        changes = differences(self.content, other)
        self.against.append(what)
        self.problems += [f"{what}: {difference}" for difference in changes]


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("reference", metavar="IMAGE")
@click.option("--expect", metavar="DIGEST", help="Fail unless the content has this digest (sha256:...).")
@click.option("--against", metavar="IMAGE", help="Fail unless this image has the same content; print the differences.")
@click.option("--manifest", type=FILE, help="Fail unless the content matches this manifest.")
@click.option("--write-manifest", type=FILE, help="Write the list of paths, whose sha256 is the digest.")
@click.option("--sign", "key", type=FILE, metavar="KEY", help="Sign with this ssh key.")
@click.option(
    "-o", "--output", type=FILE, metavar="FILE.sig", help="Signature file of --sign; the statement is written to FILE."
)
@click.option("--signature", type=FILE, metavar="FILE.sig", help="Fail unless this signature is valid for this image.")
@click.option("--signers", type=FILE, help="The allowed signers of --signature (man ssh-keygen).")
@click.option("--identity", help="Expected signer of --signature, as named in --signers.")
@click.option("--json", "as_json", is_flag=True, help="Print digest, figures and problems as JSON.")
def verify(reference: str, as_json: bool, **wanted: Any) -> None:
    """Print the content digest of IMAGE: the same for two builds from the same inputs.

    \b
    loradock image verify loradock:0.1.0 --json

    The digest covers every path's type, mode, owner, size and sha256, and the configuration; not times. Exit code
    71 if something does not match.
    """
    _refuse_contradictions(**wanted)
    with closing(connect()) as client:
        image = image_named(client, reference)
        baseline_image = image_named(client, wanted["against"]) if wanted["against"] else None
        try:
            with stoppable():
                verdict = Verdict(content=content_of(client, image))
                if baseline_image is not None:
                    verdict.compare(wanted["against"], content_of(client, baseline_image))
        except Interrupted as error:
            raise Interrupted("stopped before the image was read", hint="run the same command again") from error
    _compare(verdict, image, **wanted)
    if wanted["write_manifest"]:
        _write(wanted["write_manifest"], verdict.content.manifest)
    if wanted["key"] and not verdict.problems:
        sign(_statement(verdict, image), key=wanted["key"], signature=wanted["output"])
        say(f"signed: {wanted['output']} is of {statement_file(wanted['output'])}", stderr=True)
    _report(verdict, image=image, reference=reference, as_json=as_json)


def _refuse_contradictions(*, signature: Path | None, signers: Path | None, identity: str | None, **other: Any) -> None:
    if signature and not (signers and identity):
        raise UsageError(
            "--signature needs --signers and --identity", hint="add --signers allowed_signers --identity NAME"
        )
    if (signers or identity) and not signature:
        raise UsageError("--signers and --identity belong to --signature", hint="add --signature FILE.sig")
    if bool(other["key"]) != bool(other["output"]):
        raise UsageError("--sign and --output go together", hint="--sign KEY -o image.sig")
    for file in (signature, other["output"]):
        if file:
            statement_file(file)


def _compare(verdict: Verdict, image: Image, **wanted: Any) -> None:
    if wanted["expect"]:
        verdict.against.append("the expected digest")
        if wanted["expect"] != verdict.content.digest:
            verdict.problems.append(f"expected {wanted['expect']}, the content is {verdict.content.digest}")
    if wanted["manifest"]:
        verdict.compare(str(wanted["manifest"]), read_manifest(wanted["manifest"]))
    if wanted["signature"]:
        signed = verify_signature(wanted["signature"], signers=wanted["signers"], identity=wanted["identity"])
        verdict.against.append(f"the statement signed by {wanted['identity']}")
        verdict.problems += mismatches(signed, _statement(verdict, image))


def _statement(verdict: Verdict, image: Image) -> dict[str, str]:
    return statement(verdict.content.digest, image_labels=image.labels or {})


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise storage_error(error, path) from error


def _report(verdict: Verdict, *, image: Image, reference: str, as_json: bool) -> None:
    content = verdict.content
    if as_json:
        report = {
            "image": reference,
            "id": image.id,
            "digest": content.digest,
            "paths": len(content.entries) - 1,
            "read_bytes": content.read_bytes,
            "seconds": round(content.seconds, 2),
            "against": verdict.against,
            "problems": verdict.problems[:SHOWN_PROBLEMS],
            "problem_count": len(verdict.problems),
        }
        click.echo(json.dumps(report, indent=2))
    else:
        click.echo(content.digest)
    rate = content.read_bytes / 1e6 / max(content.seconds, 1e-9)
    size = f"{content.read_bytes / 1e6:.0f} MB in {content.seconds:.1f} s, {rate:.0f} MB/s"
    say(f"{reference}: {len(content.entries) - 1} paths, {size}", stderr=True)
    if verdict.problems:
        raise EnvironmentUnfit(
            f"{reference} does not match: {len(verdict.problems)} differences",
            hint=f"rebuild it from the revision it names, or look: docker run --rm -it {reference} bash",
            problems=[Problem(what=problem) for problem in verdict.problems],
        )
    for what in verdict.against:
        say(f"matches {what}", stderr=True)
