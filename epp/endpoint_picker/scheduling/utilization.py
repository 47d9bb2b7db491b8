"""The load of endpoints over their capacity, by what they show. Pure."""

import numpy as np

from endpoint_picker.datalayer.table import EndpointTable, Floats, Rows


def utilization(rows: Rows, table: EndpointTable, queue_depth: float, kv_usage: float) -> Floats:
    """Return max((waiting + unseen) / queue_depth, KV usage / kv_usage) of each row.

    NaN when both are unknown. A server that shows only one of the two is judged by that one.
    """
    load: Floats = np.fmax(
        (table.waiting[rows] + table.unseen[rows]) / queue_depth, table.kv_usage[rows] / kv_usage
    )
    return load
