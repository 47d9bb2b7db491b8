"""How metrics pages are fetched and read: plain values."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from endpoint_picker.datalayer.metrics_page import (
    ENGINES,
    Engine,
    LargestReader,
    PageReader,
    Series,
    engine_of,
)


@dataclass(frozen=True, slots=True)
class ScrapePlan:
    """The URL of a server's metrics page, the credentials for it, and the engines whose series it has."""

    path: str
    """Path of the page."""
    engine_label_key: str = ""
    """Pod label that names the engine."""
    default_engine: str = ""
    """Engine of a pod without the label, or with a value that is not known."""
    engines: Mapping[str, Engine] = field(default_factory=lambda: ENGINES)
    """All engines by name."""
    extractor: str = ""
    """Name of the plugin that the engines' attributes belong to."""
    port: int = 0
    """Port of the page; 0 is the endpoint's own."""
    uses_tls: bool = False
    insecure_skip_verify: bool = False
    """Accept any certificate."""
    ca_cert_path: str = ""
    """PEM file that servers are verified with."""
    client_cert_path: str = ""
    client_key_path: str = ""
    server_name: str = ""
    """Name that certificates have to bear; "" is the endpoint's address."""
    interval: float = 0.0
    """Seconds between two scrapes of an endpoint; 0 is the scraper's own interval."""
    bearer_token_file: str = ""
    """File with the bearer token; "" is none."""

    hit_rate: bool = False
    """Read the hit rate of the prefix cache as an attribute."""
    largest: tuple[str, Series, float] | None = None
    """(attribute, gauge, scale): read the gauge's largest sample as an attribute, and nothing else."""
    at_node: bool = False
    """Ask the node's address where it is known, not the endpoint's."""

    def reader(self, labels: Mapping[str, str]) -> PageReader | LargestReader:
        """Return a new reader for the pages of an endpoint with these pod labels."""
        if self.largest is not None:
            attribute, series, scale = self.largest
            return LargestReader((self.extractor, attribute), series, scale)
        engine = engine_of(labels, self.engine_label_key, self.default_engine, self.engines)
        return PageReader(engine, self.extractor, hit_rate=self.hit_rate)

    @property
    def files(self) -> tuple[str, ...]:
        """Return the paths of all files that the plan names."""
        named = (self.ca_cert_path, self.client_cert_path, self.client_key_path, self.bearer_token_file)
        return tuple(path for path in named if path)
