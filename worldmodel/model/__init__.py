"""The dynamics models: transformer trunk, heads, and the step model that joins them."""
