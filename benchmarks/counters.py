"""Runs every sum rung once over 25.6 M floats, for Nsight Compute to count what each kernel does.

    ncu --clock-control none --csv --metrics \
        smsp__inst_executed.sum,l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum,smsp__thread_inst_executed_per_inst_executed.ratio,dram__bytes_read.sum,gpu__time_duration.sum \
        python benchmarks/counters.py > benchmarks/results/nvidia-h200/counters.csv
"""  # noqa: E501

import checkout  # noqa: F401  (makes the package of this checkout importable)
import torch

import torch_reduce

N, BLOCK = 25_600_000, 256

if __name__ == "__main__":
    x = torch.randn(N, device="cuda")
    for variant in torch_reduce.variants("sum"):
        if variant.name not in ("serial", "auto"):
            torch_reduce.sum(x, variant=variant.name, block_size=BLOCK)
    torch_reduce.sum(x)
    torch.cuda.synchronize()
