"""From a configuration and the options of `loradock render` to a Workload; nothing is fetched."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from loradock import __version__
from loradock.commands import render_given
from loradock.commands.render_given import PLACES, Given
from loradock.commands.render_options import Site
from loradock.commands.render_sizes import sized
from loradock.commands.render_warnings import warnings_of
from loradock.commands.run_options import Ask
from loradock.config import no_effect
from loradock.config.load import Loaded
from loradock.config.schema import RunConfig
from loradock.delivery.kubernetes import asked, names
from loradock.delivery.kubernetes.refusals import problems
from loradock.delivery.kubernetes.sizes import Sizes
from loradock.delivery.kubernetes.workload import CONFIG_FILE, CONFIG_FOLDER, Account, Fetch, Workload
from loradock.delivery.kubernetes.write import one_document
from loradock.errors import UsageError
from loradock.machine import Host, probe

GATHERING_SECONDS = 600
"""That a stage of net-check waits for a rank: pods of other nodes may still be pulling the image."""


def described(ask: Ask, *, site: Site, is_demo: bool) -> tuple[Workload, list[str]]:
    """The workload and what a person should know about it. UsageError with everything that cannot be rendered."""
    if site.whole and not site.reproduce:
        raise UsageError("--whole is for --reproduce", hint="leave out --whole, or --reproduce RUN")
    if site.reproduce:
        loaded = recorded_run(ask, site, is_demo=is_demo)
    else:
        loaded = demo_run(ask, is_whole=site.whole_config) if is_demo else ask.load(reads_rows=False)
    config = loaded.config
    site_values, wrong = render_given.read(site)
    sizes, notes = sized(config, site, site_values, is_demo=is_demo)
    command = demo_command(ask) if is_demo else ("train", f"{CONFIG_FOLDER}/{CONFIG_FILE}")
    workload = assembled(
        site, site_values, name=workload_name(config, site, is_demo=is_demo), sizes=sizes, command=command
    )
    if site.reproduce:
        workload = as_reproduce(workload, ask, site, run=site.reproduce)
    elif not is_demo:
        text = config_text(config, name=workload.name, is_whole=site.whole_config)
        workload = replace(workload, config_text=text)
    if wrong := [*wrong, *problems(workload)]:
        raise UsageError("cannot render", problems=wrong)
    is_bare = is_demo or site.reproduce is not None
    warnings = [*loaded.warnings, *notes, *warnings_of(workload, config, is_demo=is_bare)]
    return (as_net_check(workload) if site.net_check else workload), warnings


def assembled(site: Site, given: Given, *, name: str, sizes: Sizes, command: tuple[str, ...]) -> Workload:
    """The run without its configuration."""
    volumes = asked.volumes(
        sizes,
        claims={place: getattr(site, f"{place}_claim") for place in PLACES},
        host_paths=given.host_paths,
        fetched_bytes=given.fetched_bytes,
    )
    places = {volume.name for volume in volumes}
    return Workload(
        name=name,
        image=site.image or f"loradock:{__version__}",
        command=command,
        sizes=sizes,
        namespace=site.namespace,
        run_id=site.run_id,
        lock_sha256=probe.lock_sha256(Host()),
        nodes=site.nodes,
        processes=max(1, sizes.gpus.value),
        volumes=volumes,
        working_directory=asked.DATA if "data" in places else None,
        environment=environment(given, has_cache="cache" in places),
        secrets=given.secrets,
        fetch=Fetch(image=site.fetch_image, arguments=site.fetch_arg) if site.fetch_image else None,
        pull_secret=site.pull_secret,
        labels=given.labels,
        annotations=given.annotations,
        card_resource=given.gpu_resource,
        devices=given.devices,
        placement=given.placement,
        failures=site.failures,
        deadline_seconds=site.deadline_seconds,
        ttl_seconds=site.ttl_seconds,
        account=Account(
            service_account=site.service_account, uid=site.uid, fs_group=site.fs_group, is_openshift=site.openshift
        ),
        has_read_only_root=site.read_only_root,
        egress=site.allow_egress if site.network_policy else None,
        is_guarded=site.nodes > 1 and site.network_policy is not False,
    )


def as_net_check(workload: Workload) -> Workload:
    """The same pods, which look at the network between them and end. UsageError for one that is alone."""
    if workload.nodes * workload.processes == 1:
        raise UsageError("--net-check needs several ranks", hint="--gpus N, or --nodes N")
    return replace(
        workload,
        name=names.safe_name(f"net-check-{workload.name}"),
        command=("net-check", "--timeout", str(GATHERING_SECONDS)),
        config_text=None,
        fetch=None,
        failures=0,
        beats=False,
    )


def as_reproduce(workload: Workload, ask: Ask, site: Site, *, run: Path) -> Workload:
    """The same pod, in which the run of a record is repeated and compared; it starts its processes itself."""
    name = names.safe_name(f"reproduce-{workload.name}") if site.name is None else workload.name
    places = [text for flag in ELSEWHERE for path in _listed(ask.shortcuts.get(flag)) for text in (flag, path)]
    extent = ("--whole",) if site.whole else ()
    command = ("reproduce", str(run), *places, "--output", f"{asked.OUTPUT}/{name}", *extent)
    return replace(workload, name=name, command=command, processes=1)


ELSEWHERE = ("--model", "--data")
"""Short options that say where a recorded run's inputs lie in the pod."""


