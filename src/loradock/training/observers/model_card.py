"""The model card of an adapter: the facts of the run that made it, and how to load it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from loradock.plan.plan import shown

PACKAGES = ("torch", "transformers", "peft", "bitsandbytes")


def write(content: dict[str, Any], evaluations: Sequence[dict[str, Any]], file: Path) -> None:
    """Write the card from the content of run.json and the evaluation lines."""
    model, plan = content["config"]["model"], content["plan"]
    front = {"base_model": model["name"], "library_name": "peft", "pipeline_tag": "text-generation", "tags": ["lora"]}
    sections = [
        "---\n" + yaml.safe_dump(front, sort_keys=False) + "---",
        f"# {content['name']}",
        f"A LoRA adapter for `{model['name']}`"
        + (f" at `{content['base']['revision']}`" if content["base"]["revision"] else "")
        + f", made by loradock {content['loradock']} on {content['started'][:10]}.",
        table("Training", training_rows(content)),
        table("Data", data_rows(content)),
        table("Decisions", [(d["name"], f"{shown(d['value'])} ({d['why']})") for d in plan["decisions"]]),
        results(evaluations),
        usage(model["name"], content["base"]["revision"]),
    ]
    file.write_text("\n\n".join(section for section in sections if section) + "\n", encoding="utf-8")


def training_rows(content: dict[str, Any]) -> list[tuple[str, str]]:
    """Hyper-parameters and environment, as label and value."""
    config, facts = content["config"], content["facts"]
    lora, train = config["lora"], config["train"]
    packages = facts["packages"]
    return [
        ("LoRA", f"r={lora['rank']}, alpha={lora['alpha']:g}, dropout={lora['dropout']:g}, targets {lora['targets']}"),
        ("base weights", config["model"]["quantization"]),
        ("learning rate", f"{train['learning_rate']:g}, {train['schedule']}, warm-up {train['warmup']:g}"),
        ("samples a step", str(train["global_batch"])),
        ("steps", str(content["outcome"]["steps"])),
        ("seed", str(train["seed"])),
        ("device", ", ".join(gpu["name"] for gpu in facts["gpus"]) or "CPU"),
        (
            "packages",
            ", ".join(f"{name} {packages[name]}" for name in PACKAGES if name in packages),
        ),
        ("code", str(facts["git_commit"])),
    ]


def data_rows(content: dict[str, Any]) -> list[tuple[str, str]]:
    """What was trained on, as label and value."""
    data = content["plan"]["data"]
    rows = [(source["path"], f"sha256 {source['sha256'][:16]}") for source in content["data"]["sources"]]
    return [
        *rows,
        ("rows", f"{data['train_rows']} trained, {data['validation_rows']} held out"),
        ("tokens", f"{data['tokens']:,}, of which {data['supervised_tokens']:,} are learned"),
        ("loss on", content["config"]["data"]["loss"]),
    ]


def results(evaluations: Sequence[dict[str, Any]]) -> str:
    """The evaluation lines as a table, with the curve."""
    curve = "![training curve](training_curve.png)"
    if not evaluations:
        return f"## Results\n\n{curve}"
    lines = [f"| {line['step']} | {line['loss']:.4f} | {line['perplexity']:.3f} |" for line in evaluations]
    return "\n".join(["## Results", "", "| step | evaluation loss | perplexity |", "|---|---|---|", *lines, "", curve])


def table(title: str, rows: Sequence[tuple[str, str]]) -> str:
    """A titled two-column table."""
    cells = [f"| {label} | {str(value).replace('|', '/')} |" for label, value in rows]
    return "\n".join([f"## {title}", "", "| | |", "|---|---|", *cells])


def usage(name: str, revision: str | None) -> str:
    """How to load the adapter with plain peft."""
    pin = f', revision="{revision}"' if revision else ""
    return f"""## Use

```python
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

base = AutoModelForCausalLM.from_pretrained("{name}"{pin})
adapter = "."  # the directory that holds this model card
model = PeftModel.from_pretrained(base, adapter)
tokenizer = AutoTokenizer.from_pretrained(adapter)
question = [{{"role": "user", "content": "..."}}]
prompt = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_dict=True, return_tensors="pt")
answer = model.generate(**prompt.to(model.device), max_new_tokens=64)
print(tokenizer.decode(answer[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True))
```

The adapter was trained on the base's quantised weights (see above); pass the same `BitsAndBytesConfig` to
`from_pretrained` for exactly the trained model."""
