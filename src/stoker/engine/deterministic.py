"""Deterministic kernels on CUDA, with the variables that the plan sets."""

import torch


def use_deterministic_kernels() -> None:
    """Choose them for everything that follows.

    `full_determinism` of transformers would also wait for every kernel (CUDA_LAUNCH_BLOCKING) and give cuBLAS a smaller
    workspace than the plan's; neither adds to determinism.
    """
    torch.use_deterministic_algorithms(True)
    # It would fill every `torch.empty`, a kernel each; nothing here reads memory before it is written.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # set on the module itself
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
