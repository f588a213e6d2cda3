"""What was compiled, as the disassembler shows it: no local-memory spills, and the instructions a rung is about."""

import collections
import functools
import os
import re
import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path

import pytest
import tables

import torch_reduce
from torch_reduce import _C


def find_cuobjdump():
    places = [Path(sysconfig.get_path("purelib")) / "nvidia" / "cu13" / "bin"]
    places += [Path(os.environ[name]) / "bin" for name in ("CUDA_HOME", "CUDA_PATH") if name in os.environ]
    places += [Path(found).parent for found in [shutil.which("cuobjdump")] if found]
    places.append(Path("/usr/local/cuda/bin"))
    for place in places:
        if (place / "cuobjdump").exists() and ((place / "nvdisasm").exists() or shutil.which("nvdisasm")):
            return place / "cuobjdump"
    return None


@functools.cache
def tool():
    if not torch_reduce.cuda_built():
        pytest.skip("torch_reduce was built without CUDA")
    found = find_cuobjdump()
    if found is None:
        pytest.skip("no cuobjdump and nvdisasm (pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm)")
    return found


def dump(*arguments, of=None, folder=None):
    path = f"{tool().parent}{os.pathsep}{os.environ['PATH']}"
    command = [tool(), *arguments, of or _C.__file__]
    environment = {**os.environ, "PATH": path}
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


def parts(symbol):
    """The namespaces and the name of a kernel: "_ZN7treduce6reduce10vectorized6kernelI..." is ("reduce",
    "vectorized", "kernel")."""
    found, rest = [], symbol.removeprefix("_ZN")
    while match := re.match(r"(\d+)", rest):
        length, start = int(match.group()), match.end()
        found.append(rest[start : start + length])
        rest = rest[start + length :]
    return tuple(found[1:])


@functools.cache
def resources():
    """Kernel -> (registers, stack, local memory)."""
    found = {}
    for symbol, registers, stack, local in re.findall(
        r"Function (\S+):\s+REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", dump("--dump-resource-usage")
    ):
        if symbol.startswith("_ZN7treduce"):
            found[symbol] = int(registers), int(stack), int(local)
    return found


@functools.cache
def files():
    """A folder with a file for each source of kernels."""
    folder = tempfile.TemporaryDirectory()
    dump("--extract-elf", "all", folder=folder.name)
    return folder


@functools.cache
def disassembly(file):
    """Kernel -> its disassembly, of a file: several rungs may be in one."""
    _, *texts = dump("--dump-sass", of=file).split("Function : ")
    return {text.split(maxsplit=1)[0]: text for text in texts}


@functools.cache
def listings(family, rung):
    """Kernel of a rung -> its disassembly. Of files that it is in: the whole extension takes minutes."""
    prefix = f"_ZN7treduce{len(family)}{family}{len(rung)}{rung}"
    found = {}
    for file in Path(files().name).iterdir():
        if prefix.encode() in file.read_bytes():
            found |= {symbol: text for symbol, text in disassembly(file).items() if symbol.startswith(prefix)}
    assert found, f"no kernel of {family}, {rung} was disassembled"
    return {symbol: text for symbol, text in found.items() if parts(symbol)[:2] == (family, rung)}


INSTRUCTION = re.compile(r"/\*([0-9a-f]{4,5})\*/ +(?:@!?U?P\w+ +)?([A-Z][\w.]*)([^;]*)")


def names_in(listing):
    """Its instructions' names, in their order."""
    return [name for _, name, _ in INSTRUCTION.findall(listing)]


@functools.cache
def counted(family, rung):
    """Kernel of a rung -> how many of each instruction it has."""
    return {symbol: collections.Counter(names_in(text)) for symbol, text in listings(family, rung).items()}


def resources_of(family, rung):
    """None at all means that the tool's output was not understood, or that the rung was not compiled."""
    found = {symbol: value for symbol, value in resources().items() if parts(symbol)[:2] == (family, rung)}
    assert found, f"no kernel of {family}, {rung} was found in the extension"
    return found


def instructions_of(family, rung):
    """The same for instructions."""
    found = counted(family, rung)
    assert found.keys() == resources_of(family, rung).keys(), f"not all of {family}, {rung} was disassembled"
    assert all(found.values()), f"{next(s for s in found if not found[s])}: no instruction was read"
    return found


