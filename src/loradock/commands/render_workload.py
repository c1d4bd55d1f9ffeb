"""From a configuration and the options of `loradock render` to a Workload; nothing is fetched."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path, PurePosixPath

from loradock import __version__, probe
from loradock import plan as plans
from loradock.commands.render_options import PLACES, Site, counts, host_paths, pairs
from loradock.commands.render_warnings import warnings_of
from loradock.commands.run_options import Ask
from loradock.config.load import Loaded
from loradock.config.schema import RunConfig
from loradock.errors import InputMissing, UsageError
from loradock.facts import DataFacts, Facts, Gpu, ModelFacts
from loradock.host import Host
from loradock.manifests import asked, names, quantities
from loradock.manifests import sizes as sizing
from loradock.manifests.sizes import CPUS_A_CARD, CPUS_WITHOUT, Seen, Sizes
from loradock.manifests.workload import CONFIG_FILE, CONFIG_FOLDER, Fetch, Placement, Workload, problems
from loradock.manifests.write import one_document

ROWS = 10_000
"""Of the data set that sizes are made for: all of them as long as is allowed, so that no row has to be read."""
UNKNOWN_CARD = Gpu(name="not named", memory_bytes=0, capability=(8, 0))
CPU_MEMORY_BYTES = 64 << 30


def described(ask: Ask, *, site: Site, is_demo: bool) -> tuple[Workload, list[str]]:
    """The workload and what a person should know about it. UsageError with every text that Kubernetes refuses."""
    loaded = demo_run(ask) if is_demo else ask.load()
    config = loaded.config
    name = names.safe_name(run_name(config, is_demo=is_demo)) if site.name is None else site.name
    fetched_bytes = quantities.read(site.fetch_size) if site.fetch_image else None
    sizes, notes = sized(config, site, is_demo=is_demo, fetched_bytes=fetched_bytes or 0)
    volumes = asked.volumes(
        sizes,
        claims={place: getattr(site, f"{place}_claim") for place in PLACES},
        host_paths=host_paths(site.host_path),
        fetched_bytes=fetched_bytes,
    )
    places = {each.name for each in volumes}
    workload = Workload(
        name=name,
        image=site.image or f"loradock:{__version__}",
        command=demo_command(ask) if is_demo else ("train", f"{CONFIG_FOLDER}/{CONFIG_FILE}"),
        config_text=None if is_demo else config_text(config, name=name),
        sizes=sizes,
        namespace=site.namespace,
        run_id=site.run_id,
        lock_sha256=probe.lock_sha256(Host()),
        nodes=site.nodes,
        processes=max(1, sizes.gpus.value),
        volumes=volumes,
        working_directory=asked.DATA if "data" in places else None,
        environment=environment(site, has_cache="cache" in places),
        secrets=tuple(asked.secret_variable(text) for text in site.secret_env),
        fetch=Fetch(image=site.fetch_image, arguments=site.fetch_arg) if site.fetch_image else None,
        pull_secret=site.pull_secret,
        devices=counts(site.device),
        placement=placement(site),
        failures=site.failures,
        deadline_seconds=site.deadline_seconds,
        is_openshift=site.openshift,
        has_read_only_root=site.read_only_root,
    )
    if wrong := problems(workload):
        raise UsageError("Kubernetes would refuse this", problems=wrong)
    return workload, [*loaded.warnings, *notes, *warnings_of(workload, config, is_demo=is_demo)]


def demo_run(ask: Ask) -> Loaded:
    """The demo's configuration with what was set on top."""
    from loradock.demo import exam

    if ask.config is not None or ask.preset is not None:
        raise UsageError("--demo brings its own configuration", hint="leave out CONFIG and --preset, or --demo")
    loaded = replace(ask, config=exam.CONFIG).load()
    return replace(loaded, config=exam.resolved(loaded.config))


def demo_command(ask: Ask) -> tuple[str, ...]:
    """What `train` is given: the settings as they were."""
    flags = {flag: value for flag, value in ask.shortcuts.items() if flag != "--output"}
    if unfit := sorted(flags.keys() & {"--model", "--data"}):
        raise UsageError(f"{unfit[0]} and --demo contradict each other", hint=f"leave out {unfit[0]}, or --demo")
    settings = [part for each in ask.overrides for part in ("--set", each)]
    return ("train", "--demo", "--output", asked.OUTPUT, *(f"{f}={v}" for f, v in flags.items()), *settings)


def run_name(config: RunConfig, *, is_demo: bool) -> str:
    """The run's name: asked for, or from the model and the first source."""
    if is_demo:
        return f"loradock-{config.name or 'demo'}"
    if config.name:
        return config.name
    source = Path(config.data.sources[0].path.removeprefix("hub:")).name.split(".")[0]
    return f"{Path(config.model.name).name}-{source}"


