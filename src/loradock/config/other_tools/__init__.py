"""What axolotl, LLaMA-Factory, TRL, unsloth, litgpt, torchtune, transformers and peft call our keys."""
