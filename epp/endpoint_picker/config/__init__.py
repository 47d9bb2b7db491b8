"""EndpointPickerConfig: strict reading, plugin registry, building of profiles."""
