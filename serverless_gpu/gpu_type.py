"""Names of accelerators."""

from __future__ import annotations

from enum import Enum


class GPUType(Enum):
    """Accelerators that `gpu_type=` names; a string in any case is as good.

    Others are named by the product's own name: `gpu_type="RTX 4090"`.
    """

    H100 = "H100"
    H200 = "H200"
    B200 = "B200"
    A100 = "A100"
    A10 = "A10"
    L4 = "L4"
    L40S = "L40S"
    T4 = "T4"
    V100 = "V100"
    B300 = "B300"
    GB200 = "GB200"
    GH200 = "GH200"
    L40 = "L40"
    A40 = "A40"
    A30 = "A30"
    A10G = "A10G"

    @classmethod
    def parse(cls, value: str | GPUType) -> GPUType:
        """The member that a name means: "h100", "GPU_8xH100", "NVIDIA H100 80GB HBM3".

        Raises ValueError that lists the names for any other.
        """
        from . import _core  # not at the top: `import serverless_gpu` stays light
        from .errors import OptionError

        if isinstance(value, cls):
            return value
        short = _core.gpu_type_of(str(value))
        for member in cls:
            if member.value == short:
                return member
        known = ", ".join(member.value for member in cls)
        raise OptionError(f"gpu_type={value!r} is not known; known are {known}")
