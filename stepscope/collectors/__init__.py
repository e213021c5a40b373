"""One source of measurements each; the node agent brings them."""