RUNGS = [
    (family, row.name)
    for family, rows in (
        # The rungs along dims keep the levels of long trees in local memory, on purpose.
        ("reduce", tables.CLASSIC),
        ("matmul", tables.MATMUL_VARIANTS),
        ("elementwise", tables.ADD_VARIANTS),
        # three_pass keeps the levels of long trees in local memory, too.
        ("rows", [row for row in tables.ROW_VARIANTS if row.name != "three_pass"]),
    )
    for row in rows
    if row.has_kernel
]


# Kernels that rungs have beside their own, in files of their own.
PIECES = {
    "few_outputs": "persistent",
    "few_rows": "persistent",
    "register_operand": "persistent",
    "narrow": "persistent",
    "in_place": "persistent",
    "small_tiles": "persistent",
    "split_rows": "split_fp16",
    "split_turns": "split_fp16",
    "split_warps": "split_fp16",
    "split_one": "split_fp16",
    "split_end": "split_fp16",
    "split_wide": "split_fp16",
    "split_held": "split_direct",
    "split_single": "split_direct",
    "split_some": "split_direct",
    "small_f64": "specialized_f64",
    "short_k": "pipelined",
    "split": "split_fp16",
}
RUNGS += [("matmul", piece) for piece in PIECES]


# Rung -> how many values its kernels may load from local memory: those that loops hardly need.
LOADED_AGAIN = {
    "split_wide": 40,
    "split": 16,
    "split_held": 16,
    "split_turns": 13,
    "split_fp16": 11,
    "split_single": 9,
    "split_some": 6,
    "split_warps": 4,
}


@pytest.mark.parametrize(("family", "rung"), RUNGS, ids=["-".join(pair) for pair in RUNGS])
def test_no_rung_spills_to_local_memory(family, rung):
    """But for warps that gave their registers to those that multiply. Local memory lies in the stack: a kernel without
    one has none."""
    for symbol, (registers, stack, local) in resources_of(family, rung).items():
        assert 0 < registers <= 255
        if stack == local == 0:
            continue
        names = names_in(listings(family, rung)[symbol])
        gave, loads = False, []
        for name in names:
            if name.startswith("USETMAXREG"):
                gave = "DEALLOC" in name
            elif name.startswith("LDL") and not gave:
                loads.append(name)
        gives = any(name.startswith("USETMAXREG.DEALLOC") for name in names)
        assert names and (local == 0 or gives), f"{symbol} uses {local} bytes of local memory"
        allowed = LOADED_AGAIN.get(rung, 0)
        assert len(loads) <= allowed, f"{symbol} reads {len(loads)} values from local memory"


# The rungs whose idea, or whose order class, is loads of 16 bytes.
WIDE = [("reduce", row.name) for row in tables.REDUCE_VARIANTS if row.has_kernel and "vector" in row.order_text]
WIDE.append(("elementwise", "vectorized"))


@pytest.mark.parametrize(("family", "rung"), WIDE, ids=["-".join(pair) for pair in WIDE])
def test_vectorised_rungs_load_16_bytes(family, rung):
    walking = {s: c for s, c in instructions_of(family, rung).items() if parts(s)[2] == "kernel"}
    if family == "elementwise":  # compiled twice: for operands that lie on 16-byte boundaries, and for others
        walking = {symbol: counts for symbol, counts in walking.items() if "Lb1E" in symbol}
    assert walking, f"{rung} has no kernel of that name"
    for symbol, counts in walking.items():
        wide = sum(count for name, count in counts.items() if name.startswith("LDG") and ".128" in name)
        assert wide >= (4 if family == "reduce" else 2), f"{symbol} has {wide} 16-byte loads: {dict(counts)}"


ELEMENT_BY_ELEMENT = ("thread",)
ALONG_DIMS = [v.name for v in tables.PAIRWISE if v.has_kernel and v.name not in ELEMENT_BY_ELEMENT]


@pytest.mark.parametrize("rung", ALONG_DIMS)
def test_rungs_along_dims_load_16_bytes(rung):
    """Where vectors fit; each also has kernels that read element by element. A rung that has no others is named in
    ELEMENT_BY_ELEMENT."""
    widest = [
        sum(count for name, count in counts.items() if name.startswith("LDG") and ".128" in name)
        for counts in instructions_of("reduce", rung).values()
    ]
    assert sum(wide >= 4 for wide in widest) >= 10


