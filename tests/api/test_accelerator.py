"""What a notebook sees of the machine's GPUs, through a driver that is made up."""

from __future__ import annotations

import os

import pytest

from serverless_gpu import AcceleratorMismatchError, GPUType, _core, accelerator, distributed
from serverless_gpu.accelerator import GpuError
from tests.support.fake_gpus import Machine


def test_all_gpus_are_the_default(machine: Machine) -> None:
    machine("8xH100")
    ranks, here = accelerator.check(None, None)
    assert (ranks, here.count, here.label) == (8, 8, "H100")
    assert here.devices[7].uuid == "GPU-00170000-0000-4000-8000-000000000000"
    assert accelerator.describe() == "8 x H100"


def test_the_notebooks_cuda_visible_devices_is_honoured(machine: Machine) -> None:
    machine("8xH100", visible="6,GPU-x")
    assert [device.index for device in accelerator.detect().devices] == [6]
    machine("8xH100", visible="GPU-0013,GPU-0011")
    assert [device.index for device in accelerator.detect().devices] == [3, 1]


def test_hidden_gpus_give_cpu_ranks_and_a_label_that_says_so(machine: Machine) -> None:
    machine("8xH100", visible="")
    ranks, here = accelerator.check(None, None)
    assert (ranks, here.is_gpu) == (8, False)
    assert here.label == "CPU (8 GPUs hidden by CUDA_VISIBLE_DEVICES)"


def test_more_gpus_than_are_visible_is_an_error_with_their_number(machine: Machine) -> None:
    machine("8xH100")
    with pytest.raises(ValueError, match=r"gpus=9: takes 1 to 8 \(8 GPUs found\)"):
        accelerator.check(9, None)
    machine("8xH100", visible="0,1")
    with pytest.raises(ValueError, match=r"2 GPUs found of 8, by CUDA_VISIBLE_DEVICES=0,1"):
        accelerator.check(3, None)


def test_a_type_that_is_attached_passes_in_any_spelling(machine: Machine) -> None:
    machine("1xA10")
    for spelling in ("a10", "A10", GPUType.A10, "NVIDIA A10", "GPU_1xA10"):
        assert accelerator.check(None, spelling)[0] == 1


def test_a_type_that_is_not_attached_is_an_error_that_says_what_is(machine: Machine) -> None:
    machine("8xH100")
    with pytest.raises(AcceleratorMismatchError, match=r"'A100'.*attached to 8 x H100"):
        accelerator.check(1, "A100")
    with pytest.raises(ValueError, match="gpu_type='Z9' is not known; known are"):
        accelerator.check(1, "Z9")


def test_a_call_that_asks_for_what_is_not_there_starts_nothing(machine: Machine) -> None:
    def rank() -> int:
        return 1

    machine("none")
    with pytest.raises(AcceleratorMismatchError, match="without a GPU"):
        distributed(gpus=1, gpu_type="h100")(rank).distributed()
    machine("2xH100")
    with pytest.raises(AcceleratorMismatchError, match="2 x H100"):
        distributed(gpus=1, gpu_type=GPUType.A10)(rank).distributed()
    with pytest.raises(ValueError, match="2 GPUs found"):
        distributed(gpus=8)(rank).distributed()


def test_of_mixed_gpus_those_of_the_type_are_named(machine: Machine) -> None:
    machine("mixed")
    assert accelerator.detect().label == "H100 and A10 and RTX 4090"
    assert accelerator.check(2, "H100")[0] == 2
    with pytest.raises(AcceleratorMismatchError, match=r"CUDA_VISIBLE_DEVICES=3 .*to use GPU 3"):
        accelerator.check(1, "rtx 4090")


def test_one_slice_of_a_gpu_in_mig_mode(machine: Machine) -> None:
    machine("mig", visible="MIG-0210")
    here = accelerator.detect()
    assert (here.count, here.label) == (1, "H100 (MIG)")
    assert here.devices[0].memory_bytes < 50e9
    machine("mig")
    assert accelerator.detect().count == 7, "whole GPUs go first"


def test_a_lost_gpu_is_named_and_can_be_left_out(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine("lost")
    with pytest.raises(GpuError, match=r"GPU 2 does not answer \(GPU is lost\)") as caught:
        accelerator.check(4, None)
    assert accelerator.check(2, None)[0] == 2, "the first two answer"
    others = str(caught.value).partition("CUDA_VISIBLE_DEVICES=")[2].split()[0]
    machine("lost", visible=others)
    assert accelerator.check(None, None)[0] == 3


def test_a_broken_driver_is_an_error_and_never_a_silent_run_on_the_cpu(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine("broken")

    @distributed(gpus=2)
    def rank() -> int:
        return 1

    with pytest.raises(GpuError, match=r"version mismatch.*SERVERLESS_GPU_ACCELERATOR=cpu"):
        rank.distributed()
    assert accelerator.warm_ranks() == 0
    assert "version mismatch" in accelerator.describe()
    monkeypatch.setenv("SERVERLESS_GPU_ACCELERATOR", "cpu")
    assert rank.distributed() == [1, 1]


def test_cpu_ranks_that_were_chosen_see_no_gpu(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    @distributed(gpus=1, wait=0)
    def seen() -> str | None:
        return os.environ.get("CUDA_VISIBLE_DEVICES")

    machine("2xH100", visible="1,0")
    assert seen.distributed() == ["1,0"]
    monkeypatch.setenv("SERVERLESS_GPU_ACCELERATOR", "cpu")
    assert seen.distributed() == [""]


def test_a_driver_that_was_mended_is_seen(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine("broken")
    with pytest.raises(GpuError):
        accelerator.detect()
    monkeypatch.setenv("SGPU_FAKE_NVML", "1xA10")
    assert accelerator.detect().label == "A10"


def test_gpus_that_were_asked_for_are_not_replaced_by_cpus(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine("none")
    assert accelerator.detect().label == "CPU"
    monkeypatch.setenv("SERVERLESS_GPU_ACCELERATOR", "gpu")
    with pytest.raises(GpuError, match="there is no GPU"):
        accelerator.detect()


def test_every_member_of_the_enumeration_is_a_name_that_the_table_knows() -> None:
    assert {member.value for member in GPUType} <= set(_core.known_gpu_types())
    assert GPUType.parse("NVIDIA H100 80GB HBM3") is GPUType.H100
