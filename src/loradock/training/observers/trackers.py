"""Experiment trackers: the nine of accelerate, how each is opened for a run, and how it is ended.

To add one: its package and the arguments of accelerate's class in TRACKERS, and its name in the configuration's schema.
"""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from loradock.errors import EnvironmentUnfit

LONGEST_SETTING = 500
"""MLflow's limit for a value, in characters."""
IN_EXTRA = ("tensorboard", "wandb", "mlflow")
"""Packages of the extra `track`."""

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and named arguments of accelerate's class."""


def _tensorboard(directory: Path, _project: str, _name: str) -> Arguments:
    return ("tensorboard", str(directory)), {}


def _wandb(directory: Path, project: str, name: str) -> Arguments:
    import wandb

    quiet = wandb.Settings(console="off", disable_git=True, disable_code=True, quiet=True, x_stats_pid=os.getppid())
    return (project,), {"name": name, "dir": str(directory), "settings": quiet}


def _mlflow(directory: Path, project: str, name: str) -> Arguments:
    """Without MLFLOW_TRACKING_URI a file store in the run directory, which `mlflow migrate-filestore` reads."""
    import mlflow

    if not os.environ.get("MLFLOW_TRACKING_URI"):
        os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
        mlflow.set_tracking_uri((directory / "mlruns").resolve().as_uri())
        os.environ.pop("MLFLOW_TRACKING_URI", None)  # MLflow leaves it behind, and it would be the next run's too
    return (project,), {"run_name": name}


def _dvclive(directory: Path, _project: str, name: str) -> Arguments:
    """Files in the run directory, and no commit into the repository that it may lie in."""
    return (name,), {"dir": str(directory / "dvclive"), "save_dvc_exp": False, "report": None}


TRACKERS: dict[str, tuple[str, Callable[[Path, str, str], Arguments]]] = {
    "tensorboard": ("tensorboard", _tensorboard),
    "wandb": ("wandb", _wandb),
    "mlflow": ("mlflow", _mlflow),
    "comet_ml": ("comet_ml", lambda _, project, __: ((project,), {})),
    "aim": ("aim", lambda directory, project, _: ((project, str(directory)), {})),
    "clearml": ("clearml", lambda _, project, name: ((project,), {"task_name": name})),
    "dvclive": ("dvclive", _dvclive),
    "swanlab": (
        "swanlab",
        lambda directory, project, name: (
            (project,),
            {"experiment_name": name, "logdir": str(directory / "swanlog")},
        ),
    ),
    "trackio": ("trackio", lambda _, project, name: ((project,), {"name": name})),
}
"""Package and arguments by name."""


def check(names: Sequence[str]) -> None:
    """See that each is installed, and that W&B has a login, before rows are read. Raises EnvironmentUnfit."""
    packages = [TRACKERS[each][0] for each in names]
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    if missing:
        what = f"tracker not installed: {', '.join(missing)}"
        wanted = {"'loradock[track]'" if each in IN_EXTRA else each.replace("_", "-") for each in missing}
        raise EnvironmentUnfit(what, hint=f"pip install {' '.join(sorted(wanted))}")
    if "wandb" in names:
        _check_wandb()


def _check_wandb() -> None:
    """Where it has no login it asks for one, in the middle of a start or of nobody."""
    from wandb.sdk import wandb_setup
    from wandb.sdk.lib import wbauth

    settings = wandb_setup.singleton().settings  # wandb.setup() starts a service, whose end is waited for
    is_known = settings.api_key or settings.identity_token_file or wbauth.read_netrc_auth(host=settings.base_url)
    if settings.mode == "online" and not is_known:
        what = f"logging.trackers names wandb, and there is no login for {settings.base_url}"
        hint = (
            "wandb login, or WANDB_API_KEY in the environment; WANDB_MODE=offline keeps the run's files to sync later"
        )
        raise EnvironmentUnfit(what, hint=hint)


def opened(name: str, *, directory: Path, project: str, run: str, settings: Mapping[str, Any]) -> Any:
    """The open tracker, an object of accelerate's class, with the run's settings in it.

    To be called in a process of the tracker's own (see `tracker_process`): it may take minutes, and never come back.
    Raises whatever the tracker's library does.
    """
    from accelerate import PartialState
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS

    PartialState(cpu=True)  # accelerate's trackers log, and its logger asks for a state
    positional, named = TRACKERS[name][1](directory, project, run)
    tracker: Any = LOGGER_TYPE_TO_CLASS[name](*positional, **named)
    tracker.start()
    tracker.store_init_configuration(dict(_flat(settings)))
    return tracker


def finish(tracker: Any, *, has_failed: bool) -> None:
    """Flush and end. W&B and MLflow keep whether a run failed, which accelerate does not tell them."""
    if has_failed and tracker.name == "wandb":
        tracker.tracker.finish(exit_code=1)
    elif has_failed and tracker.name == "mlflow":
        import mlflow

        mlflow.end_run("FAILED")
    else:
        tracker.finish()


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Nested settings as dotted names, with values that every tracker takes."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            is_plain = isinstance(value, bool | int | float)
            text = value if isinstance(value, str) else json.dumps(value)
            yield f"{prefix}{key}", value if is_plain else text[:LONGEST_SETTING]
