"""The load of endpoints over their capacity, by what they show. Pure."""

import numpy as np

from endpoint_picker.datalayer.table import EndpointTable, Floats, Rows


def utilization(
    rows: Rows, table: EndpointTable, queue_depth: float, kv_usage: float, *, freed: bool = False
) -> Floats:
    """Return max((waiting + unseen) / queue_depth, KV usage / kv_usage) of each row.

    NaN when both are unknown. A server that shows only one of the two is judged by that one. With `freed`,
    requests that have ended since the last page was asked for no longer count as waiting.
    """
    waiting = table.waiting[rows]
    if freed:
        waiting = np.maximum(waiting - table.freed[rows], 0.0)
    load: Floats = np.fmax((waiting + table.unseen[rows]) / queue_depth, table.kv_usage[rows] / kv_usage)
    return load