@pytest.mark.parametrize("rung", ["vectorized", "warp_tiled"])
def test_matmul_rungs_move_16_bytes(rung):
    for symbol, counts in instructions_of("matmul", rung).items():
        for kind, least in (("LDG", 2), ("LDS", 2), ("STS", 1)):
            wide = sum(count for name, count in counts.items() if name.startswith(f"{kind}.") and ".128" in name)
            assert wide >= least, f"{symbol} has {wide} {kind} of 16 bytes: {dict(counts)}"


@pytest.mark.parametrize("rung", ["naive", "tiled", "tiled_1d", "tiled_2d"])
def test_matmul_rungs_before_them_load_one_element(rung):
    for counts in instructions_of("matmul", rung).values():
        assert not any(name.startswith("LDG") and ".128" in name for name in counts)


def not_empty(kernels):
    """Those of shapes that `auto` takes on some chip of this code: see kOnlyCapability."""
    some = {symbol: counts for symbol, counts in kernels.items() if set(counts) - {"LDC", "EXIT", "BRA", "NOP"}}
    assert len(kernels) - len(some) <= 4
    return some


def test_pipelined_copies_without_registers():
    """Where an element need not be widened, the hardware copies it; by 16 bytes where a kernel is for that."""
    for symbol, counts in not_empty(instructions_of("matmul", "pipelined")).items():
        copies = collections.Counter()
        for name, count in counts.items():
            if name.startswith("LDGSTS"):
                copies[".128" in name] += count
        narrow = "float16" in symbol or "kernelIa" in symbol
        assert sum(copies.values()) == 0 if narrow else copies[False] + copies[True] >= 8, f"{symbol}: {dict(counts)}"
        assert any(name.startswith("LDS") and ".128" in name for name in counts), symbol
        ways = re.search(r"3WayE(\d)ELS\w*_(\d)E", symbol).groups()  # of A and of B; 3 is lines_vectors
        assert (copies[True] > 0) == ("3" in ways), f"{symbol}: {copies}"


def longest_loop(listing):
    """The instructions of the innermost loop with the most of them."""
    code = [(int(address, 16), name + rest) for address, name, rest in INSTRUCTION.findall(listing)]
    loops = []
    for address, text in code:
        if (target := re.search(r"BRA .*?0x([0-9a-f]+)", text)) and int(target[1], 16) < address:
            loops.append((int(target[1], 16), address))
    inner = [a for a in loops if not any(a != b and a[0] <= b[0] and b[1] <= a[1] for b in loops)]
    begin, end = max(inner, key=lambda loop: loop[1] - loop[0])
    return [text for address, text in code if begin <= address <= end]


def test_the_loop_of_pipelined_multiplies():
    """In the largest tiles nearly every instruction is a multiply-add: what limits a chip that issues one a cycle."""
    largest = [s for s in resources_of("matmul", "pipelined") if "5IndexE0E" in s and "kernelIf" in s]
    assert len(largest) == 5
    for symbol in largest:
        loop = longest_loop(listings("matmul", "pipelined")[symbol])
        multiply_adds = sum("FFMA" in text for text in loop)
        assert multiply_adds == 16 * 8 * 16, symbol
        least = 0.85 if "3WayE4E" in symbol else 0.87  # for any layout addresses are variables
        assert multiply_adds >= least * len(loop), f"{symbol}: {multiply_adds} of {len(loop)}"


def test_the_loops_of_short_k_take_factors_from_both_halves_of_the_registers():
    """A multiply-add of three even registers, or of three odd ones, costs the scheduler a cycle."""
    kernels = listings("matmul", "short_k")
    assert len(kernels) == 9
    for symbol, listing in kernels.items():
        loop = longest_loop(listing)
        factors = [re.findall(r"R(\d+)", text.split(",", 1)[1]) for text in loop if text.startswith("FFMA")]
        assert all(len(registers) == 3 for registers in factors), symbol
        assert len(factors) >= 0.7 * len(loop), f"{symbol}: {len(factors)} of {len(loop)}"
        same = sum(len({int(r) % 2 for r in registers}) == 1 for registers in factors)
        assert same <= 0.05 * len(factors), f"{symbol}: {same} of {len(factors)}"


