"""Which plugin writes an attribute of endpoints: shared by the endpoint-attribute plugins. Pure."""

from collections.abc import Mapping
from typing import Final

from endpoint_picker.datalayer.attributes import AttributeKey
from endpoint_picker.scheduling.plugin import Plugin

#: The plugin whose customMetrics are attributes.
DEFAULT_PRODUCER: Final = "core-metrics-extractor"


def attribute_fault(key: AttributeKey, plugins: Mapping[str, Plugin]) -> str:
    """Return why no plugin writes the attribute; "" when one does."""
    producer, attribute = key
    writer = plugins.get(producer)
    if writer is None:
        return f'producer "{producer}" is no plugin of this configuration'
    written = sorted(writer.endpoint_attributes)
    if attribute not in written:
        return f'"{producer}" writes no attribute "{attribute}"; it writes {", ".join(written) or "none"}'
    return ""