def config_text(config: RunConfig, *, name: str) -> str:
    """The configuration as YAML: what differs from the defaults, and the output on its volume."""
    output = str(PurePosixPath(asked.OUTPUT, PurePosixPath(config.output or name).name or name))
    content = config.model_dump(mode="json", exclude_defaults=True) | {"output": output}
    return one_document(content)


def environment(site: Site, *, has_cache: bool) -> tuple[tuple[str, str], ...]:
    """The variables that were asked for, and those that use the cache's volume."""
    cache = {"HF_HOME": f"{asked.CACHE}/huggingface", "LORADOCK_CACHE": f"{asked.CACHE}/loradock"}
    return tuple({**(cache if has_cache else {}), **dict(pairs("--env", site.env, example="NAME=VALUE"))}.items())


def placement(site: Site) -> Placement:
    """Where and when the pods run."""
    return Placement(
        queue=site.queue,
        priority_class=site.priority_class,
        node_selector=pairs("--node-selector", site.node_selector, example="KEY=VALUE"),
        tolerations=tuple(asked.toleration(text) for text in site.toleration),
        topology_key=site.topology,
    )


def sized(config: RunConfig, site: Site, *, is_demo: bool, fetched_bytes: int) -> tuple[Sizes, list[str]]:
    """The sizes, and what they could not be made from. OutOfMemory where the plan does not fit the card."""
    from loradock.model import hub_cache

    gpus = site.gpus if site.gpus is not None else int(not is_demo and config.device != "cpu")
    facts = machine(site, gpus)
    earlier = measured(site.from_run)
    notes: list[str] = []
    model, length = look(config)
    plan = None
    if model is None:
        notes.append(f"{config.model.name} is not here: sizes are assumed; render where its config.json can be read")
    elif gpus and site.gpu is None:
        notes.append("no card is named: neither is it known whether the run fits, nor how long a step takes (--gpu)")
    else:
        plan = plans.make(config, facts=facts, model=model, data=longest_rows(length))
    sizes = sizing.sizes(
        config,
        facts,
        model=model,
        plan=plan,
        nodes=site.nodes,
        earlier=earlier,
        has_claim=site.output_claim is not None or "output" in host_paths(site.host_path),
        downloads=hub_cache.is_hub_id(config.model.name) and site.cache_claim is None,
        fetched_bytes=fetched_bytes,
        asked={
            "memory_bytes": quantities.read(site.memory) if site.memory else None,
            "shm_bytes": quantities.read(site.shm) if site.shm else None,
            "scratch_bytes": quantities.read(site.storage) if site.storage else None,
            "grace_seconds": site.grace_seconds,
        },
    )
    return sizes, notes


def machine(site: Site, gpus: int) -> Facts:
    """One of the machines, as the plan looks at it."""
    cpus = site.cpus or (CPUS_A_CARD * gpus if gpus else CPUS_WITHOUT)
    here = max(1, gpus)
    card = plans.machine_with(site.gpu).gpu if site.gpu else UNKNOWN_CARD
    return Facts(
        platform="any",
        python="any",
        cpus=cpus,
        memory_bytes=CPU_MEMORY_BYTES,
        in_container=True,
        gpus=(card,) * gpus,
        world_size=site.nodes * here,
        local_world_size=here,
    )


def look(config: RunConfig) -> tuple[ModelFacts | None, int]:
    """The model as its config.json here describes it, and the longest row in tokens; None where it is not here."""
    from loradock.model import hub_cache

    name = config.model.name
    directory = hub_cache.directory_of(name, config.model.revision, environ=os.environ)
    if directory is None or not (directory / "config.json").is_file():
        return None, 0
    from loradock.model import shape, source

    is_trusted = config.model.trust_remote_code == name
    read = source.read_config(directory, trusted=is_trusted)
    source.check_architecture(read, directory=directory)
    base = source.BaseModel(
        name=name,
        directory=directory,
        revision=config.model.revision,
        config=read,
        trust_remote_code=is_trusted,
        weight_files=tuple(sorted(directory.glob("*.safetensors"))),
    )
    model = shape.inspect(base, config)
    return model, shape.longest_row(config.data.max_length, model)


def longest_rows(length: int) -> DataFacts:
    """Rows that are all as long as is allowed: no step can take longer, or more memory."""
    return DataFacts(
        train_rows=ROWS,
        validation_rows=0,
        tokens=ROWS * length,
        supervised_tokens=ROWS * length,
        limit_tokens=length,
        longest_tokens=length,
        samples_per_epoch=ROWS,
    )


def measured(directory: Path | None) -> Seen | None:
    """The longest step and save of an earlier run. InputMissing where the directory holds none."""
    if directory is None:
        return None
    from loradock import record

    file = directory / "metrics.jsonl"
    if not file.is_file():
        raise InputMissing(f"{directory} holds no metrics.jsonl of a run", hint="--from-run runs/NAME-001")
    return sizing.seen(record.parsed(file))
