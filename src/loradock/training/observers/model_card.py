"""The model card of an adapter: the facts of the run that made it, and how to load it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import yaml

from loradock.catalog import storages
from loradock.catalog.objectives import DEFAULT, OBJECTIVES
from loradock.catalog.objectives.base import ObjectiveSpec
from loradock.config.sections.preference import PreferenceConfig
from loradock.facts import UNREACHABLE_SHARE, unreachable_words
from loradock.files import atomic_io
from loradock.model import opening
from loradock.model.stored import FORMATS
from loradock.plan.plan import shown
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
            quantisation(content) or ("as the base's files hold it" if is_prequantised(content) else "none"),
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
    rows = [(source["path"], f"sha256 {source['sha256'][:16]}") for source in content["data"]["sources"]]
    return [
        *rows,
        (
            "samples" if data.get("split_rows") else "answers" if data.get("together", 1) > 1 else "rows",
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


AS_STORED = "as the base's files hold it"


def is_prequantised(content: dict[str, Any]) -> bool:
    """Whether the base's files hold it in NF4, as transformers then loads it by itself."""
    model = content["plan"]["model"]
    return bool(model.get("is_prequantised")) and not model.get("stored_as")


def quantisation(content: dict[str, Any]) -> str:
    """The configuration that the base is loaded with, as Python; "" for weights that are loaded as they are."""
    if is_prequantised(content):
        return ""
    if title := content["plan"]["model"].get("stored_as"):  # transformers takes no other; training may have used NF4
        return next(form.python for form in FORMATS.values() if form.title == title)
    model = content["config"]["model"]
    dtype = next(each["value"] for each in content["plan"]["decisions"] if each["name"] == "compute_dtype")
    storage = storages.of(model["quantization"])
    arguments = storage.arguments(double_quant=model["double_quant"], dtype=f"torch.{dtype}")
    texts = [f'{key}="{value}"' if key.endswith("quant_type") else f"{key}={value}" for key, value in arguments.items()]
    return f"BitsAndBytesConfig({', '.join(texts)})" if texts else ""


def usage(name: str, content: dict[str, Any], *, prompt: str | None) -> str:
    """How to load the adapter with plain peft, and to ask it as it was trained."""
    revision, config = content["base"]["revision"], quantisation(content)
    pin = f', revision="{revision}"' if revision else ""
    quantised = f", quantization_config={config}" if config else ""
    model = content["plan"]["model"]
    base_class = model["architecture"] if model.get("left_out") else "AutoModelForCausalLM"
    lines = opening.in_python(content["config"], name, pin)
    needed = [*([config.partition("(")[0]] if config else []), *(["AutoConfig"] if lines.before else [])]
    imports = ", ".join(sorted([base_class, "AutoTokenizer", *needed]))
    asked = CHAT if prompt else RAW
    shown_prompt = f"A question is put to it as\n\n```text\n{prompt}\n```" if prompt else PLAIN
    return f"""## Use

{shown_prompt}

```python
import torch
from peft import PeftModel
from transformers import {imports}

{lines.before}base = {base_class}.from_pretrained("{name}"{pin}{lines.argument}{quantised})
adapter = "."  # the directory that holds this model card
{lines.after}model = PeftModel.from_pretrained(base, adapter)
tokenizer = AutoTokenizer.from_pretrained(adapter)
{asked}
answer = model.generate(**prompt.to(model.device), max_new_tokens=64)
print(tokenizer.decode(answer[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True))
```"""


def reward_usage(name: str, content: dict[str, Any], *, prompt: str | None) -> str:
    """How to score an answer with plain transformers and peft, as training read it."""
    revision, config = content["base"]["revision"], quantisation(content)
    pin = f', revision="{revision}"' if revision else ""
    quantised = f", quantization_config={config}" if config else ""
    lines = opening.in_python(content["config"], name, pin)
    before, labels = "", ", num_labels=1"
    if lines.before:
        before, labels = f"{lines.before}config.num_labels = 1\n", lines.argument
    needed = [*(["AutoConfig"] if lines.before else []), *([config.partition("(")[0]] if config else [])]
    classes = sorted(["AutoModelForSequenceClassification", "AutoTokenizer", *needed])
    scored = SCORED_CHAT if prompt else SCORED_RAW
    return f"""## Use

A score says how good an answer is beside others to the same prompt; by itself it has no unit.

```python
import torch
from peft import PeftModel
from transformers import {", ".join(classes)}

adapter = "."  # the directory that holds this model card
tokenizer = AutoTokenizer.from_pretrained(adapter)
{before}base = AutoModelForSequenceClassification.from_pretrained("{name}"{pin}{labels}{quantised})
tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
base.config.pad_token_id = tokenizer.pad_token_id
model = PeftModel.from_pretrained(base, adapter).eval()
{scored}
print(float(model(**answer.to(model.device)).logits))
```"""


SCORED_CHAT = """asked, said = "Why is the sky blue?", "It scatters blue light."
turns = [{"role": "user", "content": asked}, {"role": "assistant", "content": said}]
answer = tokenizer.apply_chat_template(turns, return_dict=True, return_tensors="pt")"""
SCORED_RAW = 'answer = tokenizer("A prompt, and its answer" + tokenizer.eos_token, return_tensors="pt")'


def embedding_usage(recipe: dict[str, Any], model: dict[str, Any]) -> str:
    """How to embed with the adapter, and how to hand it to sentence-transformers, where that can be done."""
    refused = (
        OF_A_WRAPPER if model.get("left_out")
        else None if recipe["pooling"] in EXPORTED
        else f"sentence-transformers has another {recipe['pooling']} pooling: no export."
    )  # fmt: skip
    kind = f"{recipe['pooling']} pooling, {recipe['attention']} attention, template {recipe['template']['name']}"
    return f"""## Embed

{kind}; `embedding.json` says it in full. Vectors of length 1, as numpy float32:

```bash
loradock embed . --input passages.txt -o passages.npy
loradock embed . --input queries.txt --query --instruction "..." -o queries.npy
```

{refused or FOR_OTHERS}"""


OF_A_WRAPPER = "The base also reads images, audio or video: no export for sentence-transformers."
EXPORTED = ("mean", "lasttoken")
FOR_OTHERS = """For sentence-transformers (`--merge`: one model, which needs no base beside it):

```bash
loradock checkpoint export . -o model --as sentence-transformers --merge --instruction "..."
```

```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("model")
queries = model.encode_query(["..."])
passages = model.encode_document(["..."])
print(model.similarity(queries, passages))
```"""
PLAIN = "It was trained on plain text, without a chat template: the prompt is the text as it stands in a row."
RAW = 'prompt = tokenizer("...", return_tensors="pt")  # as the prompt, or the beginning of the text, stands in a row'
CHAT = """question = [{"role": "user", "content": "..."}]
prompt = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_dict=True, return_tensors="pt")"""
