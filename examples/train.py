"""Trains a small network to the same bits on every run and device.

    python -m examples.train --device cpu
    python -m examples.train --device cuda     # the same losses, the same digest

With `--micro-batches 8`, gradients are added as a tree over micro-batch numbers, and any number of ranks gives the same
losses and the same digest (others than without, since the order of additions is another):

    python -m examples.train --micro-batches 8
    torchrun --nproc-per-node 4 -m examples.train --micro-batches 8

Two layers with biases, a norm and a ReLU, mean squared loss, plain gradient descent. Every operation that rounds is

- one of torch_reduce: the matrix products, the norms, the losses, and the gradients of biases and of everything else
  that is broadcast, each with a fixed order of additions; or
- an elementwise +, -, *, / or abs of torch, which IEEE 754 rounds alike on both devices.

Two things are avoided because torch rounds them differently on CPU and CUDA. Square roots: rows are divided by their
mean absolute value, not by the root of their mean square. Division by a Python number, which is a multiplication by its
reciprocal on CUDA: the code multiplies by the reciprocal itself.
"""

import argparse
import functools
import hashlib
import os

import torch
import torch.distributed as dist

import torch_reduce
import torch_reduce.distributed

BATCH, FEATURES, HIDDEN, OUTPUTS = 96, 24, 64, 4  # the last two are powers of two: means are taken over them
RATE = 2.0**-3
PRODUCTS = "tiled"  # of the order class k_order: the CPU's bits on every GPU. "auto" may pick tensor cores


class Broadcast(torch.autograd.Function):
    """Repeats a tensor along leading dims, or dims of size 1; its gradient is torch_reduce.sum along them.

    If torch broadcasts, it sums the gradient with torch.sum, whose order differs between devices.
    """

    @staticmethod
    def forward(ctx, x, shape):
        """`x` as a view of that shape."""
        ctx.shape = x.shape
        aligned = (1,) * (len(shape) - x.dim()) + tuple(x.shape)
        ctx.dims = [d for d, size in enumerate(shape) if aligned[d] != size]
        return x.expand(shape)

    @staticmethod
    def backward(ctx, grad):
        """The gradients of all copies, summed."""
        return torch_reduce.sum(grad, ctx.dims).view(ctx.shape) if ctx.dims else grad, None


def initial(device):
    """Inputs, targets and parameters, made from integers, so that no random generator rounds."""
    generator = torch.Generator().manual_seed(1)

    def random(*shape, scale):
        return torch.randint(-1024, 1025, shape, generator=generator) * (scale / 1024)

    x = random(BATCH, FEATURES, scale=2.0)
    target = x[:, :OUTPUTS] * x[:, OUTPUTS : 2 * OUTPUTS]
    parameters = {
        "weight_1": random(FEATURES, HIDDEN, scale=0.25),
        "bias_1": torch.zeros(HIDDEN),
        "weight_2": random(HIDDEN, OUTPUTS, scale=0.125),
        "bias_2": torch.zeros(OUTPUTS),
    }
    return x.to(device), target.to(device), {name: p.to(device).requires_grad_() for name, p in parameters.items()}


def linear(x, weight, bias):
    """x @ weight + bias."""
    y = torch_reduce.matmul(x, weight, variant=PRODUCTS)
    return y + Broadcast.apply(bias, y.shape)


def norm(x):
    """Every row divided by its mean absolute value."""
    size = torch_reduce.mean(x.abs(), dim=1, keepdim=True) + 2.0**-20
    return x / Broadcast.apply(size, x.shape)


def forward(parameters, x):
    """The first layer before its norm and after its ReLU, and the outputs: one row a sample."""
    first = linear(x, parameters["weight_1"], parameters["bias_1"])
    hidden = norm(first).relu()
    return first, hidden, linear(hidden, parameters["weight_2"], parameters["bias_2"])


def losses_of(outputs, target):
    """The mean squared error of every sample."""
    error = outputs - target
    return torch_reduce.mean(error * error, dim=1)


def loss_of(losses):
    """The mean over the batch."""
    return torch_reduce.sum(losses) * (1 / BATCH)


def step(parameters, x, target):
    """One step of gradient descent; returns the loss before it."""
    loss = loss_of(losses_of(forward(parameters, x)[-1], target))
    grads = torch.autograd.grad(loss, parameters.values())
    descend(parameters, grads)
    return loss.detach()


def step_in_parts(count, parameters, x, target):
    """The same step, of which each rank computes some of `count` micro-batches."""
    parts = torch_reduce.distributed.MicroBatches(count)
    x, target = x.chunk(count), target.chunk(count)
    for number in parts:
        loss = loss_of(losses_of(forward(parameters, x[number])[-1], target[number]))
        parts.add(loss, *torch.autograd.grad(loss, parameters.values()))
    loss, *grads = parts.sums()
    descend(parameters, grads)
    return loss


def descend(parameters, grads):
    """Moves every parameter against its gradient: a product and a difference, each rounded."""
    with torch.no_grad():
        for parameter, grad in zip(parameters.values(), grads, strict=True):
            parameter -= grad * RATE


def train(device, steps, step=step):
    """The loss before each step, and the parameters at the end, on the CPU."""
    x, target, parameters = initial(device)
    losses = [step(parameters, x, target) for _ in range(steps)]
    return torch.stack(losses).cpu(), {name: p.detach().cpu() for name, p in parameters.items()}


def digest(tensors):
    """A hash of the bit patterns."""
    whole = hashlib.sha256()
    for tensor in tensors:
        whole.update(tensor.contiguous().numpy().tobytes())
    return whole.hexdigest()[:16]


def main():
    """Prints the loss curve, and a digest of its bits and of the parameters'; on one rank, where there are several."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--micro-batches", type=int, help=f"a number that divides the batch, which is {BATCH}")
    arguments = parser.parse_args()
    device, how = torch.device(arguments.device), step
    if arguments.micro_batches is not None:
        if arguments.micro_batches < 1 or BATCH % arguments.micro_batches:
            parser.error(f"--micro-batches: {arguments.micro_batches} does not divide the batch of {BATCH}")
        how = functools.partial(step_in_parts, arguments.micro_batches)
    if dist.is_torchelastic_launched():
        if arguments.micro_batches is None:
            parser.error("several ranks share micro-batches: say how many, --micro-batches 8")
        if device.type == "cuda":
            device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
            torch.cuda.set_device(device)
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    losses, parameters = train(device, arguments.steps, how)
    rank = dist.get_rank() if dist.is_initialized() else 0
    if dist.is_initialized():
        dist.destroy_process_group()
    if rank == 0:
        report(losses, parameters)


def report(losses, parameters):
    """Prints them."""
    for number, loss in enumerate(losses.tolist()):
        print(f"step {number:3}  loss {loss:.9g}")
    print(f"losses {digest([losses])}  parameters {digest(parameters.values())}")


if __name__ == "__main__":
    main()
