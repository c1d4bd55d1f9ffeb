"""The model card of an adapter: the facts of the run that made it, and how to load it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import yaml

from loradock.catalog.objectives import DEFAULT, OBJECTIVES
from loradock.catalog.objectives.base import ObjectiveSpec
from loradock.config.sections.preference import PreferenceConfig
from loradock.facts import UNREACHABLE_SHARE, unreachable_words
from loradock.files import atomic_io
from loradock.plan.plan import shown
from loradock.training.observers.card_usage import (
    AS_STORED,
    embedding_usage,
    is_prequantised,
    quantisation,
    reward_usage,
    usage,
)
from loradock.training.run_dir import identity as run_identity

PACKAGES = ("torch", "transformers", "peft", "bitsandbytes")


def write(
    content: dict[str, Any], evaluations: Sequence[dict[str, Any]], file: Path, *, prompt: str | None = None
) -> None:
    """Write the card from the content of run.json and the evaluation lines.

    `prompt`: a question as the trained chat template puts it to the model; None where the rows were raw text.
    """
    model, plan = content["config"]["model"], content["plan"]
    base_id = hub_id(model["name"], content["base"])
    embeds, answers = "embedding" in content, objective_of(content).answers
    scores = objective_of(content).has_head
    purpose = "text-generation" if answers else "text-classification" if scores else "feature-extraction"
    front: dict[str, Any] = {"library_name": "peft", "pipeline_tag": purpose}
    front |= {"tags": ["lora", *(["sentence-similarity"] if embeds else ["reward-model"] if scores else [])]}
    front = {"base_model": base_id, **front} if base_id else front
    sections = [
        "---\n" + yaml.safe_dump(front, sort_keys=False) + "---",
        f"# {content['name']}",
        f"A LoRA adapter for `{base_id or model['name']}`"
        + (f" at `{content['base']['revision']}`" if content["base"]["revision"] else "")
        + f", made by loradock {content['loradock']} on {content['started'][:10]}.",
        table("Training", [*training_rows(content), *changes(content)]),
        table("Data", data_rows(content)),
        table("Decisions", [(d["name"], f"{shown(d['value'])} ({d['why']})") for d in plan["decisions"]]),
        results(evaluations),
        tasks(content),
        reproduce(content),
        embedding_usage(content["embedding"], plan["model"]) if embeds else "",
        usage(base_id or content["base"]["path"], content, prompt=prompt) if answers else "",
        reward_usage(base_id or content["base"]["path"], content, prompt=prompt) if scores else "",
    ]
    atomic_io.replace(file, "\n\n".join(section for section in sections if section) + "\n")


def objective_of(content: dict[str, Any]) -> ObjectiveSpec:
    """What a recorded run optimised; records of before there was a choice name none."""
    spec = OBJECTIVES[content["config"].get("objective", DEFAULT)]
    return (
        spec.under(reduce(dict.__getitem__, spec.variant_key.split("."), content["config"]))
        if spec.variant_key
        else spec
    )


def training_rows(content: dict[str, Any]) -> list[tuple[str, str]]:
    """Hyper-parameters and environment, as label and value."""
    config, facts = content["config"], content["facts"]
    lora, train = config["lora"], config["train"]
    packages = facts["packages"]
    return [
        ("LoRA", f"r={lora['rank']}, alpha={lora['alpha']:g}, dropout={lora['dropout']:g}, targets {lora['targets']}"),
        *not_adapted(content["plan"]["model"]),
        ("base weights", ", ".join([config["model"]["quantization"], *weights_digest(content)])),
        (
            "quantisation",
            quantisation(content) or (AS_STORED if is_prequantised(content) else "none"),
        ),
        ("learning rate", f"{train['learning_rate']:g}, {train['schedule']}, warm-up {train['warmup']:g}"),
        *([("samples a step", str(train["global_batch"]))] if objective_of(content).documents_answered else []),
        *contrast(content),
        *preferences(content),
        ("steps", str(content["outcome"]["steps"])),
        ("seed", str(train["seed"])),
        ("device", ", ".join(gpu["name"] for gpu in facts["gpus"]) or "CPU"),
        (
            "packages",
            ", ".join(f"{name} {packages[name]}" for name in PACKAGES if name in packages),
        ),
        ("code", str(facts["git_commit"])),
    ]


def not_adapted(model: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The weights that no adapter reaches, as label and value, where they are more than a trace."""
    count, every = model.get("unreachable_parameters", 0), model["parameters"]
    if count > UNREACHABLE_SHARE * every:
        kinds = unreachable_words(model.get("unreachable_kinds", ()))
        yield "no adapter on", f"{count:,} of {every:,} weights, which are outside linear layers ({kinds})"
    if experts := model.get("experts_without_adapter", 0):
        yield "no adapter on", f"{experts:,} of {every:,} weights, which are a mixture's experts"


