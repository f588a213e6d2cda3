"""Processes that run a function together, as ranks of torch.distributed: started once, for groups of any size."""

import datetime
import sys
import tempfile
import traceback
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

TIMEOUT = 60  # seconds, of a collective
PATIENCE = 240  # of a function; starting up counts


def _join(backend, folder, rank, ranks, number):
    """A group of its own for each call: a call that fails leaves nothing to the next."""
    if dist.is_initialized():
        dist.destroy_process_group()
    dist.init_process_group(
        backend,
        init_method=f"file://{folder}/{number}",
        rank=rank,
        world_size=ranks,
        timeout=datetime.timedelta(seconds=TIMEOUT),
    )


def _loop(rank, folder, backend, orders, answers):
    sys.path.insert(0, str(Path(__file__).parent))
    torch.set_num_threads(1)
    if backend == "nccl":
        torch.cuda.set_device(rank)
    while True:
        number, ranks, function, arguments = orders.get()
        try:
            _join(backend, folder, rank, ranks, number)
            torch.manual_seed(0)
            answers.put((rank, function(*arguments), None))
        except BaseException:
            answers.put((rank, None, traceback.format_exc()))


class Ranks:
    """So many processes, each with a rank."""

    def __init__(self, most, backend):
        # A server imports torch once and forks them; where GPUs are used, each imports its own.
        context = multiprocessing.get_context("spawn" if backend == "nccl" else "forkserver")
        if backend != "nccl":
            context.set_forkserver_preload(["torch.distributed.tensor", "torch_reduce.distributed", "pytest"])
        self.folder = tempfile.TemporaryDirectory()
        self.answers = context.Queue()
        self.orders = [context.Queue() for _ in range(most)]
        self.calls = 0
        self.processes = [
            context.Process(target=_loop, args=(rank, self.folder.name, backend, orders, self.answers), daemon=True)
            for rank, orders in enumerate(self.orders)
        ]
        for process in self.processes:
            process.start()

    def run(self, ranks, function, *arguments, device):
        """Calls function(device, ...) on each rank; returns what each returned, in the order of ranks."""
        self.calls += 1
        for orders in self.orders[:ranks]:
            orders.put((self.calls, ranks, function, (device, *arguments)))
        answers = [self.answers.get(timeout=PATIENCE) for _ in range(ranks)]
        failed = [f"rank {rank}:\n{text}" for rank, _, text in sorted(answers, key=lambda a: a[0]) if text]
        assert not failed, "\n".join(failed)
        return [value for _, value, _ in sorted(answers, key=lambda a: a[0])]

    def close(self):
        """Ends the processes."""
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.join()
        self.folder.cleanup()
