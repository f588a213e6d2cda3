"""Facts about a device, with its bandwidth as the benchmark measures it."""

import dataclasses

import torch

from ._device import DeviceInfo, as_device, describe
from .bench import measure_bandwidth


def device_info(device: torch.device | str | int | None = None, bandwidth: bool = False) -> DeviceInfo:
    """Facts about a device: the current GPU where there is one, else the CPU.

    Args:
        device: "cpu", "cuda", "cuda:1", a `torch.device`, or None for the default above.
        bandwidth: also measure how fast memory is read and copied; takes some seconds and, at most, a quarter of the
            device's memory.

    Raises:
        ValueError: a device that is not there, or a GPU in a build without CUDA.
    """
    where = as_device(device)
    return dataclasses.replace(describe(where), bandwidth=measure_bandwidth(where) if bandwidth else None)
