"""Sums of leaves for a matrix of rows, by numba, or by numpy where numba is not installed.

Both add the leaves of a head in the order of its trees in float32, as XGBoost does, so that the sums are
equal to XGBoost's. `make bench-predictor` compares the ways.
"""

import os
from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from latency_predictor.serving.forest import BLOCK, UNKNOWN_RIGHT, Forest

try:
    import numba
except ImportError:  # the extra `predictor` has it; the sums are the same without
    numba = None

_Walk = Callable[..., None]

#: Index types of the kernel: with signed ones numba checks every index for being negative.
_U = np.uint64


def _walk(
    matrix: NDArray[np.float32],
    cuts: NDArray[np.float32],
    cuts_from: NDArray[np.int64],
    nodes: NDArray[np.uint32],
    leaves: NDArray[np.float32],
    head_of: NDArray[np.int64],
    depth: int,
    sums: NDArray[np.float32],
) -> None:
    """Add the leaves to `sums`, float32[heads, rows], BLOCK rows at a time: their steps overlap."""
    one, two, shift, low = _U(1), _U(2), _U(16), _U(0xFFFF)
    first_leaf = _U((1 << depth) - 1)
    rows, width = matrix.shape
    codes = np.zeros(2 * width * BLOCK, dtype=np.int32)
    at = np.zeros(BLOCK, dtype=np.uint64)
    for begin in range(0, rows, BLOCK):
        count = min(BLOCK, rows - begin)
        for column in range(width):
            start, end = cuts_from[column], cuts_from[column + 1]
            for j in range(count):
                value = matrix[begin + j, column]
                if np.isnan(value):
                    codes[column * BLOCK + j] = 0
                    codes[(column + width) * BLOCK + j] = UNKNOWN_RIGHT
                else:
                    # Thresholds not above the value: of those a node goes right.
                    found, left = start, end - start
                    while left > 0:
                        half = left >> 1
                        if cuts[found + half] <= value:
                            found += half + 1
                            left -= half + 1
                        else:
                            left = half
                    codes[column * BLOCK + j] = found - start
                    codes[(column + width) * BLOCK + j] = found - start
        for tree in range(head_of.shape[0]):
            node, leaf, head = nodes[tree], leaves[tree], head_of[tree]
            for j in range(_U(count)):
                at[j] = 0
            for _ in range(depth):
                for j in range(_U(count)):
                    p = at[j]
                    packed = _U(node[p])
                    code = codes[(packed >> shift) + _U(j)]
                    at[j] = two * p + one + _U(code > np.int32(packed & low))
            for j in range(_U(count)):
                sums[head, begin + j] += leaf[at[j] - first_leaf]


def _walk_in_numpy(
    matrix: NDArray[np.float32],
    cuts: NDArray[np.float32],
    cuts_from: NDArray[np.int64],
    nodes: NDArray[np.uint32],
    leaves: NDArray[np.float32],
    head_of: NDArray[np.int64],
    depth: int,
    sums: NDArray[np.float32],
) -> None:
    """Do the same with all rows of a tree at once."""
    rows, width = matrix.shape
    codes = np.zeros((2 * width, rows), dtype=np.int64)
    for column in range(width):
        values = matrix[:, column]
        found = np.searchsorted(cuts[cuts_from[column] : cuts_from[column + 1]], values, side="right")
        unknown = np.isnan(values)
        codes[column] = np.where(unknown, 0, found)
        codes[column + width] = np.where(unknown, UNKNOWN_RIGHT, found)
    each = np.arange(rows)
    for tree in range(len(head_of)):
        at = np.zeros(rows, dtype=np.int64)
        for _ in range(depth):
            packed = nodes[tree][at].astype(np.int64)
            at = 2 * at + 1 + (codes[(packed >> 16) // BLOCK, each] > (packed & 0xFFFF))
        sums[head_of[tree]] += leaves[tree][at - (2**depth - 1)]


IS_COMPILED: Final = numba is not None


def _jitted(*, cache: bool) -> _Walk:
    made: _Walk = numba.njit(error_model="numpy", nogil=True, cache=cache)(_walk)
    return made


#: With a folder of compiled code (`kernel_cache`), the first call takes it from there.
_compiled: _Walk = _walk_in_numpy if numba is None else _jitted(cache="NUMBA_CACHE_DIR" in os.environ)


def sums_of(forest: Forest, matrix: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return float32[heads, rows]: the sum of each head's leaves for each row of float32[rows, width]."""
    return _sums(_compiled, forest, matrix)


def compile_kernel() -> str:
    """Compile the kernel, which takes seconds, before calls come; return what is worth a warning.

    Where the folder of compiled code cannot be used, or lacks this CPU's and cannot be written, it is left
    out.
    """
    global _compiled  # noqa: PLW0603 - one kernel a process
    if numba is None:
        return "numba is not installed: trees are evaluated by numpy, which is many times slower"
    try:
        _call_kernel()
    except Exception as error:  # whatever numba finds in that folder
        _compiled = _jitted(cache=False)
        _call_kernel()
        return f"compiled code in {numba.config.CACHE_DIR or 'memory'} is not used: {error}"
    return ""


def _call_kernel() -> None:
    """Call the kernel with each type of matrix."""
    one = np.zeros(1, dtype=np.int64)
    forest = Forest(
        depth=1,
        heads=1,
        width=1,
        nodes=np.zeros((1, 1), dtype=np.uint32),
        leaves=np.zeros((1, 2), dtype=np.float32),
        head_of=one,
        cuts=np.zeros(0, dtype=np.float32),
        cuts_from=np.zeros(2, dtype=np.int64),
    )
    matrix = np.zeros((1, 1), dtype=np.float32)
    sums_of(forest, matrix)
    matrix.setflags(write=False)  # what comes from the wire is a read-only view: another type for numba
    sums_of(forest, matrix)


def sums_in_numpy(forest: Forest, matrix: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the same, slower: to check the compiled kernel."""
    return _sums(_walk_in_numpy, forest, matrix)


def _sums(walk: _Walk, forest: Forest, matrix: NDArray[np.float32]) -> NDArray[np.float32]:
    sums = np.zeros((forest.heads, len(matrix)), dtype=np.float32)
    walk(
        matrix,
        forest.cuts,
        forest.cuts_from,
        forest.nodes,
        forest.leaves,
        forest.head_of,
        forest.depth,
        sums,
    )
    return sums