def contrast(content: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The contrastive loss of a run that embeds, as label and value."""
    if "embedding" in content:
        asked = content["config"]["embedding"]
        yield "pairs a step", f"{asked['global_batch']}, with up to {asked['negatives']} hard negatives each"
        yield "temperature", f"{asked['temperature']:g}"


def preferences(content: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The loss of a run that learned preferences, and the adapter that any run began with, as label and value."""
    options = content["config"].get("preference")
    if options and objective_of(content).owns("preference.loss"):
        yield "preference loss", f"{PreferenceConfig.model_validate(options).formula}, beta {options['beta']:g}"
        if objective_of(content).variant:
            weights = (options["desirable_weight"], options["undesirable_weight"])
            yield "weights of the answers", "{:g} desirable, {:g} undesirable".format(*weights)
    if first := content["config"]["lora"].get("adapter"):
        digest = content["fingerprint"]["lora.adapter.content"]
        yield "began with the adapter", f"{first}, weights sha256 {digest[:16]}"


def changes(content: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What `--allow-change` accepted, by the step from which it holds."""
    for step, _, attempt in run_identity.continued(content):
        for field, values in (attempt.get("allowed_changes") or {}).items():
            for difference in run_identity.differences({field: values["was"]}, {field: values["now"]}):
                yield f"from step {step + 1}", difference.what


def data_rows(content: dict[str, Any]) -> list[tuple[str, str]]:
    """What was trained on, as label and value."""
    data = content["plan"]["data"]
    parts = "answers" if data.get("together", 1) > 1 else "texts" if data.get("pairs") else "rows"
    rows = [(source["path"], f"sha256 {source['sha256'][:16]}") for source in content["data"]["sources"]]
    return [
        *rows,
        (
            "samples" if data.get("split_rows") else parts,
            f"{data['train_rows']} trained, {data['validation_rows']} held out",
        ),
        ("tokens", f"{data['tokens']:,}, of which {data['supervised_tokens']:,} are learned"),
        ("an epoch", f"{data['samples_per_epoch']:,} samples by the sources' weights, {data['epoch_tokens']:,} tokens"),
        ("loss on", content["config"]["data"]["loss"]),
    ]


MEASURED = {
    "embedding_loss": "contrastive loss",
    "generative_loss": "generative loss",
    "perplexity": "perplexity",
    "in_batch_accuracy": "in-batch accuracy",
    "preference_accuracy": "preference accuracy",
    "reward_margin": "reward margin",
    "divergence": "divergence from the reference",
    "chosen_log_probability": "log-probability of the chosen answer",
}
"""What an evaluation line may hold besides its loss."""


def results(evaluations: Sequence[dict[str, Any]]) -> str:
    """The evaluation lines as a table, with the curve."""
    curve = "![training curve](training_curve.png)"
    if not evaluations:
        return f"## Results\n\n{curve}"
    sets = [name for name in evaluations[0] if name.startswith("loss_")]
    measured = {name: shown_as for name, shown_as in MEASURED.items() if name in evaluations[0]}
    names = [*measured.values(), *(f"loss on {name.removeprefix('loss_')}" for name in sets)]
    head = ["step", "evaluation loss", *names]
    lines = [
        [
            str(line["step"]),
            f"{line['loss']:.4f}",
            *(f"{line[name]:.3f}" if name in line else "" for name in measured),
            *(f"{line[name]:.4f}" if name in line else "" for name in sets),
        ]
        for line in evaluations
    ]
    rows = [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *lines)]
    return "\n".join(["## Results", "", *rows, "", curve])


def tasks(content: dict[str, Any]) -> str:
    """What base and adapter answered, where the run was asked for it."""
    found = content.get("tasks")
    if not found:
        return ""
    head = ["task", "rows", "base", "adapter", "difference (95 %)", "majority class", "rows that were trained on"]
    lines = [
        [
            each["task"],
            f"{each['rows']:,}",
            f"{each['base']:.1%}",
            f"{each['adapter']:.1%}",
            f"{100 * each['interval'][0]:+.1f} to {100 * each['interval'][1]:+.1f} points",
            f"{each['majority']:.1%}",
            "not looked for" if each["trained_on"] is None else str(each["trained_on"]),
        ]
        for each in found
    ]
    rows = [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *lines)]
    return "\n".join(["## Tasks", "", "Accuracy by log-probability among the answers of each question.", "", *rows])


def reproduce(content: dict[str, Any]) -> str:
    """The commands that make the run again, typed in the adapter's folder."""
    base, facts = content["base"], content["facts"]
    fetch = f"hf download {base['name']} --revision {base['revision']}\n" if base["revision"] else ""
    code = f" (commit {facts['git_commit'][:12]})" if facts.get("git_commit") else ""
    code += f", image {facts['image_digest']}" if facts.get("image_digest") else ""
    options = " ".join(inputs_elsewhere(content["config"]))
    return f"""## Reproduce this

`run/` beside this file holds the record of the run and its measured steps. In this folder, with loradock
{content["loradock"]}{code}:

```bash
{fetch}loradock reproduce . --check-only   # what differs here
loradock reproduce .                # repeats the first steps, and compares each
loradock reproduce . --whole        # repeats all, and compares the adapter's bytes
```

What is not where it was is named, and where it lies now is said by: `{options}`."""


def inputs_elsewhere(config: dict[str, Any]) -> Iterator[str]:
    """The options of `loradock reproduce` that say where the inputs of this run lie."""
    yield "--model DIR"
    yield from (f"--data {Path(source['path']).name}" for source in config["data"]["sources"])
    held_out = config["data"]["validation"]
    held_out = held_out.values() if isinstance(held_out, dict) else [held_out] if isinstance(held_out, str) else []
    yield from (f"--validation {Path(path).name}" for path in held_out)
    files = {
        "template": config["data"]["template"],
        "embedding-template": config.get("embedding", {}).get("template"),
        "deepspeed": config["train"].get("deepspeed"),
    }
    suffixes = (".jinja", ".j2", ".json")
    yield from (f"--{name} {Path(path).name}" for name, path in files.items() if path and path.endswith(suffixes))
    if config["lora"].get("adapter"):
        yield "--adapter DIR"


def table(title: str, rows: Sequence[tuple[str, str]]) -> str:
    """A titled two-column table."""
    cells = [f"| {label} | {str(value).replace('|', '/')} |" for label, value in rows]
    return "\n".join([f"## {title}", "", "| | |", "|---|---|", *cells])


def hub_id(name: str, base: dict[str, Any]) -> str | None:
    """OWNER/NAME of the base on the hub: as it was named, or by its folder in the hub's cache; None for another one."""
    if base["revision"]:
        return name
    found = re.search(r"models--([^/]+)--([^/]+)/snapshots/", base["path"])
    return f"{found[1]}/{found[2]}" if found else None


def weights_digest(content: dict[str, Any]) -> list[str]:
    """What the weights were, for a base that a name alone does not tell."""
    digest = content.get("fingerprint", {}).get("base.weights")
    return [f"sha256 {digest}"] if digest else []