def _listed(value: object) -> list[str]:
    return [
        str(each) for each in (cast("list[object]", value) if isinstance(value, list) else [value] if value else [])
    ]


def recorded_run(ask: Ask, site: Site, *, is_demo: bool) -> Loaded:
    """The configuration of the run that is to be repeated, for its sizes; nothing of it is trusted."""
    from loradock.analysis.reproduce.artefact import places_in
    from loradock.analysis.reproduce.original import opened
    from loradock.analysis.reproduce.places import Places, is_shipped, located, paths_of

    assert site.reproduce
    options_beside = {"--demo": is_demo, "--net-check": site.net_check, "--whole-config": site.whole_config}
    options_beside |= {"CONFIG": ask.config, "--preset": ask.preset, "--set": ask.overrides}
    options_beside |= {flag: value for flag, value in ask.shortcuts.items() if flag not in ELSEWHERE}
    options_beside["--nodes"] = site.nodes > 1
    if unfit := [name for name, value in options_beside.items() if value]:
        raise UsageError(f"{unfit[0]} and --reproduce cannot be used together", hint=f"leave out {unfit[0]}")
    original = opened(site.reproduce)
    gpus = 1 if site.gpus is None else site.gpus
    if original.decided("device") == "cuda" and gpus != original.processes:
        what = f"the run was trained by {original.processes} processes with a GPU each, and the pod has {gpus}"
        raise UsageError(what, hint=f"--gpus {original.processes}")
    bundled = places_in(original.bundle, original) if original.bundle else Places()
    config = located(original, bundled)
    config = config.model_copy(update={"model": config.model.model_copy(update={"trust_remote_code": None})})
    has_place = {name for name in vars(bundled) if getattr(bundled, name)}
    has_place |= {flag.removeprefix("--") for flag in ELSEWHERE if ask.shortcuts.get(flag)}
    paths = {
        name: paths for name, paths in paths_of(original.config).items() if name.replace("-", "_") not in has_place
    }
    unplaced = [path for group in paths.values() for path in group if not is_shipped(path)]
    bundle = "loradock bundle create NAME.tar --run RUN --rows --base, and name its folder on the data volume"
    warnings = (
        [f"the pod has to find {', '.join(unplaced)} where the run did: --model, --data, or {bundle}"]
        if unplaced
        else []
    )
    return Loaded(config=config, origins={}, warnings=tuple(warnings))


def demo_run(ask: Ask, *, is_whole: bool) -> Loaded:
    """The demo's configuration with what was set on top."""
    from loradock.demo import exam

    if is_whole:
        raise UsageError("--demo has no configuration for --whole-config", hint="leave out --whole-config, or --demo")
    if ask.config is not None or ask.preset is not None:
        raise UsageError("--demo brings its own configuration", hint="leave out CONFIG and --preset, or --demo")
    loaded = replace(ask, config=exam.CONFIG).load(reads_rows=False)
    return replace(loaded, config=exam.resolved(loaded.config))


def demo_command(ask: Ask) -> tuple[str, ...]:
    """What `train` is given: the settings as they were."""
    flags = {flag: value for flag, value in ask.shortcuts.items() if flag != "--output"}
    if unfit := sorted(flags.keys() & {"--model", "--data"}):
        raise UsageError(f"{unfit[0]} and --demo cannot be used together", hint=f"leave out {unfit[0]}, or --demo")
    settings = [part for override in ask.overrides for part in ("--set", override)]
    return ("train", "--demo", "--output", asked.OUTPUT, *(f"{f}={v}" for f, v in flags.items()), *settings)


def workload_name(config: RunConfig, site: Site, *, is_demo: bool) -> str:
    """As it was given, or made from the run's."""
    return names.safe_name(run_name(config, is_demo=is_demo)) if site.name is None else site.name


def run_name(config: RunConfig, *, is_demo: bool) -> str:
    """The run's name: asked for, or from the model and the first source."""
    if is_demo:
        return f"loradock-{config.name or 'demo'}"
    if config.name:
        return config.name
    source = Path(config.data.sources[0].path.removeprefix("hub:")).name.split(".")[0]
    return f"{Path(config.model.name).name}-{source}"


def config_text(config: RunConfig, *, name: str, is_whole: bool = False) -> str:
    """The configuration as YAML: what differs from the defaults, or the whole, and the output on its volume."""
    content = whole(config) if is_whole else config.model_dump(mode="json", exclude_defaults=True)
    return one_document(content | {"output": asked.output(config.output or name, name=name)})


def whole(config: RunConfig) -> dict[str, Any]:
    """Every key that has an effect: one that has none would be warned about where the run starts."""
    content = config.model_dump(mode="json")
    for findings in no_effect.WARNINGS:
        for finding in findings(config):
            *path, last = finding.keys[0].split(".")
            node: Any = content
            for part in path:
                node = node[int(part)] if part.isdecimal() else node[part]
            node.pop(last)
    return content


def environment(given: Given, *, has_cache: bool) -> tuple[tuple[str, str], ...]:
    """The variables that were asked for, and those that use the cache's volume."""
    cache = {"HF_HOME": f"{asked.CACHE}/huggingface", "LORADOCK_CACHE": f"{asked.CACHE}/loradock"}
    return tuple({**(cache if has_cache else {}), **dict(given.environment)}.items())