@pytest.mark.parametrize("rung", ["interleaved_modulo", "two_pass", "warp_shuffle"])
def test_scalar_rungs_load_one_element(rung):
    """Otherwise the check above would say nothing."""
    for counts in instructions_of("reduce", rung).values():
        assert not any(".128" in name for name in counts)


# What multiplies int8 -> the instruction of floats in its place.
OF_FLOATS = {"IMMA": "HMMA", "IGMMA": "HGMMA"}

# Rung of tensor cores -> the instructions that its section in docs/ladder.md is about, and those that it does without.
CORES = {
    "wmma": ({"HMMA"}, {"LDGSTS", "HGMMA"}),
    "mma": ({"HMMA", "LDSM", "LDGSTS"}, {"HGMMA", "UTMALDG"}),
    "mma_f64": ({"DMMA", "LDS", "LDGSTS"}, {"LDSM", "UTMALDG"}),
    "specialized_f64": ({"DMMA", "LDS", "UTMALDG", "USETMAXREG"}, {"LDSM", "LDGSTS"}),
    "small_f64": ({"DMMA", "LDS", "LDGSTS"}, {"LDSM", "UTMALDG"}),
    "wgmma": ({"HGMMA", "UTMALDG"}, {"HMMA", "LDSM", "LDGSTS", "USETMAXREG"}),
    "warp_specialized": ({"HGMMA", "UTMALDG", "USETMAXREG"}, {"HMMA", "LDSM", "LDGSTS"}),
    "persistent": ({"HGMMA", "UTMALDG", "USETMAXREG"}, {"HMMA", "LDSM", "LDGSTS"}),
    "few_outputs": ({"HGMMA", "UTMALDG"}, {"HMMA", "LDSM", "LDGSTS"}),
    "few_rows": ({"HMMA", "LDSM", "UTMALDG"}, {"HGMMA", "LDGSTS"}),
    "small_tiles": ({"HMMA"}, {"HGMMA", "LDSM", "LDGSTS", "UTMALDG"}),
    "register_operand": ({"HGMMA", "UTMALDG", "LDS"}, {"HMMA", "LDSM", "LDGSTS"}),
    "narrow": ({"HGMMA", "UTMALDG"}, {"HMMA", "LDGSTS"}),  # LDSM: of lines along k
    "in_place": ({"HMMA", "LDGSTS"}, {"HGMMA", "UTMALDG"}),  # LDSM: not of tfloat32 across k
    "split_bf16": ({"HGMMA", "UTMALDG"}, {"LDSM", "LDGSTS"}),  # HMMA: see split_few.cuh
    "split_fp16": ({"HGMMA", "UTMALDG"}, {"HMMA", "LDSM", "LDGSTS"}),
    "split_direct": ({"HMMA"}, {"HGMMA", "LDSM", "LDGSTS", "UTMALDG"}),
    "split_held": ({"HGMMA"}, {"LDSM", "LDGSTS", "UTMALDG"}),  # HMMA: see split_two_lines, which counts by it
    "split_rows": ({"HGMMA", "UTMALDG"}, {"HMMA", "LDSM", "LDGSTS"}),
    "split_turns": ({"HGMMA", "UTMALDG", "USETMAXREG"}, {"HMMA", "LDSM", "LDGSTS"}),
    "split_warps": ({"HMMA", "UTMALDG"}, {"HGMMA", "LDSM", "LDGSTS"}),
    "split_one": ({"HMMA", "UTMALDG"}, {"HGMMA", "LDSM", "LDGSTS"}),
    "split_single": ({"HMMA"}, {"HGMMA", "LDSM", "LDGSTS", "UTMALDG"}),
    "split_some": ({"HMMA"}, {"HGMMA", "LDSM", "LDGSTS", "UTMALDG"}),
    "split_end": ({"HMMA"}, {"HGMMA", "LDSM", "LDGSTS", "UTMALDG"}),
    # HMMA: see split_two_lines
    "split_wide": ({"HGMMA", "UTMALDG", "USETMAXREG"}, {"LDSM", "LDGSTS"}),
    "short_k": ({"FFMA", "LDS", "STS", "LDG", "LDGSTS"}, {"HMMA", "HGMMA", "LDSM", "UTMALDG"}),
}


PRODUCTS = [*(v.name for v in tables.ON_CORES if v.has_kernel), *(piece for piece in PIECES if piece != "split")]


