import os
from pathlib import Path

import pytest
import torch

# The tests find what they share (cases, orders, bits, tables) beside themselves: pytest puts this folder on the path.
import torch_reduce
from torch_reduce import _check


def why_no_cuda():
    if not torch.cuda.is_available():
        return "no NVIDIA GPU that this torch can use"
    if not torch_reduce.cuda_built():
        return "torch_reduce was built without CUDA"
    return None


NO_CUDA = why_no_cuda()

# pytest-xdist, where it is installed: `make test` asks for `-n auto`, and plain `pytest` for nothing.
WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "0"))  # in a worker, how many there are
MOST_WORKERS = 8  # each holds a torch, some 0.5 GB
# Tests that share what takes long to make, by a part of their names: one worker runs all of a group. They start
# first, in this order, then tests marked slow: a long test that starts last keeps one worker busy and the others idle.
GROUPS = ("test_distributed", "inductor", "test_disassembly", "instruction_set", "multiply_adds_in_k_order")

# Inductor compiles programs to learn whether the compiler knows the CPU's instructions. What builds this knows them.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")

if WORKERS:  # they share the cores
    threads = max(1, (os.cpu_count() or 1) // WORKERS)
    torch.set_num_threads(threads)
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))  # for the processes that tests start
    # Likewise inductor, which reads this when it is first used; one compiler needs no pool of processes.
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", str(threads))


def group_of(nodeid):
    return next((group for group in GROUPS if group in nodeid), None)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config):
    return min(os.cpu_count() or 1, MOST_WORKERS)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    from xdist.scheduler import LoadScopeScheduling  # optional

    class ByGroup(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            return group_of(nodeid) or nodeid

        def mark_test_complete(self, node, item_index, duration=0):
            # At every test, xdist goes through all scopes that a worker ever had: those that are done may go.
            scopes = self.assigned_work[node]
            for scope in [scope for scope, tests in scopes.items() if all(tests.values())]:
                del scopes[scope]
            super().mark_test_complete(node, item_index, duration)

    config.option.loadscopereorder = False  # in the order of pytest_collection_modifyitems
    return ByGroup(config, log)


def why_not_on_gpu(config):
    if NO_CUDA is not None:
        return NO_CUDA
    if getattr(config.option, "dist", "no") != "no" or WORKERS:
        # They measure the GPU's memory, fill it, and capture graphs.
        return "they run in one process: `pytest -m cuda` without workers, as `make test` does next"
    return None


def pytest_collection_modifyitems(config, items):
    """Leaves out what needs a GPU, before it costs time: more than half of all. Workers do what is long first."""
    if why_not_on_gpu(config) is not None:
        left_out = [item for item in items if item.get_closest_marker("cuda")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("cuda")]
    if WORKERS:
        items.sort(key=when)


def when(item):
    group = group_of(item.nodeid)
    if group is not None:
        return GROUPS.index(group)
    return len(GROUPS) + (item.get_closest_marker("slow") is None)


def pytest_terminal_summary(terminalreporter, config):
    reason = why_not_on_gpu(config)
    if reason is not None:
        terminalreporter.write_line(f"left out: tests that need a GPU (marked cuda): {reason}")


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def device(request):
    return request.param


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.fixture
def one_thread_or_two():
    """Sets torch's thread count and puts it back."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture
def poisoned():
    """Every tensor from at::empty starts as NaN (integers: their largest value): what nobody writes shows."""
    with _check.poisoned():
        yield


def poison_free_memory():
    """Fills what the CUDA allocator will hand out next with 0xff bytes, which are NaN in every float format."""
    torch.cuda.synchronize()
    held = [torch.full((size,), 0xFF, dtype=torch.uint8, device="cuda") for size in (512,) * 4096]
    held += [torch.full((size << 20,), 0xFF, dtype=torch.uint8, device="cuda") for size in (1, 2, 8, 19, 20, 64)]
    torch.cuda.synchronize()
    del held


@pytest.fixture
def poison():
    return poison_free_memory


@pytest.fixture
def much_memory():
    """Several GB on the GPU, given back afterwards."""

    def need(gigabytes):
        free, _ = torch.cuda.mem_get_info()
        if free < gigabytes * 2**30:
            pytest.skip(f"needs {gigabytes} GB of free GPU memory")

    torch.cuda.empty_cache()
    yield need
    torch.cuda.empty_cache()


@pytest.fixture(scope="session")
def root():
    """The source tree."""
    return Path(__file__).resolve().parent.parent
