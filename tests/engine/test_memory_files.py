"""Files that processes map: reserved at once, zero or as they were, and never anybody else's."""

import errno
import os

import pytest
import torch

from tdmap.errors import UntrustedFile
from tdmap.memory.files import known_file, mapped_file


@pytest.mark.parametrize("nbytes", [0, 1, 4097])
def test_a_new_file_is_zero_and_another_process_finds_its_bytes(tmp_path, nbytes):
    memory = mapped_file(tmp_path / "f", nbytes)
    assert memory.shape == (nbytes,) and not memory.any()
    memory.fill_(7)
    found = known_file(tmp_path / "f", nbytes)
    assert torch.equal(found, memory) and (tmp_path / "f").read_bytes() == b"\x07" * nbytes
    assert os.stat(tmp_path / "f").st_mode & 0o777 == 0o600


def test_what_was_there_stays_only_if_it_is_to_be_kept_and_has_the_size(tmp_path):
    mapped_file(tmp_path / "f", 8).fill_(7)
    assert mapped_file(tmp_path / "f", 8, keep=True).tolist() == [7] * 8
    assert mapped_file(tmp_path / "f", 16, keep=True).tolist() == [0] * 16
    mapped_file(tmp_path / "f", 16).fill_(7)
    assert mapped_file(tmp_path / "f", 16).tolist() == [0] * 16


def test_a_file_that_has_changed_its_size_is_not_believed(tmp_path):
    mapped_file(tmp_path / "f", 8)
    with pytest.raises(UntrustedFile, match="has 8 bytes, where 9 were written"):
        known_file(tmp_path / "f", 9)
    with pytest.raises(FileNotFoundError):
        known_file(tmp_path / "g", 9)


@pytest.mark.parametrize("make", [mapped_file, known_file])
def test_a_link_in_its_place_is_not_followed(tmp_path, make):
    (tmp_path / "mine").write_bytes(b"precious")
    os.symlink(tmp_path / "mine", tmp_path / "f")
    with pytest.raises(UntrustedFile):
        make(tmp_path / "f", 4)
    assert (tmp_path / "mine").read_bytes() == b"precious"


def test_a_full_disk_is_an_error_with_the_bytes_that_are_needed(tmp_path, monkeypatch):
    def full(fd, start, nbytes):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match=r"4,096 bytes are needed and [\d,]+ are available") as caught:
        mapped_file(tmp_path / "f", 4096)
    assert caught.value.errno == errno.ENOSPC
