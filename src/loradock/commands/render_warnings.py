"""What `loradock render` warns about: what Kubernetes takes, and a person may not have meant."""

from __future__ import annotations

from loradock.config.schema import RunConfig
from loradock.manifests import names
from loradock.manifests.workload import Workload
from loradock.model import hub_cache


def warnings_of(workload: Workload, config: RunConfig, *, is_demo: bool) -> list[str]:
    """A line each, for the image, the volumes and the paths of the configuration."""
    found: list[str] = []
    if not names.is_by_digest(workload.image):
        hint = "docker inspect --format '{{index .RepoDigests 0}}' " + workload.image
        found.append(f"{workload.image} is a tag, and a tag can move: --image REF@sha256:... (after a push, {hint})")
    places = {each.name: each for each in workload.volumes}
    if workload.sizes.output_bytes.value:
        found.append("the output goes with the pod: --output-claim PVC keeps it")
    if any(each.host_path for each in workload.volumes):
        found.append("Pod Security `baseline` and `restricted` refuse hostPath volumes")
    if is_demo:
        return found
    paths = [config.model.name, *(each.path for each in config.data.sources if not each.path.startswith("hub:"))]
    for path in paths:
        found += _of_path(path, places=set(places))
    return found


def _of_path(path: str, *, places: set[str]) -> list[str]:
    """A path that is none of the pod's."""
    if hub_cache.is_hub_id(path):
        return []
    if not path.startswith("/"):
        return [] if "data" in places else [f"{path} has no volume to lie on: --data-claim PVC"]
    is_there = any(path.startswith(f"/{place}/") for place in places)
    return [] if is_there else [f"{path} is no path of the pod: one relative to the data volume, or below /data"]
