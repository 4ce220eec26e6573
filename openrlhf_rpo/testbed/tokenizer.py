"""A character-level tokenizer for the testbed: one token a character, nothing added, nothing lost."""

import json
import string
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

PAD, EOS, UNKNOWN = "<pad>", "<eos>", "<unk>"
ALPHABET = string.digits + string.ascii_lowercase + "+-=?\\{} \n"


def build_tokenizer() -> PreTrainedTokenizerFast:
    """The tokenizer: 48 tokens, of which 3 special (pad 0, end of sequence 1, unknown 2).

    ``decode(encode(text)) == text`` for every text over ``ALPHABET``; other characters become ``<unk>``.
    """
    vocabulary = {token: index for index, token in enumerate([PAD, EOS, UNKNOWN, *ALPHABET])}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    core.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNKNOWN,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_max_length=1024,
    )


def save_tokenizer(folder: str | Path) -> None:
    """Save the tokenizer so that every version of transformers finds its class by the old name, too."""
    build_tokenizer().save_pretrained(folder)
    path = Path(folder) / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    path.write_text(json.dumps({**settings, "tokenizer_class": "PreTrainedTokenizerFast"}, indent=2) + "\n")
