"""A lossless character-level tokenizer for the testbed.

It is a byte-level BPE without merges, because transformers 5 loads the tokenizer of a Qwen2 model as a ``Qwen2Tokenizer``
and keeps only its vocabulary and merges: any other kind would silently lose spaces and line ends.
"""

import json
import string
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

PAD, EOS, UNKNOWN = "<pad>", "<eos>", "<unk>"
ALPHABET = string.digits + string.ascii_lowercase + "+-=?\\{} \n"
_BYTE_LEVEL = {" ": "\u0120", "\n": "\u010a"}  # how byte-level vocabularies spell a space and a line end


def build_tokenizer() -> PreTrainedTokenizerFast:
    """The tokenizer: 48 tokens, 3 of them special (pad 0, end of sequence 1, unknown 2).

    ``decode(encode(text)) == text`` for every text over ``ALPHABET``. Other characters are lost or become ``<unk>``,
    depending on the class that loads the files.
    """
    characters = [_BYTE_LEVEL.get(character, character) for character in ALPHABET]
    vocabulary = {token: index for index, token in enumerate([PAD, EOS, UNKNOWN, *characters])}
    core = Tokenizer(models.BPE(vocabulary, merges=[], unk_token=UNKNOWN))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
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
    """Save the tokenizer as a ``Qwen2Tokenizer``, which every version of transformers loads for a Qwen2 model."""
    build_tokenizer().save_pretrained(folder)
    path = Path(folder) / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    path.write_text(json.dumps({**settings, "tokenizer_class": "Qwen2Tokenizer"}, indent=2) + "\n")
