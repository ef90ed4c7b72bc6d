from __future__ import annotations

import errno
import os
import re

import pytest
from safetensors import SafetensorError

from toolkit.base.cli_errors import unexpected
from toolkit.base.files import disk_problem, rust_errors_as_os_errors


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),  # of a file that is open
        SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
        Exception("No space left on device (os error 28)"),  # of tokenizers
    ],
)
def test_a_full_disk_is_a_message_with_what_is_free(error):
    assert unexpected(error).startswith("a disk is full (")
    assert " are free in " in unexpected(error)


@pytest.mark.parametrize("where", ["", "Caught RuntimeError in DataLoader worker process 0.\n"])
def test_full_shared_memory_is_a_message(where):
    error = RuntimeError(f"{where}unable to write to file </torch_7_8_9>: No space left on device (28)")
    message = (
        r"shared memory is full; .* are free in /dev.*; lower train\.dataloader_num_workers, or make /dev/shm larger"
    )
    assert re.fullmatch(message, unexpected(error))


def test_an_error_of_a_file_names_it(tmp_path):
    file = tmp_path / "none"
    with pytest.raises(OSError, match="none") as raised:
        file.read_text()
    assert unexpected(raised.value) == f"{file}: No such file or directory"
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(file))
    assert unexpected(full).startswith(f"{file}: No space left on device; ")
    assert unexpected(full).endswith(f" are free in {tmp_path}")


@pytest.mark.parametrize("error", [ValueError("a bug"), ConnectionRefusedError(errno.ECONNREFUSED, "refused")])
def test_other_errors_are_not_changed(error):
    assert disk_problem(error) is None
    assert unexpected(error).startswith(type(error).__name__)


@pytest.mark.parametrize("error", [OSError(errno.EIO, os.strerror(errno.EIO)), Exception("denied (os error 13)")])
def test_an_error_of_a_disk_without_a_path_is_a_message(error):
    assert unexpected(error) == f"a file cannot be read or written ({error})"


def test_errors_of_rust_libraries_are_those_of_the_operating_system():
    with pytest.raises(PermissionError), rust_errors_as_os_errors():
        raise Exception("Permission denied (os error 13)")  # as tokenizers does
    with pytest.raises(ValueError, match="a bug"), rust_errors_as_os_errors():
        raise ValueError("a bug")