@pytest.mark.parametrize("rung", PRODUCTS)
def test_tensor_core_rungs_are_made_of_what_they_are_about(rung):
    assert rung in CORES, f"add to CORES which instructions {rung} is about, and which it does without"
    if tables.row("matmul", PIECES.get(rung, rung)).one_chip and "9.0a" not in torch_reduce.build_info().architectures:
        pytest.skip("built without code for 9.0a")
    kernels = {s: c for s, c in instructions_of("matmul", rung).items() if parts(s)[2] == "kernel"}
    assert kernels, f"{rung} has no kernel of that name"
    has, lacks = CORES[rung]
    for symbol, counts in not_empty(kernels).items():
        opcodes = {name.split(".")[0] for name in counts}
        if "kernelIa" in symbol or "FormIa" in symbol:
            opcodes = {OF_FLOATS.get(code, code) for code in opcodes}
        assert has <= opcodes, f"{symbol} lacks {has - opcodes}"
        assert not lacks & opcodes, f"{symbol} has {lacks & opcodes}"


# Kernels whose boxes a lane asks for that elect_one chose: behind `lane == 0` the compiler makes a loop over all lanes
# of each copy.
ASK_ONCE = ["split_fp16", "split_bf16", "split_one", "split_rows", "split_wide", "few_outputs", "few_rows"]
ASK_ONCE += ["narrow", "register_operand", "specialized_f64", "persistent", "split_both", "split_turns", "split_warps"]


@pytest.mark.parametrize("rung", ASK_ONCE)
def test_copies_are_asked_for_without_a_loop(rung):
    for symbol, listing in listings("matmul", rung).items():
        if "specialized_f64" in symbol and "TilingILi0E" in symbol:
            continue  # the largest tiles, see kElects
        names = names_in(listing)
        for i, name in enumerate(names):
            assert name[:7] != "UTMALDG" or "BRA.U.ANY" not in names[i : i + 5], f"{symbol} asks in a loop"


def multiplications(names, rung):
    """Where a kernel multiplies. Of split_fp16's by pairs: what these leave is by parts, and rare."""
    return [
        i
        for i, name in enumerate(names)
        if name.startswith("HGMMA") and not (rung == "split_fp16" and name.endswith("BF16"))
    ]


@pytest.mark.parametrize("rung", ["split_fp16", "split_bf16"])
def test_descriptors_are_computed_in_uniform_registers(rung):
    """A multiplication waits for each value that has to be moved there: if all were, there would be 48 to a segment."""
    most = 8
    for symbol, listing in listings("matmul", rung).items():
        names = names_in(listing)
        places = multiplications(names, rung)
        moved = sum(name.startswith("R2UR") for name in names[places[0] : places[-1]]) if places else 0
        assert moved <= most, f"{symbol} moves {moved} values to uniform registers"


def test_scales_are_loaded_together():
    """Whether a segment is in units is asked before it is multiplied, by three loads that wait for nothing between."""
    of_segment = 12
    for symbol, listing in listings("matmul", "split_fp16").items():
        instructions = [(name, operands) for _, name, operands in INSTRUCTION.findall(listing)]
        names = [name for name, _ in instructions]
        for first in multiplications(names, "split_fp16")[::of_segment]:
            loads = [i for i in range(first) if names[i].startswith("LDS")][-3:]
            assert len(loads) == 3 and first - loads[0] < 32, f"{symbol} loads no scales before it multiplies"
            assert loads[2] - loads[0] < 17, f"{symbol} loads scales one after another"
            assert not any(name.startswith(("BRA", "BSYNC")) for name in names[loads[0] : first]), (
                f"{symbol} branches between loads of scales"
            )
            for load in loads[:2]:
                loaded = re.search(r"\bR\d+\b", instructions[load][1]).group()
                for name, operands in instructions[load + 1 : loads[2] + 1]:
                    assert not re.search(rf"\b{loaded}\b", operands), f"{symbol}: {name} waits for a scale"


def test_who_multiply_are_known_to_be_converged():
    """Else the compiler asks at each shuffle, and keeps addresses in the registers of each lane: a quarter of a small
    tile's time. What tells it is `setmaxnreg`."""
    for symbol, listing in listings("matmul", "split_fp16").items():
        names = names_in(listing)
        if places := multiplications(names, "split_fp16"):
            asked = [name for name in names[: places[-1] + 100] if name == "BRA.DIV"]
            assert not asked, f"{symbol} asks {len(asked)} times whether lanes are together"


