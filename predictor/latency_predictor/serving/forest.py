"""The trees of one model as arrays that `kernel` walks. Pure.

Every tree is completed to the deepest one's depth, so that a step is arithmetic and no branch: the children
of node p are 2p + 1 and 2p + 2, and a leaf that lies higher is repeated below itself. A threshold is its
rank among the thresholds of its feature: a row's value is looked up once a feature, not once a node. A node
goes right when the value's code is above its rank. Unknown values have two codes, below and above all
ranks, and each node reads the one that its tree was trained to follow.
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from latency_predictor.serving.ubj import UbjError, decode

#: Deepest tree that is completed: 4,096 leaves.
MAX_DEPTH: Final = 12
#: Most trees of a model.
MAX_TREES: Final = 20_000
#: Rank of a node that sends every row left: above all codes.
ALWAYS_LEFT: Final = 0xFFFF
#: Code of an unknown value for nodes that send it right: above all ranks but the one above.
UNKNOWN_RIGHT: Final = 0xFFFE
#: Rows that the kernel walks side by side.
BLOCK: Final = 16


class ForestError(ValueError):
    """The bytes are no model that can be evaluated."""


@dataclass(frozen=True, slots=True)
class Forest:
    """A model."""

    depth: int
    heads: int
    width: int
    """Columns of the matrix."""
    nodes: NDArray[np.uint32]
    """uint32[trees, 2^depth - 1]: plane of codes times BLOCK in the upper half, rank in the lower."""
    leaves: NDArray[np.float32]
    """float32[trees, 2^depth]."""
    head_of: NDArray[np.int64]
    """int64[trees]."""
    cuts: NDArray[np.float32]
    """The thresholds of all features, ascending within each."""
    cuts_from: NDArray[np.int64]
    """int64[width + 1]: where the thresholds of each feature begin."""


def read(content: bytes, *, width: int, heads: int) -> Forest:
    """Return the forest of an XGBoost model in UBJSON. Raises ForestError."""
    try:
        model = decode(content)["learner"]["gradient_booster"]["model"]
        trees, head_of = model["trees"], np.asarray(model["tree_info"], dtype=np.int64)
        if len(trees) > MAX_TREES or len(trees) != len(head_of):
            msg = f"a model of {len(trees)} trees"
            raise ForestError(msg)
        if not trees:
            return _bare(width, heads)
        if head_of.min() < 0 or head_of.max() >= heads:
            msg = f"a model with the heads {head_of.min()} to {head_of.max()}; expected {heads}"
            raise ForestError(msg)
        completed = [_Tree(tree, width) for tree in trees]
    except (UbjError, KeyError, TypeError, IndexError, ValueError) as error:
        if isinstance(error, ForestError):
            raise
        msg = f"no XGBoost model: {type(error).__name__}: {error}"
        raise ForestError(msg) from error
    return _joined(completed, head_of, heads, width)


def _bare(width: int, heads: int) -> Forest:
    """Return a forest that adds nothing: the base model stands alone."""
    return Forest(
        depth=1,
        heads=heads,
        width=width,
        nodes=np.zeros((0, 1), dtype=np.uint32),
        leaves=np.zeros((0, 2), dtype=np.float32),
        head_of=np.zeros(0, dtype=np.int64),
        cuts=np.zeros(0, dtype=np.float32),
        cuts_from=np.zeros(width + 1, dtype=np.int64),
    )


class _Tree:
    """One tree as XGBoost has it."""

    __slots__ = ("condition", "default_left", "depth", "feature", "left", "right")

    def __init__(self, tree: Any, width: int) -> None:
        self.left = np.asarray(tree["left_children"], dtype=np.int64)
        self.right = np.asarray(tree["right_children"], dtype=np.int64)
        self.feature = np.asarray(tree["split_indices"], dtype=np.int64)
        self.condition = np.asarray(tree["split_conditions"], dtype=np.float32)
        self.default_left = np.asarray(tree["default_left"], dtype=np.bool_)
        count = len(self.left)
        sizes = {len(self.right), len(self.feature), len(self.condition), len(self.default_left)}
        inner = self.left >= 0
        if not count or sizes != {count} or (self.left >= count).any() or (self.right >= count).any():
            raise ForestError("a tree whose arrays do not fit together")
        if (self.right[inner] < 0).any() or not np.isfinite(self.condition).all():
            raise ForestError("a tree with a node that has one child, or with a value that is not finite")
        if inner.any() and not ((self.feature[inner] >= 0) & (self.feature[inner] < width)).all():
            raise ForestError("a tree that splits by a column that there is not")
        self.depth = 0
        level = np.zeros(1, dtype=np.int64)
        while True:
            level = level[inner[level]]
            if not level.size:
                break
            self.depth += 1
            if self.depth > MAX_DEPTH or level.size > count:
                msg = f"a tree deeper than {MAX_DEPTH}"
                raise ForestError(msg)
            level = np.concatenate([self.left[level], self.right[level]])

    def complete(self, depth: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the node at each inner position and at each leaf position of the complete tree."""
        levels = []
        level = np.zeros(1, dtype=np.int64)
        for _ in range(depth):
            levels.append(level)
            inner = self.left[level] >= 0
            pairs = np.stack(
                [np.where(inner, self.left[level], level), np.where(inner, self.right[level], level)], axis=1
            )
            level = pairs.reshape(-1)
        return (np.concatenate(levels) if levels else np.zeros(0, dtype=np.int64)), level


def _joined(trees: list[_Tree], head_of: NDArray[np.int64], heads: int, width: int) -> Forest:
    depth = max(1, *(tree.depth for tree in trees))
    count, inner_count = len(trees), 2**depth - 1
    feature = np.zeros((count, inner_count), dtype=np.int64)
    condition = np.full((count, inner_count), np.inf, dtype=np.float32)
    default_left = np.ones((count, inner_count), dtype=np.bool_)
    leaves = np.empty((count, 2**depth), dtype=np.float32)
    for number, tree in enumerate(trees):
        at, ends = tree.complete(depth)
        inner = tree.left[at] >= 0
        feature[number] = np.where(inner, tree.feature[at], 0)
        condition[number] = np.where(inner, tree.condition[at], np.inf)
        default_left[number] = np.where(inner, tree.default_left[at], True)
        leaves[number] = tree.condition[ends]
    real = np.isfinite(condition)
    rank = np.full(condition.shape, ALWAYS_LEFT, dtype=np.uint32)
    cuts: list[NDArray[np.float32]] = []
    for column in range(width):
        mine = real & (feature == column)
        thresholds = np.unique(condition[mine])
        if len(thresholds) >= UNKNOWN_RIGHT:
            msg = f"{len(thresholds)} thresholds of one column"
            raise ForestError(msg)
        cuts.append(thresholds)
        rank[mine] = np.searchsorted(thresholds, condition[mine])
    plane = np.where(default_left, feature, feature + width).astype(np.uint32)
    return Forest(
        depth=depth,
        heads=heads,
        width=width,
        nodes=(((plane * BLOCK) << 16) | rank).astype(np.uint32),
        leaves=leaves,
        head_of=head_of,
        cuts=np.concatenate(cuts).astype(np.float32),
        cuts_from=np.cumsum([0, *map(len, cuts)]).astype(np.int64),
    )
