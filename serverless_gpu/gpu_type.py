"""Names of accelerators."""

from __future__ import annotations

import re
from enum import Enum


class GPUType(Enum):
    """Accelerators that `gpu_type=` names; a string in any case is as good."""

    H100 = "H100"
    H200 = "H200"
    B200 = "B200"
    A100 = "A100"
    A10 = "A10"
    L4 = "L4"
    L40S = "L40S"
    T4 = "T4"
    V100 = "V100"

    @classmethod
    def parse(cls, value: str | GPUType) -> GPUType:
        """The member that a name means: "h100", "GPU_8xH100", "NVIDIA H100 80GB HBM3".

        Raises ValueError that lists the names for any other.
        """
        if isinstance(value, cls):
            return value
        words = re.split(r"[^A-Z0-9]+", re.sub(r"^GPU_\d+X", "", str(value).upper()))
        for member in cls:
            if member.value in words:
                return member
        known = ", ".join(member.value for member in cls)
        raise ValueError(f"gpu_type={value!r} is not known; known are {known}")
