"""How to use an adapter, for its model card: with plain peft and transformers, or the libraries that embed."""

from __future__ import annotations

from typing import Any

from loradock.catalog import storages
from loradock.model import opening
from loradock.model.stored import FORMATS

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


def with_arguments(call: str, content: dict[str, Any]) -> str:
    """A call of apply_chat_template that writes what training read: with the run's data.template_arguments."""
    arguments = content["config"]["data"].get("template_arguments", {})
    return call.removesuffix(")") + "".join(f", {key}={value!r}" for key, value in arguments.items()) + ")"


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
    asked = with_arguments(CHAT, content) if prompt else RAW
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
    scored = with_arguments(SCORED_CHAT, content) if prompt else SCORED_RAW
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
