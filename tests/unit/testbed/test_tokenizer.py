"""Laws of the testbed's tokenizer, as built and as loaded back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_rpo.testbed.task import CAREFUL, demonstrate, draw_split
from openrlhf_rpo.testbed.tokenizer import ALPHABET, build_tokenizer, save_tokenizer

transformers = pytest.importorskip("transformers")
TOKENIZER = build_tokenizer()


@given(st.text(ALPHABET))
def test_text_round_trips_one_token_a_character(text):
    ids = TOKENIZER.encode(text)
    assert len(ids) == len(text)
    assert TOKENIZER.decode(ids) == text


def test_special_tokens_differ_and_spell_nothing():
    assert (TOKENIZER.pad_token_id, TOKENIZER.eos_token_id, TOKENIZER.bos_token_id) == (0, 1, None)
    assert TOKENIZER.encode("!") == [TOKENIZER.unk_token_id]
    assert TOKENIZER.decode(TOKENIZER.encode("03") + [1, 0], skip_special_tokens=True) == "03"


def test_saved_tokenizer_is_the_same(tmp_path):
    import random

    save_tokenizer(tmp_path)
    loaded = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert (loaded.pad_token, loaded.eos_token) == (TOKENIZER.pad_token, TOKENIZER.eos_token)
    for question in draw_split("main", 20, 0, heldout=False):
        text = question + demonstrate(question, CAREFUL, random.Random(0))
        assert loaded.encode(text) == TOKENIZER.encode(text)
        assert loaded.decode(loaded.encode(text)) == text
