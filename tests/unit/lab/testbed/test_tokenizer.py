"""Laws of the testbed's tokenizer: as built, as loaded beside a Qwen2 model, and as saved again from there."""

import random

import pytest
import transformers
from hypothesis import given
from hypothesis import strategies as st

from lab.testbed.task import CAREFUL, demonstrate, draw_split
from lab.testbed.tokenizer import ALPHABET, build_tokenizer, save_tokenizer

BUILT = build_tokenizer()


@pytest.fixture(scope="module", params=["built", "loaded", "saved again"])
def tokenizer(request, tmp_path_factory):
    """The class that loads a tokenizer depends on the model's configuration beside it, so there is one."""
    folder = tmp_path_factory.mktemp("tokenizer")
    if request.param == "built":
        return BUILT
    transformers.Qwen2Config().save_pretrained(folder)
    save_tokenizer(folder)
    loaded = transformers.AutoTokenizer.from_pretrained(folder)
    if request.param == "loaded":
        return loaded
    loaded.save_pretrained(folder)
    return transformers.AutoTokenizer.from_pretrained(folder)


@given(text=st.text(ALPHABET))
def test_text_round_trips_one_token_a_character(tokenizer, text):
    ids = tokenizer.encode(text)
    assert len(ids) == len(text)
    assert tokenizer.decode(ids) == text
    assert ids == BUILT.encode(text)


def test_responses_round_trip(tokenizer):
    for question in draw_split("main", 20, 0, heldout=False):
        text = question + demonstrate(question, CAREFUL, random.Random(0))
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_special_tokens_differ_and_spell_nothing(tokenizer):
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.bos_token_id) == (0, 1, None)
    assert len(tokenizer) == len(ALPHABET) + 3
    assert tokenizer.decode(tokenizer.encode("03") + [1, 0], skip_special_tokens=True) == "03"


def test_every_character_has_an_id_of_its_own():
    assert [BUILT.encode(character) for character in ALPHABET] == [[i] for i in range(3, 3 + len(ALPHABET))]