# An instruction and its encoding.
CODED = re.compile(r"/\*[0-9a-f]{4,5}\*/ +([^;]*);\s+/\* 0x([0-9a-f]{16}) \*/\s+/\* 0x([0-9a-f]{16}) \*/")


def arrives_while_loading(listing, reads_on=False):
    """Whether a warp arrives at a barrier of its block while loads from shared memory are under way. The encoding says,
    from bit 110 on, which of six counters is up until the result is there (7: none), and from bit 116 on which must be
    down before. reads_on: the warp releases the stage before the one that it has waited for last, whose loads may be
    under way."""
    under_way, of_next = set(), set()
    for text, _, high in CODED.findall(listing):
        control = int(high, 16) >> 46
        done = {counter for counter in range(6) if control >> 6 >> counter & 1}
        under_way -= done
        of_next -= done
        if "SYNCS.ARRIVE.TRANS64.A1T0" in text and under_way:
            return True
        if reads_on and "SYNCS.PHASECHK" in text:
            under_way |= of_next
            of_next.clear()
        if re.search(r"\bLDSM?\b", text) and control & 7 != 7:
            (of_next if reads_on else under_way).add(control & 7)
    return False


def copies_behind_fences(listing):
    """How many copies lie between a wait at a barrier and the next, behind a fence and in front of one."""
    fenced, found = False, collections.Counter()
    for text, _, _ in CODED.findall(listing):
        if "SYNCS.PHASECHK" in text:
            fenced = False
        elif "FENCE.VIEW.ASYNC" in text:
            fenced = True
        elif "UTMALDG" in text or "UBLKCP" in text:
            found[fenced] += 1
    return found


@pytest.mark.parametrize("rung", ["persistent", "few_outputs", "narrow", "split_fp16"])
def test_first_tasks_are_found_before_the_wait(rung):
    """What a block divides for its first task stands before it waits for the launch before, not in front of its first
    copy: the compiler moves what is used there alone. A reciprocal (`MUFU`) is half of a division. That of a matrix by
    the inner batch dimension is left in `persistent`."""
    for symbol, listing in listings("matmul", rung).items():
        names = names_in(listing)
        copies = [i for i, name in enumerate(names) if name.startswith("UTMALDG")]
        waits = [i for i, name in enumerate(names) if name == "ACQBULK" and copies and i < copies[0]]
        if waits:
            between = [name for name in names[waits[-1] : copies[0]] if name.startswith("MUFU")]
            assert len(between) <= (rung == "persistent"), f"{symbol} divides {len(between)} times behind its wait"


# That loads read.
RINGS = {"few_rows", "narrow", "register_operand", "specialized_f64", "split_rows", "split_turns", "split_wide"}
READS_ON = {"in_place": "TilingILi2E"}  # kernels, of 32 x 32 tiles
OTHERS = {"split_bf16", "split_fp16"}  # arrive after loads of what threads overwrite, whose stores stay behind


@pytest.mark.parametrize("rung", [rung for rung in PRODUCTS if rung not in OTHERS])
def test_copies_stay_behind_loads(rung):
    """An arrival overtakes loads: who then asks the copy engine to overwrite what they read needs a fence before."""
    if tables.row("matmul", PIECES.get(rung, rung)).one_chip and "9.0a" not in torch_reduce.build_info().architectures:
        pytest.skip("built without code for 9.0a")
    arrive = {
        symbol
        for symbol, listing in listings("matmul", rung).items()
        if arrives_while_loading(listing, reads_on=rung in READS_ON and READS_ON[rung] in symbol)
    }
    assert (len(arrive) > 0) == (rung in RINGS), f"do loads of {rung} read what the copy engine brings?"
    for symbol in arrive:
        found = copies_behind_fences(listings("matmul", rung)[symbol])
        assert found[True] > 0 == found[False], f"{symbol}: {dict(found)}"


def test_every_chip_asked_for_is_there():
    listing = dump("--list-elf") + dump("--list-ptx")
    assert torch_reduce.build_info().architectures
    for name in torch_reduce.build_info().architectures:
        number = name.replace(".", "").removesuffix("+PTX").removesuffix("PTX")
        assert f"sm_{number}" in listing or f"compute_{number}" in listing, f"{name} is not in the extension"
