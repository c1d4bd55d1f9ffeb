"""Train the demo's base model from nothing: `python -m loradock.demo.make_base [--output DIR]`.

A byte-level BPE tokenizer and a small Llama-style causal LM, on a corpus that `corpus.py` draws as it goes: chat
turns with a command or with small talk, no question in English. The lists of held-out rows never occur, in any order.

One seed, one thread, deterministic kernels: on one machine with one torch build, a rerun gives the same bytes.
Another processor or torch build sums in another order, and then gives a model as good but not bit-equal. The
tokenizer and the corpus are the same everywhere.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loradock.demo.corpus import NOUNS, SKILLS, ask, commands, draw_list, small_talk
from loradock.demo.make_data import make_rows
from loradock.model.tokenizer_copy import SETTINGS, as_both_read, write_settings

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerFast

HERE = Path(__file__).parent
SEED = 20
THREADS = 1
VOCABULARY = 1024
BOS, EOS, PAD, USER, ASSISTANT, SYSTEM = SPECIAL = ("<s>", "</s>", "<pad>", "<|user|>", "<|assistant|>", "<|system|>")
TEMPLATE = (
    "{{- bos_token }}"
    "{%- for message in messages %}"
    "{{- '<|' + message['role'] + '|>\\n' + message['content'] + eos_token }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|assistant|>\\n' }}{%- endif %}"
)
HIDDEN, LAYERS, HEADS, INTERMEDIATE, POSITIONS = 128, 4, 4, 384, 512
STEPS, BATCH, LEARNING_RATE, WARMUP_STEPS = 2600, 48, 3e-3, 80
TALK_SHARE, WRAPPED_SHARE = 0.05, 0.15
EASY_LINES = 45_000  # one-word commands alone at first: the skills settle twice as fast
IGNORED = -100

log = logging.getLogger(__name__)

CARD = """\
# The base model of `loradock train --demo`

A Llama-style causal language model of {parameters:,} parameters ({layers} layers, hidden size {hidden}) with a
byte-level BPE tokenizer of {vocabulary} tokens, trained from nothing by `python -m loradock.demo.make_base`. It knows
{skills} skills on lists of English nouns ({names}), each under a one-word command and in German, French, Spanish and
Italian:

```
<s><|user|>
reverse

river, apple, stone</s><|assistant|>
stone, apple, river</s>
```

It saw {steps} batches of {batch} such chats; in {talk_percent:.0f} % of them the user makes small talk in English and
so does the answer. It never saw a question in English: that is what fine-tuning adds. No list of the demo's held-out
rows was in its corpus, in any order. Weights are stored as bfloat16. Useful for nothing but the demo and tests.
Apache-2.0, like the rest of the repository.
"""


def corpus(rng: random.Random, *, easy_lines: int = EASY_LINES) -> Iterator[tuple[str, str]]:
    """Endless (user turn, assistant turn) pairs, the first `easy_lines` with bare one-word commands.

    Held-out lists are left out, in any order of their nouns.
    """
    heldout = {frozenset(row["input"].split(", ")) for row in make_rows()[1]}
    for drawn in itertools.count():
        skill = rng.choice(tuple(SKILLS))
        nouns = draw_list(rng, skill)
        if frozenset(nouns) in heldout:
            continue
        is_easy = drawn < easy_lines
        command = commands()[skill][0] if is_easy else rng.choice(commands()[skill])
        talk, draw = small_talk(rng), rng.random()
        if draw < TALK_SHARE:
            yield ask(talk, nouns), small_talk(rng)
        elif draw < TALK_SHARE + WRAPPED_SHARE and not is_easy:
            yield ask(rng.choice((f"{talk} {command}", f"{command} {talk}")), nouns), SKILLS[skill](nouns)
        else:
            yield ask(command, nouns), SKILLS[skill](nouns)


def train_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer with a chat template; a turn ends with `</s>`, which is the EOS token too."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    rng = random.Random(SEED)
    texts = [small_talk(rng) for _ in range(3000)] + [
        f"{command} {command}" for text in commands().values() for command in text
    ] * 100
    texts += [f"{noun}, {noun}\n{noun}" for noun in NOUNS for _ in range(200)]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        extra_special_tokens=[USER, ASSISTANT, SYSTEM],
        model_max_length=POSITIONS,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = TEMPLATE
    return fast


def build_model(tokenizer: Any) -> Any:
    """A fresh float32 model; every linear's size is a multiple of 64, the NF4 block size."""
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=HIDDEN,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            num_key_value_heads=HEADS,
            intermediate_size=INTERMEDIATE,
            max_position_embeddings=POSITIONS,
            tie_word_embeddings=True,
            initializer_range=HIDDEN**-0.5,  # the usual 0.02 is for wide models; copying is learnt far later with it
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


