"""Values of `tdmap.tuning` are those of the call that began with them."""

import threading

import pytest
import torch

import tdmap
from tdmap import tuning
from tdmap.execution import Execution


def test_a_call_keeps_the_values_that_it_began_with() -> None:
    with tuning.use(partition_bytes=100, light_bytes=0) as inside:
        execution = Execution(num_workers=2)
        with tuning.use(light_bytes=7):
            assert tuning.current().light_bytes == 7 and tuning.current().partition_bytes == 100
            assert Execution().tuning is tuning.current() and execution.tuning is inside
        other = threading.Thread(target=lambda: found.append(tuning.current()))
        found: list[tuning.Tuning] = []
        other.start()
        other.join()
    assert found == [tuning.DEFAULT] and tuning.current() is tuning.DEFAULT


def test_only_fields_are_set_and_they_are_no_option_of_an_operation() -> None:
    with pytest.raises(TypeError, match="bytes_of_partition"), tuning.use(bytes_of_partition=1):
        raise AssertionError
    with pytest.raises(TypeError, match="no option 'tuning'"):
        tdmap.sort(torch.arange(3), tuning=tuning.DEFAULT)  # type: ignore[call-arg]
