"""Experiment trackers: the nine of accelerate, each opened for a run, given metrics by step, and closed at its end.

To add one: its package and the arguments of accelerate's class in TRACKERS, and its name in the configuration's schema.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from loradock.errors import EnvironmentUnfit

LONGEST_SETTING = 500
"""MLflow's limit for a value, in characters."""
IN_EXTRA = ("tensorboard", "wandb", "mlflow")
"""Packages of the extra `track`."""
_log = logging.getLogger(__name__)

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and named arguments of accelerate's class."""


def _tensorboard(directory: Path, _project: str, _name: str) -> Arguments:
    return ("tensorboard", str(directory)), {}


def _wandb(directory: Path, project: str, name: str) -> Arguments:
    import wandb

    quiet = wandb.Settings(console="off", disable_git=True, disable_code=True, quiet=True)
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


class Tracker:
    """One open tracker. What fails in it is logged once, and the run goes on without it."""

    def __init__(self, name: str, inner: Any) -> None:
        self.name, self._inner, self._has_failed = name, inner, False

    def log(self, values: Mapping[str, float], *, step: int) -> None:
        """Record metrics of one optimiser step; names as in `train/loss`."""
        if not self._has_failed:
            self._do(lambda: self._inner.log(dict(values), step=step))

    def close(self, *, status: str) -> None:
        """Flush and end; `status` is how the run ended."""
        self._do(lambda: self._finish(has_failed=status != "finished"))

    def _finish(self, *, has_failed: bool) -> None:
        """W&B and MLflow keep whether a run failed, which accelerate does not tell them."""
        if has_failed and self.name == "wandb":
            self._inner.tracker.finish(exit_code=1)
        elif has_failed and self.name == "mlflow":
            import mlflow

            mlflow.end_run("FAILED")
        else:
            self._inner.finish()

    def _do(self, work: Callable[[], object]) -> None:
        try:
            work()
        except Exception as failure:  # noqa: BLE001  a server that is away must not cost a training
            level = logging.DEBUG if self._has_failed else logging.WARNING
            _log.log(level, "tracker %s failed and gets nothing more: %s", self.name, failure)
            self._has_failed = True


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
    import wandb
    from wandb.sdk.lib import wbauth

    settings = wandb.setup().settings
    is_known = settings.api_key or settings.identity_token_file or wbauth.read_netrc_auth(host=settings.base_url)
    if settings.mode == "online" and not is_known:
        what = f"logging.trackers names wandb, and there is no login for {settings.base_url}"
        hint = (
            "wandb login, or WANDB_API_KEY in the environment; WANDB_MODE=offline keeps the run's files to sync later"
        )
        raise EnvironmentUnfit(what, hint=hint)


def open_all(
    names: Sequence[str], *, directory: Path, project: str, name: str, config: Mapping[str, Any]
) -> list[Tracker]:
    """Open the trackers that were asked for; EnvironmentUnfit with the remedy where one is missing or does not open."""
    check(names)
    if not names:
        return []
    from accelerate import PartialState

    PartialState(cpu=config.get("device") == "cpu")  # accelerate's trackers log, and its logger asks for a state
    settings = dict(_flat(config))
    return [Tracker(each, _opened(each, TRACKERS[each][1](directory, project, name), settings)) for each in names]


def _opened(name: str, arguments: Arguments, settings: dict[str, Any]) -> Any:
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS

    positional, named = arguments
    try:
        inner: Any = LOGGER_TYPE_TO_CLASS[name](*positional, **named)
        inner.start()
        inner.store_init_configuration(settings)
    except Exception as failure:
        hint = f"see its settings, or leave it out of logging.trackers: {name}"
        raise EnvironmentUnfit(f"tracker {name} does not open: {failure}", hint=hint) from failure
    return inner


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Nested settings as dotted names, with values that every tracker takes."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            is_plain = isinstance(value, bool | int | float)
            text = value if isinstance(value, str) else json.dumps(value)
            yield f"{prefix}{key}", value if is_plain else text[:LONGEST_SETTING]
