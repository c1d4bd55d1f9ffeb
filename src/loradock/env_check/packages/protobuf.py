"""protobuf: everything generated for it, imported into one fresh process."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence

from loradock.env_check.base import LOADED, Check, Finding, Intent, error, ok, warning
from loradock.env_check.remedies import locked_versions, reinstall
from loradock.facts import Facts
from loradock.machine import Host
from loradock.machine.answers import PythonRun

# {distribution: a module of it that protoc generated}; each refuses a runtime older than its generator.
USERS = {
    "sentencepiece": "sentencepiece.sentencepiece_model_pb2",
    "tensorboard": "tensorboard.compat.proto.event_pb2",
    "wandb": "wandb.proto.wandb_internal_pb2",
    "mlflow-skinny": "mlflow.protos.service_pb2",
    "opentelemetry-proto": "opentelemetry.proto.trace.v1.trace_pb2",
}
# It has a copy of sentencepiece's definitions, which may not be registered twice, and a door that knows.
DOOR = "transformers.convert_slow_tokenizer:import_protobuf"
TRACKERS = {"tensorboard": "tensorboard", "wandb": "wandb", "mlflow-skinny": "mlflow", "opentelemetry-proto": "mlflow"}
IMPLEMENTATION = "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"
LIMIT_SECONDS = 60
PROGRAM = """\
import importlib, json, sys, traceback

def tell(name, failed=None, **more):
    print(json.dumps({"name": name, "failed": failed, **more}), flush=True)

import google.protobuf as runtime
tell("protobuf", version=runtime.__version__, file=runtime.__file__)
for argument in sys.argv[1:]:
    name, _, target = argument.partition("=")
    module, _, door = target.partition(":")
    try:
        imported = importlib.import_module(module)
        if door:
            getattr(imported, door)()
    except Exception as failure:
        files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(failure.__traceback__)]
        places = (type(failure).__module__, str(failure), *files)
        ours = any("protobuf" in each or "_pb2" in each for each in places)
        why = f"{type(failure).__name__}: {failure}".strip().splitlines()[0].partition(". ")[0]
        tell(name, why, is_other=not ours)
    else:
        tell(name)
"""


def look(host: Host, facts: Facts, plan: Intent) -> list[Finding]:
    """One process for all: what is registered twice shows only when they meet."""
    installed = {distribution.name: distribution.version for distribution in host.distributions()}
    if "protobuf" not in installed:
        return [ok("nothing here is generated for protobuf")]
    users = {name: module for name, module in USERS.items() if name in installed}
    if "transformers" in installed:
        users["transformers"] = DOOR
    arguments = [f"{name}={module}" for name, module in users.items()]
    runtime, failed, conflicts = answers(
        host.python_run(PROGRAM, arguments, timeout_seconds=LIMIT_SECONDS), list(users)
    )
    locked = {**installed, **{name: version for name, version in locked_versions(host).items() if name in installed}}
    trackers = None if plan.config is None else plan.config.logging.trackers
    remedies = {
        name: reinstall(host.prefix(), {name: locked[name]})
        if name in conflicts
        else remedy_for(name, runtime, host=host, installed=installed, locked=locked)
        for name in ["protobuf", *failed]
    }
    return judge(failed, conflicts, runtime=runtime, users=list(users), trackers=trackers, remedies=remedies)


def answers(ran: PythonRun, users: Sequence[str]) -> tuple[dict[str, str], dict[str, str], set[str]]:
    """(version and file of the runtime, {package: why it failed}, those that failed without protobuf's part in it).

    The one that ended the process is named too.
    """
    answers_read = [json.loads(line) for line in ran.lines if line.startswith('{"name"')]
    runtime = next((answer for answer in answers_read if answer["name"] == "protobuf"), {})
    failed = {answer["name"]: answer["failed"] for answer in answers_read if answer["failed"]}
    silent = [name for name in ("protobuf", *users) if name not in {answer["name"] for answer in answers_read}]
    if silent:
        how = "does not end" if ran.exit_code is None else f"ends the process with {ran.exit_code}"
        failed[silent[0]] = f"importing it {how}"
    return runtime, failed, {answer["name"] for answer in answers_read if answer.get("is_other")}


def judge(
    failed: Mapping[str, str],
    conflicts: Collection[str] = (),
    *,
    runtime: Mapping[str, str],
    users: Sequence[str],
    trackers: Sequence[str] | None,
    remedies: Mapping[str, str],
) -> list[Finding]:
    """An error for each that fails (`others`: of its own); a warning for a tracker that the run does not name."""
    findings: list[Finding] = []
    for name, why in failed.items():
        is_unused = trackers is not None and name in TRACKERS and TRACKERS[name] not in trackers
        is_bad = f"is incompatible with protobuf {runtime.get('version', 'as it is')}"
        what = f"{name} {'cannot be imported' if name in conflicts else is_bad}: {why}"
        findings.append((warning if is_unused else error)(what, remedy=remedies[name]))
    return findings or [ok(f"{', '.join(users)} import together with protobuf {runtime['version']}")]


def remedy_for(
    name: str, runtime: Mapping[str, str], *, host: Host, installed: Mapping[str, str], locked: Mapping[str, str]
) -> str:
    """Take away what stands before the installed protobuf, or install what is not as locked; else both again."""
    if IMPLEMENTATION in host.environ:
        return f"unset {IMPLEMENTATION}"
    if "file" in runtime and not runtime["file"].startswith(str(host.site_packages())):
        return "unset PYTHONPATH" if "PYTHONPATH" in host.environ else "export PYTHONNOUSERSITE=1"
    suspects = [package for package in dict.fromkeys(("protobuf", name)) if installed[package] != locked[package]]
    return reinstall(
        host.prefix(), {package: locked[package] for package in suspects or dict.fromkeys(("protobuf", name))}
    )


CHECK = Check(
    name="protobuf",
    group="packages",
    level="compute",
    limit_seconds=LIMIT_SECONDS + 5,
    proves="Packages with generated protobuf code can be imported together, with the installed protobuf.",
    look=look,
    depends_on=(*LOADED, "trackers"),
)
