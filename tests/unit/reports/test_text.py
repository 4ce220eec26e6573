"""Samples are read while the run that writes them goes on."""

import pytest

from openrlhf_rpo.errors import ExchangeError
from openrlhf_rpo.reports import text


def test_a_file_that_the_run_drops_meanwhile_has_no_samples_and_a_damaged_one_is_said(tmp_path, monkeypatch):
    file = tmp_path / "step_00000001.parquet"
    monkeypatch.setattr(text, "sample_files", lambda folder: [(1, file)])  # listed, and gone when it is read
    assert text.newest_samples(tmp_path, 1, 8)[0] == {}
    assert text.samples_of(tmp_path, "q", [1]) == {1: []}
    file.write_bytes(b"no Parquet")
    for read in (lambda: text.newest_samples(tmp_path, 1, 8), lambda: text.samples_of(tmp_path, "q", [1])):
        with pytest.raises(ExchangeError):
            read()
