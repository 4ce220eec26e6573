import math
import pickle
from array import array

import pytest

from openrlhf_rpo.types import UNKNOWN, Group, Part, Path, Prefix, Question, Sample


def test_tokens_take_four_bytes_each_whatever_they_were_given_as():
    sample = Sample(Prefix([1, 2], (-0.5, -1.0)), (3, 4), [-0.25, -math.inf], "stop")
    assert sample.prefix.token_ids + sample.response_ids == array("I", [1, 2, 3, 4])
    assert sample.prefix.log_probs + sample.response_log_probs == array("f", [-0.5, -1.0, -0.25, -math.inf])
    assert sample.response_ids.itemsize == sample.response_log_probs.itemsize == 4
    assert pickle.loads(pickle.dumps(sample)) == sample
    assert Path("q", (1,), None, "stop", 0.0, 0.0).log_probs is None


def test_an_array_is_kept_and_not_copied():
    ids = array("I", range(5))
    assert Question("q", "", "", prompt_ids=ids).prompt_ids is ids


@pytest.mark.parametrize("ids", [(-1,), (2**32,), (1.5,), ("a",)])
def test_what_is_no_token_id_is_refused_by_name(ids):
    with pytest.raises(ValueError, match="token_ids of a Path"):
        Path("q", ids, None, "stop", 0.0, 0.0)


def test_a_group_is_as_old_as_its_oldest_token():
    def group(*parts):
        return Group(Question("q", "", ""), tuple(Sample(Prefix(), (), (), "stop", parts=own) for own in parts))

    assert group((Part(5, 3),), (Part(4, 1), Part(6, 2)), ()).version == 4
    assert group((Part(5, 3),), (Part(UNKNOWN, 1),)).version == UNKNOWN
    assert group((), ()).version is None