def draw_batch(pairs: Iterator[tuple[str, str]], *, tokenizer: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and labels, both int64 (BATCH, longest); the user's turn and padding are labelled -100."""
    import torch

    users, answers = zip(*itertools.islice(pairs, BATCH), strict=True)
    chats = [[{"role": "user", "content": user}] for user in users]
    prompts = tokenizer.apply_chat_template(chats, add_generation_prompt=True, return_dict=False)
    rows = []
    for prompt, answer in zip(prompts, tokenizer(answers)["input_ids"], strict=True):
        learned = [*answer, tokenizer.eos_token_id]
        rows.append((prompt + learned, [IGNORED] * len(prompt) + learned))
    longest = max(len(ids) for ids, _ in rows)
    ids = [row + [tokenizer.pad_token_id] * (longest - len(row)) for row, _ in rows]
    labels = [row + [IGNORED] * (longest - len(row)) for _, row in rows]
    return torch.tensor(ids), torch.tensor(labels)


def answer_loss(model: Any, *, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy (a float32 scalar) of the labelled tokens; logits are made for those alone."""
    import torch

    states_btd = model.model(input_ids=ids).last_hidden_state
    learned = labels[:, 1:] != IGNORED
    logits_nv = model.lm_head(states_btd[:, :-1][learned])
    return torch.nn.functional.cross_entropy(logits_nv, labels[:, 1:][learned])


def train(model: Any, *, tokenizer: Any) -> None:
    """AdamW with warm-up and a cosine to zero, in place, on the CPU."""
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.01, betas=(0.9, 0.98))
    pairs = corpus(random.Random(SEED))
    for step in range(1, STEPS + 1):
        cosine = 0.5 * (1 + math.cos(math.pi * step / STEPS))
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * min(step / WARMUP_STEPS, cosine)
        ids, labels = draw_batch(pairs, tokenizer=tokenizer)
        loss = answer_loss(model, ids=ids, labels=labels)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 50 == 0:
            log.info("step %d of %d: loss %.4f", step, STEPS, loss.item())


def make_base(directory: Path) -> None:
    """Train and write tokenizer, bfloat16 weights, config and model card into `directory`."""
    import torch

    torch.set_num_threads(THREADS)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(SEED)
    tokenizer = train_tokenizer()
    model = build_model(tokenizer)
    train(model, tokenizer=tokenizer)
    model.to(torch.bfloat16).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    settings = json.loads((directory / SETTINGS).read_text(encoding="utf-8"))
    write_settings(directory, as_both_read(settings))
    card = CARD.format(
        parameters=model.num_parameters(),
        layers=LAYERS,
        hidden=HIDDEN,
        vocabulary=len(tokenizer),
        skills=len(SKILLS),
        names=", ".join(SKILLS),
        steps=STEPS,
        batch=BATCH,
        talk_percent=100 * TALK_SHARE,
    )
    (directory / "README.md").write_text(card, encoding="utf-8")


def main() -> None:
    """The command line; progress goes to stderr as log lines."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    parser = argparse.ArgumentParser(description="Train the demo's base model from nothing.")
    parser.add_argument("--output", type=Path, default=HERE / "base", help="directory to write into")
    make_base(parser.parse_args().output)


if __name__ == "__main__":
    main()
